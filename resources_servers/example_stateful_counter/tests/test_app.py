import re
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.testing import BrowserLikeClient, client_for, example_row, response_of, rows_of, says
from resources_servers.example_stateful_counter.app import StatefulCounterResourcesServer
from tests.example_rows import row_files


async def reward(environment: BrowserLikeClient, *, expected: int) -> float:
    """What the session scores if this is the count that its row expects."""
    answer = await environment.post("/verify", json=example_row(response=says("Done."), expected_count=expected))
    assert answer.status == 200, answer.text
    value: float = answer.json()["reward"]
    return value


async def add(environment: BrowserLikeClient, count: Any) -> int:
    """Call the tool; the status it answers with."""
    return (await environment.post("/increment_counter", json={"count": count})).status


async def count_of(environment: BrowserLikeClient) -> int:
    count: int = (await environment.post("/get_counter_value", json={})).json()["count"]
    return count


@pytest.mark.parametrize(
    ("initial", "added", "expected", "score"),
    [
        (3, [1, 2], 6, 1.0),
        (3, [1, 2], 5, 0.0),
        (3, [], 3, 1.0),
        (0, [], 0, 1.0),
        (5, [-7], -2, 1.0),
        (-1, [1], 0, 1.0),
        (0, [2**62, 2**62, 2**62], 3 * 2**62, 1.0),
    ],
)
async def test_the_counter_must_equal_what_the_row_expects(
    initial: int, added: list[int], expected: int, score: float
) -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        seeded = await environment.post("/seed_session", json=example_row(initial_count=initial, expected_count=99))
        assert (seeded.status, seeded.json()) == (200, {})
        for count in added:
            assert await add(environment, count) == 200
        assert await reward(environment, expected=expected) == score


async def test_the_tools_give_the_documented_answers() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        assert (await environment.post("/increment_counter", json={"count": 2})).text == '{"success":true}'
        assert (await environment.post("/get_counter_value", json={})).text == '{"count":2}'


@pytest.mark.parametrize(
    ("count", "status", "value"),
    [("2", 200, 2), (-3, 200, -3), (1.0, 200, 1), (1.5, 422, 0), ("two", 422, 0), (True, 422, 0)],
)
async def test_a_count_is_a_whole_number_or_the_text_of_one(count: Any, status: int, value: int) -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        assert await add(environment, count) == status
        assert await count_of(environment) == value


async def test_increment_needs_a_count() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        for body in (b"", b"{}", b'{"count": null}', b"no JSON"):
            assert (await environment.post("/increment_counter", content=body)).status == 422


async def test_reading_the_counter_needs_no_body() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        await add(environment, 4)
        for body in (None, b"", b"{}"):
            assert (await environment.post("/get_counter_value", content=body)).json() == {"count": 4}


async def test_a_counter_beyond_64_bits_can_be_read() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        for _ in range(3):
            await add(environment, 2**63 - 1)
        assert (await environment.post("/get_counter_value")).text == f'{{"count":{3 * (2**63 - 1)}}}'


@pytest.mark.parametrize(
    "row", [example_row(), example_row(initial_count=None), example_row(initial_count="many"), {}]
)
async def test_seeding_needs_an_initial_count(row: dict[str, Any]) -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        assert (await environment.post("/seed_session", json=row)).status == 422


async def test_verifying_needs_an_expected_count() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        assert (await environment.post("/verify", json=example_row(response=says("Done.")))).status == 422


async def test_a_second_seed_does_not_reset() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        await environment.post("/seed_session", json=example_row(initial_count=0, expected_count=0))
        await add(environment, 5)
        await environment.post("/seed_session", json=example_row(initial_count=100, expected_count=0))
        assert await reward(environment, expected=5) == 1.0


async def test_a_seed_after_the_first_tool_call_does_not_set() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        assert await count_of(environment) == 0
        await environment.post("/seed_session", json=example_row(initial_count=100, expected_count=0))
        assert await count_of(environment) == 0


async def test_a_tool_call_in_an_unseeded_session_starts_at_zero() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        await add(environment, 2)
        assert await reward(environment, expected=2) == 1.0


async def test_reading_alone_makes_the_counter_zero() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        assert await count_of(environment) == 0
        assert await reward(environment, expected=0) == 1.0


async def test_a_session_never_touched_scores_nothing_even_if_zero_is_expected() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        assert await reward(environment, expected=0) == 0.0


async def test_two_clients_do_not_see_each_others_counter() -> None:
    async with client_for(StatefulCounterResourcesServer) as first:
        second = first.another()
        await first.post("/seed_session", json=example_row(initial_count=1, expected_count=0))
        await second.post("/seed_session", json=example_row(initial_count=10, expected_count=0))
        await add(first, 1)
        assert (await count_of(first), await count_of(second)) == (2, 10)
        assert await reward(second, expected=2) == 0.0


async def test_without_the_cookies_of_the_rollout_the_counter_is_not_found() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        await environment.post("/seed_session", json=example_row(initial_count=3, expected_count=0))
        assert await reward(environment.another(), expected=3) == 0.0


async def test_a_refused_call_keeps_the_session() -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        await environment.post("/seed_session", json=example_row(initial_count=3, expected_count=0))
        assert await add(environment, 1.5) == 422
        assert await reward(environment, expected=3) == 1.0


@pytest.mark.parametrize("response", [response_of(), says("The counter stands at 99.")])
async def test_the_output_is_not_read(response: dict[str, Any]) -> None:
    async with client_for(StatefulCounterResourcesServer) as environment:
        await environment.post("/seed_session", json=example_row(initial_count=3, expected_count=0))
        row = example_row(response=response, initial_count=3, expected_count=3)
        scored = (await environment.post("/verify", json=row)).json()
    assert scored["reward"] == 1.0
    assert (scored["final_state"], scored["expected_state"]) == ({"count": 3}, {"count": 3})


@pytest.mark.parametrize(
    "path",
    row_files("example_stateful_counter"),
)
async def test_rows_expect_what_their_prompt_adds(path: Path) -> None:
    for row in rows_of(path):
        prompt = row["responses_create_params"]["input"][-1]["content"]
        added = [int(number) for number in re.findall(r"(?i)\badd (-?\d+)", prompt)]
        assert row["expected_count"] == row["initial_count"] + sum(added)
        async with client_for(StatefulCounterResourcesServer) as environment:
            await environment.post("/seed_session", json=row)
            for count in added:
                await add(environment, count)
            answer = await environment.post("/verify", json={**row, "response": says("Done.")})
        assert answer.json()["reward"] == 1.0
