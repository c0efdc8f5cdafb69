"""Run functions of others in threads."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def run_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
    """`asyncio.to_thread` for a function that may raise `StopIteration`. A future cannot carry it, so the caller would
    wait for ever; here it becomes a `RuntimeError`, as in a coroutine."""
    return asyncio.to_thread(_without_stop_iteration, function, *args, **kwargs)


def _without_stop_iteration(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raised = RuntimeError(f"a function raised {error!r}")
        raise raised.with_traceback(error.__traceback__) from error  # the log names the line of the function
