"""The clock of leases stands still while its process does."""

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.common.deadline import MAX_GAP_S, TICK_S, LeaseClock, lease_time


def test_time_in_which_nothing_ticked_does_not_count() -> None:
    now = 100.0
    clock = LeaseClock(lambda: now)
    start = clock.now()
    for _ in range(20):
        now += TICK_S
        clock.tick()
    assert clock.now() - start == 20 * TICK_S
    now += 3600.0
    assert clock.now() - start == 20 * TICK_S + MAX_GAP_S, "also before the first tick"
    clock.tick()
    now += TICK_S
    assert clock.now() - start == 20 * TICK_S + MAX_GAP_S + TICK_S


@given(st.lists(st.tuples(st.floats(0, 1e4), st.booleans())))
def test_it_never_goes_back_and_never_faster_than_the_real_one(steps: list[tuple[float, bool]]) -> None:
    now = 0.0
    clock = LeaseClock(lambda: now)
    for elapsed, is_tick in steps:
        before, now = clock.now(), now + elapsed
        if is_tick:
            clock.tick()
        assert 0 <= clock.now() - before <= elapsed + 1e-6


async def test_a_blocked_event_loop_extends_leases_by_that_time() -> None:
    before = lease_time()
    await asyncio.sleep(2 * TICK_S)
    blocked_s = 2 * MAX_GAP_S
    time.sleep(blocked_s)  # noqa: ASYNC251
    assert lease_time() - before < blocked_s
