"""Time runs out once, for everybody."""

import asyncio

import pytest

from nemo_gym.deadline import current_deadline, time_for, under, within
from nemo_gym.errors import RolloutError


def test_inside_there_is_never_more_time_than_outside() -> None:
    assert time_for(7) == 7
    with under(1):
        assert 0 < time_for(7) <= 1
        with under(100):
            assert time_for(7) <= 1
        with under(0.5):
            assert time_for(7) <= 0.5
    assert current_deadline() is None


async def test_what_takes_too_long_is_interrupted_and_named() -> None:
    with pytest.raises(RolloutError, match=r"The thing did not finish within 0\.0") as caught:
        async with within(0.01, what="The thing"):
            await asyncio.sleep(5)
    assert caught.value.cause == "timeout"


async def test_a_timeout_of_something_inside_is_left_alone() -> None:
    with pytest.raises(TimeoutError):
        async with within(5, what="The thing"):
            raise TimeoutError


async def test_the_deadline_reaches_the_tasks_started_under_it() -> None:
    async def look() -> float:
        return time_for(100)

    async with within(1, what="x"):
        assert await asyncio.create_task(look()) <= 1
