"""Run a program on the fast event loop, with as many open files as it may have."""

import asyncio
import gc
import resource
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

GC_THRESHOLDS = (200_000, 10, 10)
"""A rollout in flight is some two hundred objects that live for seconds. Looked through for cycles as often as Python
does by default, thousands of them take a tenth of all time and find nothing."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on uvloop, for a process that does nothing else."""
    gc.set_threshold(*GC_THRESHOLDS)
    return run_beside(main)


def run_beside(main: Coroutine[Any, Any, T]) -> T:
    """The same in a process that has other things to do, such as training."""
    import uvloop

    raise_open_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def raise_open_file_limit() -> None:
    """Every rollout in flight holds a connection, and the usual limit is about a thousand."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
