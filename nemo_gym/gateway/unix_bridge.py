"""Lead a Unix socket to a port of loopback, so that a sandbox without a network reaches this one port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

CHUNK_BYTES = 2**16
NAME = "gateway.sock"


@asynccontextmanager
async def bridge_socket(folder: Path, host: str, port: int) -> AsyncIterator[Path]:
    """The socket, open to every user, because a sandbox may run as any. So `folder` should be closed to others."""
    path, connections = folder / NAME, set[asyncio.Task[None] | None]()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        connections.add(task)
        try:
            await _forward(reader, writer, host, port)
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(connect, path)
    path.chmod(0o666)
    try:
        yield path
    finally:
        server.close()
        for task in [task for task in connections if task is not None]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    with suppress(OSError):
        far_reader, far_writer = await asyncio.open_connection(host, port)
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            far_writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()
    sink.write_eof()
