"""Stop working for a client that has gone away. Short requests pay nothing for it: the watch starts late."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

WATCH_AFTER_S = 0.2
"""A request that is done sooner is not worth a watcher."""


@asynccontextmanager
async def cancel_on_disconnect(receive: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Cancel the code inside when the client disconnects, then leave the block quietly. Nothing else may `receive`
    by the time the watch starts, so read the body first."""
    loop, worker = asyncio.get_running_loop(), asyncio.current_task()
    watcher: asyncio.Task[None] | None = None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        if worker is not None:
            worker.cancel()

    def start() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    timer = loop.call_later(WATCH_AFTER_S, start)
    try:
        yield
    except asyncio.CancelledError:
        if not gone or worker is None or worker.uncancel() > 0:
            raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
