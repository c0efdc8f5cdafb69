"""The verifiers that are measured: rows with replies for each, and what scoring them costs without any server."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nemo_gym.testing import example_row, held, says
from nemo_gym.worker import HeldServer

THOUGHTS = "First, let me restate the problem, and then work through it step by step. " * 20


@dataclass(frozen=True, slots=True)
class Verifier:
    """An environment whose verifier asks no other server."""

    server: HeldServer
    row: Callable[[int], dict[str, Any]]
    """A row as `verify` gets it, another for each number."""
    bare: Callable[[int], float]
    """The CPU seconds that it takes to score the rows below a number, by bare calls of the function that does it."""


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


def bare_math(count: int) -> float:
    from resources_servers.math_with_judge.engine import check, warm_up

    warm_up()
    rows = [math_row(number) for number in range(count)]
    started = time.process_time()
    for row in rows:
        check(row["expected_answer"], row["response"]["output"][0]["content"][0]["text"])
    return time.process_time() - started


VERIFIERS = {
    "math_with_judge": Verifier(
        held("math_with_judge", "resources_servers", "math_with_judge", domain="math", should_use_judge=False),
        math_row,
        bare_math,
    ),
}
