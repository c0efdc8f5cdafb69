"""Rollouts end, fail together, or are left behind; nothing waits for ever."""

import asyncio

import pytest

from nemo_gym.common.deadline import timeout
from nemo_gym.errors import StorageError
from nemo_gym.rollouts.collector import AdaptiveLimiter, AimdWindow, RolloutTasks, collect
from nemo_gym.rollouts.types import Outcome, Row

FOREVER_S = 3600.0


async def ignore_cancellation(released: asyncio.Event) -> None:
    while not released.is_set():
        try:
            await released.wait()
        except asyncio.CancelledError:
            continue


def rows(count: int) -> list[Row | Outcome]:
    return [Row(number, 0, "", "agent", b"{}") for number in range(count)]


async def test_the_first_error_ends_the_other_tasks_and_the_block() -> None:
    cancelled: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(FOREVER_S)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def fail() -> None:
        raise StorageError("The disk is full.")

    async def block() -> None:
        tasks = RolloutTasks()
        async with tasks:
            tasks.start(wait(1))
            tasks.start(wait(2))
            tasks.start(fail())
            await asyncio.sleep(FOREVER_S)

    with pytest.raises(StorageError):
        await block()
    assert cancelled == [1, 2]
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_an_error_while_the_block_waits_for_its_tasks_is_raised() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise StorageError("The disk is full.")

    async def block() -> None:
        tasks = RolloutTasks()
        async with tasks:
            tasks.start(fail())
            tasks.start(asyncio.sleep(FOREVER_S))

    with pytest.raises(StorageError):
        await block()


@pytest.mark.parametrize("seconds_in_block", [0.0, FOREVER_S])
async def test_a_block_that_is_cancelled_leaves_behind_what_ignores_it(seconds_in_block: float) -> None:
    released, has_started = asyncio.Event(), asyncio.Event()

    async def ignore() -> None:
        has_started.set()
        await ignore_cancellation(released)

    async def block() -> None:
        tasks = RolloutTasks(end_grace_s=0.01)
        async with tasks:
            tasks.start(ignore())
            await asyncio.sleep(seconds_in_block)

    running = asyncio.create_task(block())
    await has_started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    released.set()


async def test_a_rollout_that_ignores_its_timeout_is_a_failure_and_others_go_on() -> None:
    released = asyncio.Event()
    written: list[Outcome] = []
    limiter = AdaptiveLimiter(AimdWindow(2, 2))

    async def run(row: Row) -> Outcome:
        if row.task_index == 0:
            with timeout(0.01, what="The rollout"):
                await ignore_cancellation(released)
        return Outcome(row, b'{"reward":1}')

    async def write(outcome: Outcome) -> None:
        written.append(outcome)

    await collect(rows(20), run, write, limiter, grace_s=0.05)
    released.set()
    for _ in range(10):
        await asyncio.sleep(0)
    failed = [outcome for outcome in written if outcome.error is not None]
    assert [outcome.row.task_index for outcome in failed] == [0]
    assert failed[0].error is not None
    assert failed[0].error.cause == "timeout"
    assert "ignore_cancellation" in str(failed[0].error)
    assert (len(written), limiter.in_flight) == (20, 0)
