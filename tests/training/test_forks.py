"""Partial rollouts and forks: a prefix of a rollout's calls, continued in an environment brought back there."""

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.client.call_log import Call
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.testing import calls, response_of
from nemo_gym.training import PartialRollout, RolloutSession
from tests.polling import until
from tests.runtime.test_workers import adds_twice
from tests.stub_endpoint import Request, stub_endpoint
from tests.training.test_session import config_at, row_of, session_process

BINGO = '''
"""Each draw is another one, so no earlier step can be reached again by drawing."""
import itertools
from nemo_gym.base_resources_server import SessionState, SimpleResourcesServer, tool, BaseVerifyRequest

numbers = itertools.count()

class Drawn(SessionState):
    last: int = -1

class BingoResourcesServer(SimpleResourcesServer):
    restore = RESTORE

    @tool
    async def increment_counter(self, session: Drawn) -> int:
        """Draw a number."""
        session.last = next(numbers)
        return session.last

    async def verify(self, body: BaseVerifyRequest, session: Drawn) -> float:
        return float(session.last)
'''


def outputs_in(request: Request) -> int:
    return sum(item.get("type") == "function_call_output" for item in request.body["input"])


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_a_fork_equals_a_rerun_byte_for_byte(tmp_path: Path, num_workers: int) -> None:
    async with (
        stub_endpoint(adds_twice) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, num_workers=num_workers)) as session,
    ):
        first = session.submit(row_of(5, expected=9), keep_calls=True)
        record = orjson.dumps(await first)
        assert first.played is not None
        assert first.played.steps == 3
        for step in range(4):
            asked = len(endpoint.requests)
            forks = session.fork(first, step=step, n=2)
            assert [orjson.dumps(await fork) for fork in forks] == [record] * 2
            assert [outputs_in(request) for request in endpoint.requests[asked:]].count(2) == 2 * (step < 3)
            assert len(endpoint.requests) - asked == 2 * (3 - step), "models are not asked for the prefix"
        with pytest.raises(ConfigError):
            session.fork(first, step=4)


async def test_forks_take_another_way_from_the_state_of_their_step(tmp_path: Path) -> None:
    """The counter has 5 + 2 when they begin, whatever each of them does then."""
    is_fork = False

    async def reply(request: Request) -> Any:
        if is_fork and outputs_in(request) == 1:
            return response_of(calls("increment_counter", '{"count": 10}', call_id="other"))
        return await adds_twice(request)

    async with stub_endpoint(reply) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        first = session.submit(row_of(5, expected=17), keep_calls=True)
        assert (await first)["reward"] == 0.0
        is_fork = True
        forks = session.fork(first, step=1, n=8)
        assert [(await fork)["reward"] for fork in forks] == [1.0] * 8


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_an_aborted_rollout_goes_on_under_a_new_policy(tmp_path: Path, num_workers: int) -> None:
    may_go_on = asyncio.Event()

    async def reply(request: Request) -> Any:
        if outputs_in(request) == 1:
            await may_go_on.wait()
        return await adds_twice(request)

    async with (
        stub_endpoint(reply) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, num_workers=num_workers)) as session,
    ):
        handle = session.submit(row_of(0, expected=4))
        await until(lambda: len(endpoint.requests) == 2)
        handle.abort(keep_partial=True)
        with pytest.raises(RolloutError) as aborted:
            await handle
        partial: PartialRollout = aborted.value.partial
        assert (aborted.value.code, partial.steps, partial.row) == ("aborted", 1, handle.row)
        session.set_version(1)
        may_go_on.set()
        assert (await session.submit(partial.row, resume=partial))["reward"] == 1.0
        assert [outputs_in(request) for request in endpoint.requests] == [0, 1, 1, 2]


def bingo(folder: Path, monkeypatch: pytest.MonkeyPatch, restore: str) -> dict[str, Any]:
    monkeypatch.setenv(EXTRA_ROOTS_ENV_VAR, str(folder))
    (folder / "resources_servers" / "bingo").mkdir(parents=True)
    (folder / "resources_servers" / "bingo" / "app.py").write_text(BINGO.replace("RESTORE", restore))
    return {"resources_servers": {"bingo": {"entrypoint": "app.py", "domain": "agent"}}}


