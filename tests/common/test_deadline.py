"""Time runs out once, for everybody."""

import asyncio
import time

import pytest

from nemo_gym.common.deadline import (
    MAX_EXTENSION,
    TimerWheel,
    current_deadline,
    extend_deadlines,
    fresh_deadline,
    time_left,
    timeout,
)
from nemo_gym.errors import RolloutError
from nemo_gym.server.watchdog import Watchdog

LONG_S, SHORT_S = 60.0, 0.01


async def test_what_takes_too_long_is_interrupted_and_named() -> None:
    with pytest.raises(RolloutError, match=r"Lunch .* 0\.01 s") as caught:
        async with timeout(SHORT_S, what="Lunch"):
            await asyncio.sleep(LONG_S)
    assert caught.value.cause == "timeout"
    assert current_deadline() is None


async def test_a_far_limit_interrupts_too() -> None:
    limit = timeout(LONG_S, what="Lunch")

    async def have_lunch() -> None:
        async with limit:
            TimerWheel().add_slot(int(time.monotonic()))[limit] = None  # as if it were up now
            await asyncio.sleep(LONG_S)

    with pytest.raises(RolloutError, match=r"Lunch .* 60 s"):
        await have_lunch()


@pytest.mark.parametrize(("outer_s", "inner_s"), [(SHORT_S, LONG_S), (LONG_S, SHORT_S)])
async def test_the_sooner_of_two_limits_holds_and_is_named(outer_s: float, inner_s: float) -> None:
    sooner = "outer" if outer_s < inner_s else "inner"
    with pytest.raises(RolloutError, match=sooner):
        async with timeout(outer_s, what="outer"), timeout(inner_s, what="inner"):
            await asyncio.sleep(LONG_S)


async def test_nobody_gets_more_time_than_was_left() -> None:
    async with timeout(LONG_S, what="outer"):
        outer = current_deadline()
        async with timeout(2 * LONG_S, what="inner"):
            assert current_deadline() is outer
            assert time_left(2 * LONG_S) <= LONG_S
        async with timeout(LONG_S / 2, what="inner"):
            assert time_left(LONG_S) <= LONG_S / 2
        assert current_deadline() is outer


async def test_a_task_that_inherits_a_deadline_is_interrupted_though_its_parent_has_gone_on() -> None:
    async def child() -> None:
        async with timeout(LONG_S, what="child"):
            await asyncio.sleep(LONG_S)

    async with timeout(0.2, what="parent"):
        started = asyncio.create_task(child())
    with pytest.raises(RolloutError, match="child"):
        await started


async def test_a_deadline_without_an_interruption_is_enforced_by_the_next_hop() -> None:
    with fresh_deadline(SHORT_S), pytest.raises(RolloutError, match="hop"):
        async with timeout(LONG_S, what="hop"):
            await asyncio.sleep(LONG_S)


async def test_a_timeout_of_the_code_inside_is_its_own() -> None:
    with pytest.raises(TimeoutError, match="mine"):
        async with timeout(LONG_S, what="Lunch"):
            raise TimeoutError("mine")


async def test_without_a_limit_nothing_is_limited() -> None:
    async with timeout(None, what="Lunch"):
        assert current_deadline() is None


async def test_a_thread_with_an_event_loop_of_its_own_has_its_own_limits() -> None:
    async def wait() -> None:
        with pytest.raises(RolloutError, match="inner did not finish"):
            async with timeout(SHORT_S, what="inner"):
                await asyncio.sleep(LONG_S)

    with timeout(LONG_S):
        await asyncio.to_thread(lambda: asyncio.run(wait()))


async def test_time_in_which_another_task_blocks_the_loop_does_not_count() -> None:
    async def work() -> str:
        async with timeout(3.0, what="work"):
            for _ in range(4):
                await asyncio.sleep(0.2)
        return "done"

    with Watchdog({}):
        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        time.sleep(4)  # noqa: ASYNC251 - blocks the loop past the deadline of the other task
        assert await working == "done"


@pytest.mark.parametrize("limit_s", [LONG_S, 20.0])
async def test_the_deadlines_of_others_move_by_the_time_a_task_blocks_and_not_without_end(limit_s: float) -> None:
    task = asyncio.current_task()
    async with timeout(limit_s, what="Lunch"):
        deadline = current_deadline()
        assert deadline
        before = deadline.at
        extend_deadlines(10.0, blocking=task)
        assert deadline.at == before
        extend_deadlines(10.0, blocking=None)
        assert deadline.at == before + 10.0
        extend_deadlines(1000.0, blocking=None)
        assert deadline.at == before + limit_s * MAX_EXTENSION
    assert current_deadline() is None
