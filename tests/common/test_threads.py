"""Functions of others in threads: what they raise reaches the caller."""

import asyncio
import threading
import traceback

import pytest

from nemo_gym.common.event_loop import run_in_thread

TIMEOUT_S = 5.0


def first(*items: str, function: str = "") -> str:
    return next(item for item in items if item != function)


async def test_a_function_returns_its_value_whatever_its_parameters_are_called() -> None:
    assert await run_in_thread(first, "a", "b", function="a") == "b"


async def test_what_a_function_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(divmod, 1, 0)


async def test_stop_iteration_is_a_runtime_error_with_the_line_of_the_function() -> None:
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await asyncio.wait_for(run_in_thread(first), TIMEOUT_S)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "first"


async def test_a_function_whose_caller_is_cancelled_is_cancelled_and_its_thread_goes_on() -> None:
    begun, ended = threading.Event(), threading.Event()

    def loop() -> None:
        begun.set()
        try:
            while True:
                pass
        except asyncio.CancelledError:
            ended.set()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run_in_thread(loop), 0.5)
    assert begun.is_set()
    assert await asyncio.to_thread(ended.wait, TIMEOUT_S)
    assert [await run_in_thread(abs, -1) for _ in range(100)] == [1] * 100
