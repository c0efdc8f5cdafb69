import re
from collections import Counter
from collections.abc import Iterator

import pytest

from nemo_gym.compute import Compute
from resources_servers.math_with_judge.engine import check
from resources_servers.math_with_judge.generate import generate_rows

COUNT = 40
MAX_SHARE = 0.05
EXPRESSION = re.compile(r"\$[^$]+\$|\d+")


def copies(prompt: str, question: str) -> Iterator[str]:
    """Replies that need no thought: the prompt, the problem, every expression and number in it, both sides of its
    equations, and numbers that are often right."""
    expressions = {found.strip("$") for found in EXPRESSION.findall(question)}
    sides = {side for found in expressions for side in re.split(r"=|,|f\(x\)", found) if side.strip()}
    yield from (prompt, question, f"{prompt}\n\\boxed{{{EXPRESSION.findall(question)[-1].strip('$')}}}")
    yield from (rf"\boxed{{{each}}}" for each in sorted(expressions | sides | {"0", "1", "-1", "2", "10"}))


@pytest.mark.parametrize("difficulty", range(1, 6))
async def test_copying_from_the_prompt_is_hardly_ever_rewarded(difficulty: int) -> None:
    rows = list(generate_rows(7, COUNT, difficulty))
    async with Compute(workers=1) as compute:
        compute.warm("math_verify")
        solved_by_copy = 0
        for row in rows:
            prompt = row["responses_create_params"]["input"][0]["content"]
            found = [
                await compute.run(check, row["expected_answer"], copy, timeout_s=30)
                for copy in copies(prompt, row["question"])
            ]
            solved_by_copy += any(each.reward for each in found)
    assert solved_by_copy < MAX_SHARE * COUNT


@pytest.mark.parametrize("difficulty", range(1, 6))
def test_no_answer_is_frequent(difficulty: int) -> None:
    answers = Counter(row["expected_answer"] for row in generate_rows(7, 500, difficulty))
    assert max(answers.values()) < MAX_SHARE * 500
