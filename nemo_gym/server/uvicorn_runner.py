"""Serve ASGI apps on bound sockets, all of them in the running event loop."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from nemo_gym.errors import PortError
from nemo_gym.server.limits import GRACE_S, ServerLimits

if TYPE_CHECKING:
    from uvicorn.server import ServerState

logger = logging.getLogger(__name__)

BACKLOG = 16_384
POLL_S = 0.002
"""uvicorn reports its connections by plain attributes only."""


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
    apps: Mapping[Any, Any], sockets: list[socket.socket], limits: ServerLimits | None = None
) -> AsyncIterator[None]:
    """Serve each app on its port while the block runs, then finish what is in flight. A Unix socket has the port None.

    uvicorn is imported here: a command that holds its servers itself never needs it.
    """
    from uvicorn.server import ServerState

    from nemo_gym.server.http_protocol import LimitedConfig, LimitedProtocol

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        _, port = scope["server"] or (None, None)
        await apps[port](scope, receive, send)

    config, state, loop = LimitedConfig(dispatch, limits or ServerLimits()), ServerState(), asyncio.get_running_loop()
    listening: list[asyncio.Server] = []
    try:
        for bound in sockets:
            connected = partial(LimitedProtocol, config, state, {})
            is_unix = bound.family == socket.AF_UNIX
            listen: Any = loop.create_unix_server if is_unix else loop.create_server
            listening.append(await listen(connected, sock=bound, backlog=BACKLOG))
        yield
    finally:
        for server in listening:
            server.close()
        await _finish_requests(state)


async def _finish_requests(state: "ServerState") -> None:
    for connection in list(state.connections):
        connection.shutdown()
    try:
        async with asyncio.timeout(GRACE_S):
            while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn offers no event
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        if state.tasks:  # else only connections that nobody closed
            logger.warning("%d requests took longer than %g s to finish; cancelling", len(state.tasks), GRACE_S)
        for task in state.tasks:
            task.cancel()


async def serve_until_interrupted(
    apps: Mapping[Any, Any], sockets: list[socket.socket], limits: ServerLimits | None = None
) -> None:
    """Serve until SIGINT or SIGTERM, then finish what is in flight."""
    stop = set_by_signals()
    async with serving(apps, sockets, limits):
        await stop.wait()


def set_by_signals() -> asyncio.Event:
    """An event of the running loop that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
