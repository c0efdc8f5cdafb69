"""Rollouts for a trainer: in the order in which they finish, bounded, cancellable, from async and from plain code."""

import asyncio
from collections.abc import Iterator

import orjson
import pytest

from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.completion_stream import CompletionOrderStream, iter_completed_sync
from nemo_gym.rollouts.stragglers import ENOUGH, DurationPercentiles, with_straggler_policy
from nemo_gym.rollouts.types import NoResult, Outcome, Row, RowId, Scored


async def sleeper(seconds: float) -> float:
    if seconds < 0:
        raise RolloutError("model", "below zero")
    await asyncio.sleep(seconds)
    return seconds


async def test_futures_are_settled_in_the_order_of_finishing() -> None:
    assert [await future for future in CompletionOrderStream([0.06, 0.02, 0.04], sleeper, parallel=3)] == [
        0.02,
        0.04,
        0.06,
    ]


async def test_all_futures_can_be_taken_before_any_is_awaited() -> None:
    futures = list(CompletionOrderStream([0.01] * 10, sleeper, parallel=2))
    assert await asyncio.gather(*futures) == [0.01] * 10


async def test_rows_are_taken_only_as_places_get_free() -> None:
    taken = finished = most_ahead = 0

    def rows() -> Iterator[float]:
        nonlocal taken, most_ahead
        for _ in range(30):
            taken += 1
            most_ahead = max(most_ahead, taken - finished)
            yield 0.001

    for future in CompletionOrderStream(rows(), sleeper, parallel=4):
        await future
        finished += 1
    assert finished == 30
    assert most_ahead <= 5


async def test_a_failure_is_raised_where_it_is_awaited_and_the_others_go_on() -> None:
    results = []
    for future in CompletionOrderStream([0.01, -1.0, 0.02], sleeper, parallel=3):
        try:
            results.append(await future)
        except RolloutError as error:
            results.append(error.cause)  # type: ignore[arg-type]
    assert results == ["model", 0.01, 0.02]


def broken_after(*seconds: float) -> Iterator[float]:
    yield from seconds
    raise ValueError("no more rows")


async def test_rows_that_break_off_are_an_error_after_what_came_before() -> None:
    futures = iter(CompletionOrderStream(broken_after(0.01, 0.03), sleeper, parallel=2))
    assert [await next(futures), await next(futures)] == [0.01, 0.03]
    with pytest.raises(ValueError, match="no more rows"):
        next(futures)


def test_plain_code_learns_of_rows_that_break_off() -> None:
    futures = iter_completed_sync(broken_after(0.01, 0.03), sleeper, parallel=2)
    assert [next(futures).result(), next(futures).result()] == [0.01, 0.03]
    with pytest.raises(ValueError, match="no more rows"):
        next(futures)


async def test_cancelling_ends_what_runs() -> None:
    cancelled = 0

    async def endless(_row: int) -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    stream = CompletionOrderStream(range(100), endless, parallel=7)
    futures = iter(stream)
    next(futures)
    await asyncio.sleep(0.01)
    stream.cancel()
    await asyncio.sleep(0.01)
    assert cancelled == 7


async def test_closing_settles_the_futures_of_rows_that_were_not_begun() -> None:
    stream = iter(CompletionOrderStream([60.0] * 5, sleeper, parallel=2))
    futures = [next(stream) for _ in range(4)]
    stream.close()  # type: ignore[attr-defined]
    ended = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 5)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended)


async def test_closing_is_quiet_about_rows_that_broke_off() -> None:
    stream = iter(CompletionOrderStream(broken_after(0.01), sleeper, parallel=2))
    next(stream)
    stream.close()  # type: ignore[attr-defined]


def test_plain_code_gets_settled_futures() -> None:
    futures = list(iter_completed_sync([0.06, -1.0, 0.03], sleeper, parallel=3))
    assert all(future.done() for future in futures)
    assert isinstance(futures[0].exception(), RolloutError)
    assert [future.result() for future in futures[1:]] == [0.03, 0.06]


def test_plain_code_may_stop_early() -> None:
    futures = iter_completed_sync([0.001] * 1000, sleeper, parallel=3)
    assert next(futures).result() == 0.001
    futures.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("action", "expected"), [("hedge", Scored), ("give_up", NoResult)])
async def test_a_straggler_is_hedged_or_given_up(action: str, expected: type) -> None:
    tries = 0

    async def run(row: Row) -> Outcome:
        nonlocal tries
        tries += 1
        await asyncio.sleep(60 if tries == 1 else 0.001)
        return Scored(row.id, b'{"reward":1}', seconds=0.01)

    pace = DurationPercentiles()
    for _ in range(ENOUGH):
        pace.add(0.01)
    run_watched = with_straggler_policy(run, pace=pace, percentile=95, action=action)  # type: ignore[arg-type]
    outcome = await asyncio.wait_for(run_watched(Row(RowId(0, 0, ""), "agent", b"{}")), 10)
    assert isinstance(outcome, expected)


async def test_giving_up_the_slowest_does_not_make_ever_more_of_them() -> None:
    """Were only the quick ones to set the pace, each one given up would make the next more likely to be."""
    pace = DurationPercentiles()
    for number in range(100):
        pace.add(number / 1000)

    async def run(row: Row) -> Outcome:
        await asyncio.sleep(60)
        return Scored(row.id, b'{"reward":1}')

    run_watched = with_straggler_policy(run, pace=pace, percentile=50, action="give_up")
    before = pace.percentile(50)
    rows = (Row(RowId(number, 0, ""), "agent", b'{"a":1}') for number in range(100))
    outcomes = await asyncio.gather(*map(run_watched, rows))
    assert before is not None
    assert (pace.percentile(50) or 0) >= before
    assert (pace.percentile(25) or 0) > before / 2
    for outcome in outcomes:
        assert isinstance(outcome, NoResult)
        assert outcome.started_at > 0
        assert outcome.seconds >= before
        assert orjson.loads(outcome.line())["row"] == {"a": 1}


def test_the_pace_is_that_of_the_latest() -> None:
    pace = DurationPercentiles()
    assert pace.percentile(50) is None
    for number in range(5000):
        pace.add(float(number))
    assert pace.percentile(50) == pytest.approx(4500, abs=2)
