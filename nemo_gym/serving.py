"""Serve ASGI apps on sockets that somebody else has bound, all of them in the running event loop."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

from nemo_gym.errors import PortError

KEEP_ALIVE_S = 75
BACKLOG = 16_384
GRACE_S = 3
"""How long requests in flight may still take once the server is told to stop."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. From here on connections queue up, so nobody can take the port and nobody is refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise PortError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from error
    return bound


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process that holds the loop decides when to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(apps: Mapping[int, Any], sockets: list[socket.socket]) -> AsyncIterator[None]:
    """Serve each app on the port it stands under, as long as the block lasts. One server loop for all of them."""

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        await apps[scope["server"][1]](scope, receive, send)

    config = uvicorn.Config(
        dispatch,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=sockets))
    try:
        while not server.started and not running.done():  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(0.005)
        if running.done():
            running.result()
        yield
    finally:
        server.should_exit = True
        await running


async def serve_until_interrupted(apps: Mapping[int, Any], sockets: list[socket.socket]) -> None:
    """Serve until SIGINT or SIGTERM, then finish what is in flight."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(apps, sockets):
        await stop.wait()
