"""A TCP server whose handler writes whatever bytes a test wants, for tests of clients."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(handle: Handler, *, tls: ssl.SSLContext | None = None, limit: int = 2**16) -> AsyncIterator[int]:
    """Run `handle` for every connection, and give the port. A client that hangs up ends its handler quietly."""
    running: set[asyncio.Task[Any]] = set()

    async def handle_quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await handle(reader, writer)
        finally:
            writer.close()
            running.discard(task)

    server = await asyncio.start_server(handle_quietly, "127.0.0.1", 0, ssl=tls, limit=limit)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running)
