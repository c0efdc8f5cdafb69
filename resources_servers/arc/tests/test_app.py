"""Two attempts for each test input, in every form of a grid, and the answers of all tasks."""

from typing import Any

import pytest

from nemo_gym.testing import client_for, example_row, rows_of, says
from resources_servers.arc.app import ArcResourcesServer, attempts_in, grid_in
from tests.benchmarks import benchmark_rows

ROWS = rows_of("resources_servers/arc/data/example.jsonl")
RIGHT, WRONG, SMALL = "```test 1\n1 2\n3 4\n```", "```test 1\n1 2\n3 5\n```", "```test 1\n1\n```"
SECOND = "```test 2\n7\n```"


def fields_of(*answers: list[list[int]]) -> dict[str, Any]:
    return example_row("Apply the rule.", answers=list(answers))


@pytest.mark.parametrize(
    ("reply", "reward", "cells"),
    [
        (RIGHT, 1.0, 1.0),
        (f"{WRONG}\nOr:\n{RIGHT}", 1.0, 1.0),
        (f"{WRONG}{RIGHT}", 0.0, 0.75),
        (f"{WRONG}\n{WRONG}\n{RIGHT}", 0.0, 0.75),
        (f"```test 1\nnothing\n```\n{WRONG}\n{RIGHT}", 0.0, 0.75),
        (WRONG, 0.0, 0.75),
        (SMALL, 0.0, 0.0),
        ("```\n12\n34\n```", 1.0, 1.0),
        ("```json\n[[1, 2],\n [3, 4]]\n```", 1.0, 1.0),
        ("1 2\n3 4", 0.0, 0.0),
        ("```test 1\n1 2\n3 4", 0.0, 0.0),
        ("```test 2\n1 2\n3 4\n```", 0.0, 0.0),
        (f"<think>{RIGHT}</think>", 0.0, 0.0),
        (f"<!--\n{RIGHT}\n-->", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
async def test_one_of_the_first_two_attempts_is_the_grid(reply: str, reward: float, cells: float) -> None:
    async with client_for(ArcResourcesServer) as environment:
        row = {**fields_of([[1, 2], [3, 4]]), "response": says(reply)}
        record = (await environment.post("/verify", json=row)).json()
    assert (record["reward"], record["cells"]) == (reward, cells)


async def test_every_test_input_needs_its_grid() -> None:
    async with client_for(ArcResourcesServer) as environment:
        row = fields_of([[1, 2], [3, 4]], [[7]])
        for reply, reward in ((f"{RIGHT}\n{SECOND}", 1.0), (RIGHT, 0.0), (f"{RIGHT}\n```\n7\n```", 0.0)):
            record = (await environment.post("/verify", json={**row, "response": says(reply)})).json()
            assert record["reward"] == reward, reply
        unsolvable = {**fields_of([[10]]), "response": says("")}
        assert (await environment.post("/verify", json=unsolvable)).status == 422


@pytest.mark.parametrize(
    "lines",
    [["1 2", "3"], ["1 x"], ["12 " * 20], ["1"] * 31, ["[[1], 2]"], ["[[1"], ["-1"], ["٤"], ["[[1.0]]"], [], ["[[]]"]],
)
def test_what_is_no_grid_is_none(lines: list[str]) -> None:
    assert grid_in(lines) is None


def test_a_long_reply_is_read_in_one_pass() -> None:
    assert len(list(attempts_in(f"{SMALL}\n" * 50_000 + "`" * 10**6, 1))) == 50_000


@pytest.mark.parametrize(
    ("name", "count"),
    [("arc_agi_1/arc_agi_1", 400), ("arc_agi_1/train", 400), ("arc_agi_2/arc_agi_2", 120), ("arc_agi_2/train", 1000)],
)
async def test_the_answers_of_all_tasks_are_right(name: str, count: int) -> None:
    rows = benchmark_rows(name)
    assert len(rows) == count
    async with client_for(ArcResourcesServer) as environment:
        server: Any = environment.server
        for row in rows:
            gold = {**row, "response": says(ArcResourcesServer.gold_response(row))}
            body = server.endpoints()[1].arguments.model_validate(gold)
            assert (await server.verify(body)).reward == 1.0, row["id"]


async def test_the_examples_can_be_solved() -> None:
    async with client_for(ArcResourcesServer) as environment:
        for row in ROWS:
            for reply, reward in ((ArcResourcesServer.gold_response(row), 1.0), ("I cannot tell.", 0.0)):
                record = (await environment.post("/verify", json={**row, "response": says(reply)})).json()
                assert record["reward"] == reward
