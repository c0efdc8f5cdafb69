"""Trainers that do what they should not, or at a bad moment: a session does not hang, and loses no group."""

import asyncio
import itertools
import multiprocessing
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from nemo_gym.errors import ConfigError, RolloutError, SetupError, StartupError
from nemo_gym.training import CompleteGroup, RolloutSession, Source
from tests.polling import until
from tests.runtime.test_workers import adds_twice
from tests.stub_endpoint import Request, stub_endpoint
from tests.training.test_session import config_at, row_of, session_process


def numbers_of(groups: list[CompleteGroup]) -> list[int]:
    return sorted(group.row["initial_count"] for group in groups)


async def test_rows_and_keep_may_wait_for_the_trainer_and_call_its_session(tmp_path: Path) -> None:
    """As in a curriculum, whose next rows depend on the groups before."""
    async with stub_endpoint(adds_twice) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        next_rows = queue.SimpleQueue[int | None]()
        next_rows.put(0)

        def rows() -> Iterator[dict[str, Any]]:
            for number in iter(next_rows.get, None):
                assert stream.stats().get("complete", 0) == number
                yield row_of(number, expected=number + 4)

        def keep(_records: list[dict[str, Any]]) -> bool:
            return session.submit(row_of(50, expected=54)).result()["reward"] == 1.0 and bool(stream.state()["groups"])

        stream = session.groups({"slow": Source(rows()), "empty": Source([])}, group_size=2, keep=keep)
        taken: list[CompleteGroup] = []
        async for group in stream:
            taken.append(group)
            next_rows.put(len(taken) if len(taken) < 3 else None)
    assert numbers_of(taken) == [0, 1, 2]


async def test_a_wait_that_is_given_up_loses_nothing(tmp_path: Path) -> None:
    may_go_on = asyncio.Event()

    async def reply(request: Request) -> Any:
        await may_go_on.wait()
        return await adds_twice(request)

    async with stub_endpoint(reply) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        handle = session.submit(row_of(9, expected=13))
        stream = session.groups({"a": Source([row_of(number, expected=0) for number in range(4)])}, group_size=2)
        groups = aiter(stream)
        for waited in (lambda: handle, lambda: anext(groups), lambda: anext(groups)):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waited(), 0.3)
        may_go_on.set()
        assert numbers_of([group async for group in groups]) == [0, 1, 2, 3]
        assert (await handle)["reward"] == 1.0
    assert len(endpoint.requests) == 9 * 3
    assert stream.stats()["complete"] == 4, "also after the end of the session"


async def test_a_row_that_changes_after_it_was_submitted_is_played_as_it_was(tmp_path: Path) -> None:
    async with stub_endpoint(adds_twice) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        row, handles = row_of(0, expected=4), []
        for number in range(8):
            row["initial_count"] = number
            handles.append(session.submit(row))
        assert [(await handle)["reward"] for handle in handles] == [1.0] + [0.0] * 7


async def test_a_forked_process_cannot_use_the_session_and_does_not_disturb_it(tmp_path: Path) -> None:
    async with stub_endpoint(adds_twice) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        stream = session.groups({"a": Source([row_of(number, expected=0) for number in range(9)])}, group_size=2)
        groups = aiter(stream)
        await anext(groups)

        def in_child() -> None:
            refused = 0
            for use in (lambda: session.submit(row_of(0, expected=4)), session.pause, lambda: next(groups)):
                try:
                    use()
                except StartupError:
                    refused += 1
            groups.close()
            session.close()
            sys.exit(refused)

        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start()
        await asyncio.to_thread(child.join)
        assert child.exitcode == 3
        assert len([group async for group in groups]) == 8


async def test_pauses_end_though_the_process_dies(tmp_path: Path) -> None:
    async with stub_endpoint(adds_twice) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        await asyncio.to_thread(session.pause)
        handle = session.submit(row_of(0, expected=4))
        session_process().kill()
        await asyncio.wait_for(asyncio.to_thread(session.resume, version=1), 200)
        assert (await handle)["reward"] == 1.0


