"""Every `generate_rows`: the same rows each time, all different, each with a gold response that is rewarded."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.gold import guessed_golds
from nemo_gym.analysis.reverify import verified
from nemo_gym.base_resources_server import BaseRunRequest, SimpleResourcesServer
from nemo_gym.client.call_log import Call
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.runtime.class_loader import load_server_class
from nemo_gym.testing import response_of, running_servers, server_spec, tool_output

FOLDERS = sorted(file.parent for file in PARENT_DIR.glob("resources_servers/*/generate.py"))
EXPECTED = {
    *("workplace_assistant", "math_advanced_calculations", "calendar", "mcqa", "math_with_judge"),
    *("structured_outputs", "instruction_following", "math_with_code", "code_gen"),
    *("example_multi_step", "example_simple_weather", "example_stateful_counter"),
}
SETTINGS: dict[str, dict[str, Any]] = {"math_with_judge": {"should_use_judge": False}}
DIFFICULTIES = range(1, 6)
COUNT = 4

each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def rows_of(folder: Path, seed: int, count: int, difficulty: Any) -> list[dict[str, Any]]:
    generate = import_module(f"resources_servers.{folder.name}.generate").generate_rows
    made: Iterator[dict[str, Any]] = generate(seed, count, difficulty)
    return list(made)


def test_what_can_be_generated_is() -> None:
    assert {folder.name for folder in FOLDERS} >= EXPECTED


@each_folder
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_same_seed_gives_the_same_bytes_and_no_row_twice(folder: Path, difficulty: int) -> None:
    first, again = (json.dumps(rows_of(folder, 5, 30, difficulty)) for _ in range(2))
    assert first == again
    assert json.dumps(rows_of(folder, 6, 30, difficulty)) != first
    prompts = {json.dumps(row["responses_create_params"]["input"]) for row in json.loads(first)}
    assert len(prompts) == 30
    for row in json.loads(first):
        BaseRunRequest.model_validate(row)


@each_folder
def test_the_easiest_difficulty_is_the_default(folder: Path) -> None:
    assert rows_of(folder, 5, 3, None) == rows_of(folder, 5, 3, 1)


@each_folder
async def test_the_gold_response_has_the_full_reward(folder: Path) -> None:
    kind = load_server_class("resources_servers", folder, "app.py")
    assert issubclass(kind, SimpleResourcesServer)
    async with environment(folder.name) as client:
        for difficulty in DIFFICULTIES:
            for row in rows_of(folder, 11, COUNT, difficulty):
                items = kind.gold_response(row) or guessed_golds(row)[0].items
                assert isinstance(items, list)
                assert await reward_of(client, folder.name, row, items) == 1.0, row


@pytest.mark.parametrize(
    ("name", "gold"), [("math_with_judge", "expected_answer"), ("math_with_code", "expected_result")]
)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_no_answer_that_needs_no_thought_is_often_right(name: str, gold: str, difficulty: int) -> None:
    rows = rows_of(PARENT_DIR / "resources_servers" / name, 3, 500, difficulty)
    solved = Counter(row[gold] for row in rows)
    for row in rows:
        question = row.get("question") or row["responses_create_params"]["input"][-1]["content"]
        numbers = [int(digits) for digits in re.findall(r"\d+", question)]
        found = {
            "first": numbers[0],
            "last": numbers[-1],
            "largest": max(numbers),
            "smallest": min(numbers),
            "sum": sum(numbers),
            "product": math.prod(numbers),
            "range": max(numbers) - min(numbers),
            "last two": numbers[-1] * numbers[-2],
            "first two": numbers[0] * numbers[1],
            "half": max(numbers) // 2,
            "quotient": max(numbers) // max(1, min(numbers)),
            "below": max(numbers) - 1,
            "last below": numbers[-1] - 1,
        }
        solved.update(strategy for strategy, number in found.items() if str(number) == row[gold])
    assert {strategy: count for strategy, count in solved.items() if count >= 0.05 * len(rows)} == {}


def environment(name: str) -> AbstractAsyncContextManager[ServerClient]:
    return running_servers([server_spec(name, "resources_servers", name, domain="other", **SETTINGS.get(name, {}))])


async def reward_of(client: ServerClient, name: str, row: dict[str, Any], items: list[dict[str, Any]]) -> float:
    made = [
        Call(name=f"/{item['name']}", request=item["arguments"]) for item in items if item["type"] == "function_call"
    ]

    def played(outputs: list[str]) -> dict[str, Any]:
        ids = [item["call_id"] for item in items if item["type"] == "function_call"]
        answers = [tool_output(output, call_id=call_id) for output, call_id in zip(outputs, ids, strict=True)]
        return response_of(*items, *answers)

    found = await verified(client, name, row, made, played, timeout_s=120, what=name)
    reward: float = found.record["reward"]
    return reward
