"""How many in flight: never beyond the bounds, less after an objection, more after successes."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollouts.collector import DECREASE, START, AdaptiveLimiter, AimdWindow


@given(
    bounds=st.tuples(st.integers(1, 100), st.integers(0, 1000)),
    events=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=200),
)
def test_the_window_stays_within_its_bounds(bounds: tuple[int, int], events: list[tuple[bool, int]]) -> None:
    low, high = bounds[0], bounds[0] + bounds[1]
    window = AimdWindow(low, high)
    for was_throttled, generation in events:
        if was_throttled:
            window.throttled(generation)
        else:
            window.succeeded()
        assert low <= window.size <= high


def test_throttlings_to_what_was_started_together_count_once() -> None:
    window = AimdWindow(1, 10_000)
    for _ in range(50):
        window.throttled(0)
    assert window.size == START * DECREASE
    window.throttled(1)
    assert window.size == START * DECREASE**2


def test_it_doubles_with_every_round_trip_until_the_first_objection() -> None:
    window = AimdWindow(1, 100_000)
    for _ in range(START):
        window.succeeded()
    assert window.size == 2 * START
    window.throttled(0)
    size = window.size
    for _ in range(int(size)):
        window.succeeded()
    assert size < window.size <= size + 1.1


def test_a_fixed_number_stays() -> None:
    window = AimdWindow(5, 5)
    window.throttled(0)
    window.succeeded()
    assert window.size == 5


async def test_an_endpoint_with_a_limit_gets_about_as_many_requests() -> None:
    capacity, inside, most, throttlings = 40, 0, 0, 0
    limiter = AdaptiveLimiter(AimdWindow(2, 1000))

    async def rollout(generation: int) -> None:
        nonlocal inside, most, throttlings
        inside += 1
        most = max(most, inside)
        throttled = inside > capacity
        throttlings += throttled
        await asyncio.sleep(0.001)
        inside -= 1
        limiter.leave(generation, throttled=throttled, scored=not throttled)

    async with asyncio.TaskGroup() as group:
        for _ in range(4000):
            group.create_task(rollout(await limiter.enter()))
    assert limiter.in_flight == 0
    assert 0.5 * capacity < limiter.window.size < 1.6 * capacity
    assert throttlings < 1000


async def test_failures_do_not_widen_the_window() -> None:
    limiter = AdaptiveLimiter(AimdWindow(1, 1000))
    for scored in (False, True):
        limiter.leave(await limiter.enter(), throttled=False, scored=scored)
        assert limiter.window.size == START + scored
