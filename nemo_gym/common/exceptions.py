"""Unwrap exception groups, describe exceptions, and recognize the cancellation of a task."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from nemo_gym.common.interrupts import interrupts


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, at any depth, or the error itself if it is not a group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_errors(inner)
    else:
        yield error


@contextmanager
def raise_first_error() -> Iterator[None]:
    """Replace an exception group that the block raises by the first error in it."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise next(leaf_errors(group)) from group


def exception_repr(error: BaseException) -> str:
    """`repr(error)`; of an exception that has none, its class."""
    try:
        return repr(error)
    except Exception as failure:
        return _without_text(error, failure)


def exception_str(error: BaseException) -> str:
    """`str(error)`; of an exception that has none, its class."""
    try:
        return str(error)
    except Exception as failure:
        return _without_text(error, failure)


def _without_text(error: BaseException, failure: Exception) -> str:
    return f"{type(error).__name__} (its text raised {type(failure).__name__})"


def is_meant_for_task(error: BaseException) -> bool:
    """True if `error` is to end the running task: somebody cancels it, or interrupts the process.

    Code can raise CancelledError although nobody cancels its task: it awaits a task that several rollouts share, and
    the timeout of one of them cancels that. Then it has failed, as with any other exception, and so has code that
    raises SystemExit, or KeyboardInterrupt although nobody pressed Ctrl+C.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt) and interrupts.may_be_keyboard
