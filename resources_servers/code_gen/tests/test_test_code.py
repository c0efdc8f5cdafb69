"""Tests that are code, and HumanEval, which has them, in a real sandbox."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nemo_gym.testing import BrowserLikeClient, client_for, example_row, says
from resources_servers.code_gen.app import CodeGenResourcesServer
from resources_servers.code_gen.human_eval import row_of
from tests.benchmarks import benchmark_rows

SQUARES = {
    "test_code": (
        "def check(candidate):\n"
        "    assert candidate(3) == (9, 3.0)\n"
        "    assert candidate(-2) == (4, -2.0)\n"
        "    numbers = [2]\n"
        "    assert candidate(numbers) == ([4], None) and numbers == [2, 'seen']\n"
        "    try:\n"
        "        candidate('x')\n"
        "    except KeyError:\n"
        "        return\n"
        "    raise AssertionError\n"
    ),
    "entry_point": "solve",
}
SOLUTION = """
def solve(n):
    if n == 'x':
        raise KeyError(n)
    if isinstance(n, list):
        n.append('seen')
        return [n[0] ** 2], None
    return n * n, float(n)
"""
FLAG = {"test_code": "def check(candidate):\n    assert candidate([1, 2]) == True\n", "entry_point": "solve"}


@pytest.fixture
async def environment() -> AsyncIterator[BrowserLikeClient]:
    boxes = {"auto": {"limits": {"wall_s": 8}}}
    async with client_for(
        CodeGenResourcesServer, unit_test_timeout_secs=2, warm_sandboxes=1, sandbox_provider=boxes
    ) as client:
        yield client


async def score(environment: BrowserLikeClient, tests: dict[str, str], code: str) -> dict[str, Any]:
    row = example_row(response=says(f"```python\n{code}\n```"), verifier_metadata={"unit_tests": tests})
    answer = await environment.post("/verify", json=row)
    assert answer.status == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


async def test_values_exceptions_and_changed_arguments_reach_the_tests(environment: BrowserLikeClient) -> None:
    record = await score(environment, SQUARES, SOLUTION)
    assert (record["reward"], record["result"]) == (1.0, [True])
    wrong = await score(environment, SQUARES, SOLUTION.replace("float(n)", "n + 0.5"))
    assert (wrong["reward"], wrong["result"], wrong["metadata"]["error"]) == (0.0, [-2], "AssertionError:")


@pytest.mark.parametrize(
    "code",
    [
        "class Same:\n    def __eq__(self, other): return True\ndef solve(n): return Same()",
        "class Same(list):\n    def __eq__(self, other): return True\ndef solve(n): return Same([0])",
        "class Same(int):\n    def __eq__(self, other): return True\ndef solve(n): return Same(0)",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "import os\ndef solve(n): os._exit(0)",
        "def solve(n): raise SystemExit(0)",
        "import builtins\nbuiltins.__import__ = None\nbuiltins.AssertionError = KeyError\ndef solve(n): return 0",
        "import os, signal\ndef solve(n): os.kill(os.getppid(), signal.SIGTERM)",
        "import os\nfor fd in range(3, 99):\n    try: os.write(fd, b'True' * 9)\n    except OSError: 0\nsolve = id",
        "import os\nopen(f'/proc/{os.getppid()}/mem', 'r+b')\nsolve = len",
        "import os\ntext = os.readlink(f'/proc/{os.getppid()}/fd/1')\nsolve = len",
        "import gc, sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n"
        "frame.f_globals['check'] = lambda c: None\ndef solve(n): return 0",
        "while True: pass",
        "def solve(n): return 'x' * 10**8",
        "def solve(n):\n    found = []\n    for _ in range(10**5): found = [found]\n    return found",
        "def other(n): return True",
        "",
    ],
)
async def test_no_program_passes_without_the_right_value(environment: BrowserLikeClient, code: str) -> None:
    record = await score(environment, FLAG, code or "pass")
    assert (record["reward"], len(record["result"])) == (0.0, 1), record["metadata"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_code": "def check(candidate:"}, "test_code is not valid Python"),
        ({"test_code": "assert True"}, "defines no `check"),
        ({"entry_point": "no name"}, "expected the name of a function"),
    ],
)
async def test_tests_that_say_nothing_are_refused(
    environment: BrowserLikeClient, change: dict[str, str], message: str
) -> None:
    row = example_row(response=says("```\npass\n```"), verifier_metadata={"unit_tests": {**FLAG, **change}})
    answer = await environment.post("/verify", json=row)
    assert (answer.status, message in answer.text) == (422, True), answer.text[:500]


async def test_a_problem_of_human_eval_has_its_helpers_on_both_sides(environment: BrowserLikeClient) -> None:
    problem = {
        "task_id": "Ours/0",
        "prompt": 'def shift(n):\n    return n + 5\n\n\ndef back(n):\n    """Undo shift."""\n',
        "canonical_solution": "    return n - 5\n",
        "test": "def check(candidate):\n    assert candidate(shift(3)) == 3\n",
        "entry_point": "back",
    }
    row = row_of(problem)
    tests = row["verifier_metadata"]["unit_tests"]
    assert (await score(environment, tests, "def back(n):\n    return n - (shift(0))"))["reward"] == 1.0
    cheat = "def shift(n):\n    return n\ndef back(n):\n    return n"
    assert (await score(environment, tests, cheat))["reward"] == 0.0


async def test_all_answers_of_human_eval_pass_and_an_empty_function_passes_none(
    environment: BrowserLikeClient,
) -> None:
    rows, turns = benchmark_rows("human_eval/human_eval"), asyncio.Semaphore(4)

    async def reward(row: dict[str, Any], text: str) -> float:
        async with turns:
            answer = await environment.post("/verify", json={**row, "response": says(text)})
            return float(answer.json()["reward"])

    right = await asyncio.gather(*(reward(row, row["gold_response"]) for row in rows))
    assert (len(rows), sum(right)) == (164, 164)
    names = [row["verifier_metadata"]["unit_tests"]["entry_point"] for row in rows]
    empty = [f"```python\ndef {name}(*args):\n    pass\n```" for name in names]
    assert sum(await asyncio.gather(*map(reward, rows, empty))) == 0