@pytest.mark.parametrize("restore", ['"none"', "None", '"replay"'])
@pytest.mark.parametrize("num_workers", [1, 2])
async def test_an_environment_that_is_not_brought_back_gives_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restore: str, num_workers: int
) -> None:
    """It says so itself, or its tools reply something else than before."""
    server = bingo(tmp_path, monkeypatch, restore)
    async with (
        stub_endpoint(adds_twice) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, counter=server, num_workers=num_workers)) as session,
    ):
        first = session.submit(row_of(0, expected=4), keep_calls=True)
        await first
        asked = len(endpoint.requests)
        (fork,) = session.fork(first, step=2)
        with pytest.raises(RolloutError) as failed:
            await fork
        assert failed.value.code == "not_restored"
        assert len(endpoint.requests) == asked
        (from_start,) = session.fork(first, step=0)
        await from_start


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_an_environment_that_copies_its_state_is_brought_back_without_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    server = bingo(tmp_path, monkeypatch, '"copy"')
    async with (
        stub_endpoint(adds_twice) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, counter=server, num_workers=num_workers)) as session,
    ):
        first, other = (session.submit(row_of(0, expected=4), keep_calls=True) for _ in range(2))
        record, _ = await first, await other
        drawn = [int(item["output"]) for item in record["response"]["output"] if "output" in item]
        assert record["reward"] == drawn[1]
        at_end = session.fork(first, step=2, n=64)
        assert [await fork for fork in at_end] == [record] * 64
        rewards = [(await fork)["reward"] for fork in session.fork(first, step=1, n=4)]
        assert len({drawn[0], drawn[1], *rewards}) == 6, "each draws its second number itself"
        session_process().kill()
        assert (await session.submit(row_of(0, expected=4)))["reward"] >= 0
        (gone,) = session.fork(first, step=1)
        with pytest.raises(RolloutError) as failed:
            await gone
        assert failed.value.code == "not_restored", "the copy is gone, and the tool draws another number"


THINK = {"instructions": "Think first."}


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_a_fork_may_go_on_with_another_prompt(tmp_path: Path, num_workers: int) -> None:
    async with (
        stub_endpoint(adds_twice) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, num_workers=num_workers)) as session,
    ):
        first = session.submit(row_of(5, expected=9), keep_calls=True)
        record = await first
        assert first.played is not None
        for step in range(3):
            asked = len(endpoint.requests)
            found = [await fork for fork in session.fork(first, step=step, n=2, responses_create_params=THINK)]
            assert [each["reward"] for each in found] == [1.0] * 2
            assert [each["response"]["output"] for each in found] == [record["response"]["output"]] * 2
            assert {each["responses_create_params"]["instructions"] for each in found} == {"Think first."}
            made = endpoint.requests[asked:]
            assert sorted(map(outputs_in, made)) == sorted([*range(step, 3)] * 2)
            assert {request.body["instructions"] for request in made} == {"Think first."}
        partial = first.played.at(2).with_request({"input": "Go on."}).with_request(THINK)
        assert (await session.submit(partial.row, resume=partial))["reward"] == 1.0
        assert endpoint.requests[-1].body["input"][0]["content"] == "Go on."


async def test_a_fork_with_another_prompt_is_not_played_on_another_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = bingo(tmp_path, monkeypatch, '"replay"')
    async with (
        stub_endpoint(adds_twice) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, counter=server)) as session,
    ):
        first = session.submit(row_of(0, expected=4), keep_calls=True)
        await first
        asked = len(endpoint.requests)
        for step, changes in ((2, THINK), (1, {"tools": []}), (2, {"tools": []})):  # its draws differ, or are refused
            (fork,) = session.fork(first, step=step, responses_create_params=changes)
            with pytest.raises(RolloutError) as failed:
                await fork
            assert (failed.value.code, len(endpoint.requests)) == ("not_restored", asked)


def test_a_rollout_whose_calls_cannot_be_told_apart_keeps_its_prompt() -> None:
    """Two calls of one model at the same time are known by their requests only."""
    times = [(0.0, 1.0), (1.0, 1.0), (1.5, 1.0)]
    lines = [
        Call(
            name=f"policy/v1/responses {number} 1", kind="model", status=200, started_at=start, seconds=seconds
        ).line()
        for number, (start, seconds) in enumerate(times)
    ]
    played = PartialRollout(row_of(0, expected=4), b"".join(lines))
    assert played.at(2).with_request(THINK).steps == 2
    with pytest.raises(ConfigError):
        played.with_request(THINK)
    given = [{"type": "function_call_output", "call_id": "1", "output": "2"}]
    with pytest.raises(ConfigError):
        played.at(2).with_request({"input": given})


async def test_a_prefix_of_another_row_gives_no_result(tmp_path: Path) -> None:
    async with stub_endpoint(adds_twice) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        first = session.submit(row_of(0, expected=4), keep_calls=True)
        await first
        assert first.played is not None
        other = json.loads(json.dumps(row_of(0, expected=4)))
        other["responses_create_params"]["input"][0]["content"] = "Something else."
        with pytest.raises(RolloutError) as failed:
            await session.submit(other, resume=first.played.at(1))
        assert failed.value.code == "not_restored"
