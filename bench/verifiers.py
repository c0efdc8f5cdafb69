"""The measured verifiers: rows with replies for each, and the cost of scoring them without a server."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import example_row, says, server_spec

THOUGHTS = "First, let me restate the problem, and then work through it step by step. " * 20


@dataclass(frozen=True, slots=True)
class Verifier:
    """An environment whose verifier asks no other server."""

    server: ServerSpec
    row: Callable[[int], dict[str, Any]]
    """Return a row as `verify` gets it, a different one for each number."""
    bare: Callable[[int], float]
    """Return the CPU seconds of scoring the rows below a number, by bare calls of the scoring function."""


def math_row(number: int) -> dict[str, Any]:
    """A problem with an answer of one of the usual kinds; every third reply is wrong. No two are alike."""
    chance = random.Random(str(number))
    a, b = chance.randint(2, 10**6), chance.randint(2, 10**6)
    kinds = [
        (f"{a}", f"{a}"),
        (rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{2 * a}}}{{{2 * b}}}"),
        (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{b}}} \cdot {a}"),
        (f"({a}, {a + b})", f"({a}, {a + b})"),
        (f"x^2 + {a}x", f"x(x + {a})"),
    ]
    [(expected, equal)] = chance.choices(kinds, weights=[4, 2, 1, 1, 1])
    reply = f"{THOUGHTS} So the answer is \\boxed{{{equal if number % 3 else b + 1}}}."
    return example_row(question="How much is it?", expected_answer=expected, response=says(reply))


def mcqa_row(number: int) -> dict[str, Any]:
    """A question with four options."""
    options = [{letter: f"number {number + place}"} for place, letter in enumerate("ABCD")]
    reply = f"{THOUGHTS} Of all options that is {number}. \\boxed{{{'ABCD'[number % 4]}}}"
    return example_row("Which is it?", options=options, expected_answer="C", response=says(reply))


def instructions_row(number: int) -> dict[str, Any]:
    """An essay with instructions about words, layout, sentences and, in every fourth row, the language."""
    instructions: list[tuple[str, dict[str, Any]]] = [
        ("length_constraints:number_words", {"num_words": 100 + number % 200, "relation": "at least"}),
        ("keywords:existence", {"keywords": ["problem", "step"]}),
        ("punctuation:no_comma", {}),
        ("detectable_format:number_bullet_lists", {"num_bullets": 3}),
        ("length_constraints:number_sentences", {"num_sentences": 5, "relation": "at least"}),
        ("language:response_language", {"language": "en"}),
    ]
    asked = instructions if number % 4 == 0 else instructions[:4]
    row = example_row("Write an essay.", id=number, response=says(f"{THOUGHTS}\n* one\n* two\n* number {number}"))
    names, arguments = [name for name, _ in asked], [given for _, given in asked]
    return {**row, "prompt": "Write an essay.", "instruction_id_list": names, "kwargs": arguments}


def bare_math(count: int) -> float:
    from resources_servers.math_with_judge.engine import check, warm_up

    warm_up()
    return _cpu_s(lambda row: check(row["expected_answer"], _text(row)), math_row, count)


def bare_mcqa(count: int) -> float:
    from resources_servers.mcqa.extraction import extracted, lettered

    mode: Any = "strict_single_letter_boxed"
    return _cpu_s(lambda row: extracted(_text(row), mode, lettered(row["options"]), None), mcqa_row, count)


def bare_instructions(count: int) -> float:
    from resources_servers.instruction_following.checks import followed, warm_up

    def check(row: dict[str, Any]) -> list[bool]:
        return followed(_text(row), list(zip(row["instruction_id_list"], row["kwargs"], strict=True)))

    warm_up()
    return _cpu_s(check, instructions_row, count)


def _cpu_s(check: Callable[[dict[str, Any]], object], row: Callable[[int], dict[str, Any]], count: int) -> float:
    rows = [row(number) for number in range(count)]
    started = time.process_time()
    for each in rows:
        check(each)
    return time.process_time() - started


def _text(row: dict[str, Any]) -> str:
    text: str = row["response"]["output"][0]["content"][0]["text"]
    return text


VERIFIERS = {
    "math_with_judge": Verifier(
        server_spec("math_with_judge", "resources_servers", "math_with_judge", domain="math", should_use_judge=False),
        math_row,
        bare_math,
    ),
    "mcqa": Verifier(server_spec("mcqa", "resources_servers", "mcqa", domain="knowledge"), mcqa_row, bare_mcqa),
    "instruction_following": Verifier(
        server_spec(
            "instruction_following", "resources_servers", "instruction_following", domain="instruction_following"
        ),
        instructions_row,
        bare_instructions,
    ),
}
