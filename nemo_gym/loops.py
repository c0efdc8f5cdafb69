"""Run a program on the fast event loop, with as many open files as it may have."""

import asyncio
import resource
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on uvloop."""
    import uvloop

    raise_open_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def raise_open_file_limit() -> None:
    """Every rollout in flight holds a connection, and the usual limit is about a thousand."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
