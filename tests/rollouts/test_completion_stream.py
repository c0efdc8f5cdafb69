"""Rollouts for a trainer: in the order in which they finish, bounded, cancellable, from async and from plain code."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator

import pytest

from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.completion_stream import CompletionOrderStream, iter_completed_sync
from tests.polling import until


class Gates:
    """Rollouts that end when a test says so. A row is its name; one that starts with "bad" fails."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self._open: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def run(self, row: str) -> str:
        self.started.append(row)
        try:
            await self._open[row].wait()
        except asyncio.CancelledError:
            self.cancelled.append(row)
            raise
        if row.startswith("bad"):
            raise RolloutError("model", row)
        return row

    def open(self, *rows: str) -> None:
        for row in rows:
            self._open[row].set()


async def at_once(row: str) -> str:
    if row.startswith("bad"):
        raise RolloutError("model", row)
    return row


async def test_futures_are_settled_in_the_order_of_finishing() -> None:
    gates = Gates()
    futures = list(CompletionOrderStream(["a", "b", "c"], gates.run, parallel=3))
    for future, row in zip(futures, ["b", "c", "a"], strict=True):
        gates.open(row)
        assert await future == row


async def test_all_futures_can_be_taken_before_any_is_awaited() -> None:
    futures = list(CompletionOrderStream(map(str, range(10)), at_once, parallel=2))
    assert sorted(await asyncio.gather(*futures)) == [str(number) for number in range(10)]


async def test_rows_are_taken_only_as_places_get_free() -> None:
    taken = finished = most_ahead = 0

    def rows() -> Iterator[str]:
        nonlocal taken, most_ahead
        for number in range(30):
            taken += 1
            most_ahead = max(most_ahead, taken - finished)
            yield str(number)

    for future in CompletionOrderStream(rows(), at_once, parallel=4):
        await future
        finished += 1
    assert finished == 30
    assert most_ahead <= 5


async def test_a_failure_is_raised_where_it_is_awaited_and_the_others_go_on() -> None:
    gates = Gates()
    futures = list(CompletionOrderStream(["a", "bad", "c"], gates.run, parallel=3))
    gates.open("bad")
    with pytest.raises(RolloutError, match="bad"):
        await futures[0]
    gates.open("a", "c")
    assert {await futures[1], await futures[2]} == {"a", "c"}


def broken_after(*rows: str) -> Iterator[str]:
    yield from rows
    raise ValueError("no more rows")


async def test_rows_that_break_off_are_an_error_after_what_came_before() -> None:
    futures = iter(CompletionOrderStream(broken_after("a", "b"), at_once, parallel=2))
    assert [await next(futures), await next(futures)] == ["a", "b"]
    with pytest.raises(ValueError, match="no more rows"):
        next(futures)


def test_plain_code_learns_of_rows_that_break_off() -> None:
    futures = iter_completed_sync(broken_after("a", "b"), at_once, parallel=2)
    assert {next(futures).result(), next(futures).result()} == {"a", "b"}
    with pytest.raises(ValueError, match="no more rows"):
        next(futures)


async def test_cancelling_ends_what_runs() -> None:
    gates = Gates()
    stream = CompletionOrderStream(map(str, range(100)), gates.run, parallel=7)
    futures = iter(stream)
    next(futures)
    await until(lambda: len(gates.started) == 7)
    stream.cancel()
    await until(lambda: len(gates.cancelled) == 7)
    assert len(gates.started) == 7


async def test_closing_settles_the_futures_of_rows_that_were_not_begun() -> None:
    stream = iter(CompletionOrderStream(map(str, range(5)), Gates().run, parallel=2))
    futures = [next(stream) for _ in range(4)]
    stream.close()  # type: ignore[attr-defined]
    ended = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended)


async def test_closing_is_quiet_about_rows_that_broke_off() -> None:
    stream = iter(CompletionOrderStream(broken_after("a"), Gates().run, parallel=2))
    future = next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert future.cancelled()


def test_plain_code_gets_settled_futures() -> None:
    futures = list(iter_completed_sync(["a", "bad", "c"], at_once, parallel=3))
    assert all(future.done() for future in futures)
    failed = [future for future in futures if future.exception()]
    assert [type(future.exception()) for future in failed] == [RolloutError]
    assert {future.result() for future in futures if future not in failed} == {"a", "c"}


def test_plain_code_may_stop_early() -> None:
    run = Gates()

    async def first_only(row: str) -> str:
        if row == "0":
            return row
        return await run.run(row)

    futures = iter_completed_sync(map(str, range(1000)), first_only, parallel=3)
    assert next(futures).result() == "0"
    futures.close()  # type: ignore[attr-defined]
    assert set(run.cancelled) == set(run.started)


async def test_asking_too_early_says_to_await() -> None:
    async def run(row: int) -> int:
        await asyncio.sleep(0)
        return row

    (future,) = iter(CompletionOrderStream([7], run, parallel=1))
    with pytest.raises(asyncio.InvalidStateError, match="write `await future`"):
        future.result()
    assert await future == 7
    assert future.result() == 7
