"""Serve ASGI apps on bound sockets, all of them in the running event loop."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from nemo_gym.errors import PortError
from nemo_gym.server.limits import ServerLimits

KEEP_ALIVE_S = 75
BACKLOG = 16_384
POLL_S = 0.002
"""uvicorn reports its start and its connections by plain attributes only."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket: from here on connections queue up, and nobody else can take the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that name it, and accepted sockets inherit
    # it. Without it every reply on a reused connection waits 40 ms for the other side's acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise PortError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from error
    return bound


@asynccontextmanager
async def serving(
    apps: Mapping[int, Any], sockets: list[socket.socket], limits: ServerLimits | None = None
) -> AsyncIterator[None]:
    """Serve each app on its port while the block runs. One uvicorn server for all of them.

    uvicorn is imported here: a command that holds its servers itself never needs it.
    """
    import uvicorn

    from nemo_gym.server.http_protocol import limited_protocol
    from nemo_gym.server.uvicorn_server import StoppableServer

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        await apps[scope["server"][1]](scope, receive, send)

    config = uvicorn.Config(
        dispatch,
        http=limited_protocol(limits or ServerLimits()),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=BACKLOG,
    )
    server = StoppableServer(config)
    running = asyncio.create_task(server.serve(sockets=sockets))
    try:
        while not server.started and not running.done():  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(POLL_S)
        if running.done():
            running.result()
        yield
    finally:
        server.stop.set()
        await running


async def serve_until_interrupted(
    apps: Mapping[int, Any], sockets: list[socket.socket], limits: ServerLimits | None = None
) -> None:
    """Serve until SIGINT or SIGTERM, then finish what is in flight."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(apps, sockets, limits):
        await stop.wait()