async def test_an_endpoint_that_refuses_all_requests_is_an_error_of_the_loop_and_drops_no_group(
    tmp_path: Path,
) -> None:
    async with (
        stub_endpoint(lambda _request: (401, {"error": "wrong key"})) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path)) as session,
    ):
        endless = (row_of(number, expected=0) for number in itertools.count())
        stream = session.groups({"a": Source(endless)}, group_size=2, max_in_flight=4)
        with pytest.raises(SetupError, match="401"):
            await anext(aiter(stream))
        stats = await asyncio.to_thread(stream.stats)
        assert stats["dropped"] == {}
        assert stream.state()["groups"][0][:3] == [0, "a", 0]


@pytest.mark.parametrize(
    ("row", "error"),
    [(row_of(0, expected=4, agent="nobody"), SetupError), ("no dict", ConfigError), ({"x": {1, 2}}, ConfigError)],
)
async def test_a_source_without_a_row_that_works_is_an_error(
    tmp_path: Path, row: Any, error: type[BaseException]
) -> None:
    async with stub_endpoint(adds_twice) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        with pytest.raises(error, match="'bad'"):
            await anext(aiter(session.groups({"bad": Source(itertools.repeat(row))}, group_size=2)))
        some_bad = [row, row_of(0, expected=4), row, row_of(1, expected=5), row]
        assert len([group async for group in session.groups({"a": Source(some_bad)}, group_size=2)]) == 2


async def test_versions_only_grow_and_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    async with stub_endpoint(adds_twice) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        session.set_version(np.int64(3))  # type: ignore[arg-type]
        assert (session.version, type(session.version)) == (3, int)
        with pytest.raises(ConfigError, match="only grow"):
            session.set_version(2)
        assert session.version == 3


async def test_options_may_be_paths_and_configurations_and_nothing_else(tmp_path: Path) -> None:
    async with stub_endpoint(adds_twice) as endpoint:
        config = config_at(endpoint.url, tmp_path)
        paths = [Path(path) for path in config.pop("config_paths")]
        journal = tmp_path / "journal.jsonl"
        async with RolloutSession({"config_paths": paths, **config}, journal=journal) as session:
            assert (await session.submit(row_of(0, expected=4)))["reward"] == 1.0
        assert journal.stat().st_size > 0
        loaded = OmegaConf.create({"config_paths": [str(path) for path in paths], **config})
        async with RolloutSession(loaded) as session:
            assert (await session.submit(row_of(0, expected=4)))["reward"] == 1.0
    with pytest.raises(ConfigError, match="function"):
        RolloutSession({"config_paths": [numbers_of]})


async def test_an_exception_in_the_loop_ends_its_rollouts_and_the_next_loop_goes_on(tmp_path: Path) -> None:
    rows = [row_of(number, expected=0) for number in range(6)]

    def first_loop(session: RolloutSession) -> tuple[int, Any]:
        stream = session.groups({"a": Source(rows)}, group_size=2, max_in_flight=4)
        try:
            for group in stream:
                raise LookupError(group.row["initial_count"])
        except LookupError as error:
            return error.args[0], stream.state()
        raise AssertionError

    async with stub_endpoint(adds_twice) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        first, state = await asyncio.to_thread(first_loop, session)
        rest = [group async for group in session.groups({"a": Source(rows)}, group_size=2, state=state)]
    assert sorted([first, *numbers_of(rest)]) == [0, 1, 2, 3, 4, 5]


async def test_many_rollouts_may_be_aborted_at_any_moment(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)

    async def reply(request: Request) -> Any:
        await asyncio.sleep(chance.uniform(0.0, 0.05))
        return await adds_twice(request)

    async with stub_endpoint(reply) as endpoint, RolloutSession(config_at(endpoint.url, tmp_path)) as session:
        handles = [session.submit(row_of(number % 9, expected=number % 9 + 4)) for number in range(60)]
        for number, handle in enumerate(handles):
            if number % 3:
                handle.abort(keep_partial=number % 3 == 1)
                handle.abort()
            if number % 10 == 0:
                await asyncio.sleep(0.02)
        ended = await asyncio.gather(*handles, return_exceptions=True)
        codes = [each.code if isinstance(each, RolloutError) else "scored" for each in ended]
        assert codes[::3] == ["scored"] * 20
        assert {*codes} <= {"scored", "aborted"}
        resumed = [
            session.submit(each.row, resume=each.partial)
            for each in ended
            if isinstance(each, RolloutError) and each.partial.steps
        ]
        assert {(await handle)["reward"] for handle in resumed} <= {1.0}
        await until(lambda: not session._handles)
