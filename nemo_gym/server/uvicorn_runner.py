"""Serve ASGI apps on bound sockets, all of them in the running event loop."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from nemo_gym.common.descriptors import RESERVED, connection_budget, open_connections
from nemo_gym.common.forks import close_in_forks
from nemo_gym.common.interrupts import interrupts, say_stopping
from nemo_gym.errors import OverloadedError, PortError
from nemo_gym.server.request_checks import GRACE_S, ServerLimits

KEEP_ALIVE_S = 75
FRAMING_PER_BODY_BYTE = 16
"""Maximum bytes of chunk framing for each byte of body: chunks of a single byte take six."""
LAST_READ_S = 1.0
"""Seconds for which a connection is still read after a timeout or a refusal, also one over the limit."""


class LimitedConfig(uvicorn.Config):
    """uvicorn's settings with our limits."""

    def __init__(self, app: Any, limits: ServerLimits) -> None:
        super().__init__(
            app, log_config=None, access_log=False, proxy_headers=False, ws="none", timeout_keep_alive=KEEP_ALIVE_S
        )
        self.load()
        self.limits, self.max_connections = limits, limits.connections()
        self.budget = connection_budget()
        """Maximum number of connections of the process, including those that it makes itself."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    config: LimitedConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_header_bytes = self.config.limits.max_header_bytes
        self._chunk_bytes = 0
        self._received = self._body_bytes = 0
        """Bytes of the current request, without the chunk it began in."""
        self._in_headers = True
        self._is_refused = self._is_over_limit = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        close_in_forks(transport.get_extra_info("socket").fileno())
        open_here = len(self.connections)
        open_in_all = open_here + open_connections.outbound
        self._is_over_limit = open_here > self.config.max_connections or open_in_all > self.config.budget
        if open_in_all > self.config.budget + RESERVED // 2:  # too many even for a response
            transport.abort()
        else:
            self._start_timer(LAST_READ_S if self._is_over_limit else self.config.limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._chunk_bytes = len(data)
        self._received += self._chunk_bytes
        super().data_received(data)
        if self._is_refused:
            return
        if self._received - self._body_bytes > self._max_header_bytes + FRAMING_PER_BODY_BYTE * self._body_bytes:
            self._refuse_headers()
        elif self._timer is not None:
            if not self._in_headers:
                self._stop_timer()
        elif self._in_headers:
            self._start_timer(self.config.limits.header_timeout_s)

    def on_message_begin(self) -> None:
        self._in_headers, self._received, self._body_bytes = True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return
        if self._is_over_limit:
            self._refuse(503, f"More than {self.config.max_connections} connections are open (max_connections).")
        elif self._chunk_bytes + self._received > self._max_header_bytes < self._header_bytes():
            self._refuse_headers()
        else:
            self._in_headers = False
            super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # a trailer of a chunked body is no header
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:  # read on when the requests that are here are answered, however many come at once
            self.flow.pause_reading()

    def _header_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._read_once_more)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read_once_more(self) -> None:
        """A busy loop may run a timer before it reads what arrived in time."""
        self._timer = self.loop.call_later(LAST_READ_S, self._time_out)

    def _time_out(self) -> None:
        if self.headers is None or self._is_over_limit:  # nothing was sent: a response might be taken for that of
            self.transport.close()  # a request which is on its way
        else:
            limit_s = self.config.limits.header_timeout_s
            self._refuse(408, f"The headers were not complete within {limit_s:g} s (header_timeout_s).")

    def _refuse_headers(self) -> None:
        self._refuse(431, f"The headers have more than {self._max_header_bytes} bytes (max_header_bytes).")

    def _refuse(self, status: int, message: str) -> None:
        """Respond, then discard what still comes for a moment: closing at once would reset the connection before the
        client has read the response."""
        self._is_refused = True
        self._stop_timer()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        is_answered = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if is_answered:
            self.transport.abort()
            return
        self.transport.write(_response(status, message))
        self.transport.write_eof()
        self._timer = self.loop.call_later(LAST_READ_S, self.transport.abort)


def _response(status: int, message: str) -> bytes:
    body: dict[str, Any] = {"detail": message}
    if status == 503:
        body["error"] = {"cause": "environment", "code": OverloadedError.CODE, "message": message, "retryable": True}
    content = orjson.dumps(body)
    headers = f"content-type: application/json\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
    return STATUS_LINE[status] + headers.encode() + content


logger = logging.getLogger(__name__)

BACKLOG = 16_384
POLL_S = 0.002
"""uvicorn reports its connections by plain attributes only."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket: from here on connections queue up, and nobody else can take the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that name it, and accepted sockets inherit
    # it. Without it every reply on a reused connection waits 40 ms for the peer's acknowledgement.
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
    apps: Mapping[Any, Any],
    sockets: list[socket.socket],
    limits: ServerLimits | None = None,
    *,
    protocol: type[LimitedProtocol] = LimitedProtocol,
) -> AsyncIterator[None]:
    """Serve each app on its port while the block runs, then finish what is in flight. A Unix socket has no port."""

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        _, port = scope["server"] or (None, None)
        await apps[port](scope, receive, send)

    config, state, loop = LimitedConfig(dispatch, limits or ServerLimits()), ServerState(), asyncio.get_running_loop()
    listening: list[asyncio.Server] = []
    try:
        for bound in sockets:
            connected = partial(protocol, config, state, {})
            is_unix = bound.family == socket.AF_UNIX
            listen: Any = loop.create_unix_server if is_unix else loop.create_server
            listening.append(await listen(connected, sock=bound, backlog=BACKLOG))
        yield
    finally:
        for server in listening:
            server.close()
        await _finish_requests(state)


async def _finish_requests(state: ServerState) -> None:
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
    """An event of the running loop that SIGINT and SIGTERM set. The second one ends the process at once, even if code
    blocks the loop."""
    stop, loop, is_command = asyncio.Event(), asyncio.get_running_loop(), interrupts.is_handled

    def on_signal(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(stop.set)
        interrupts.receive()
        if is_command:
            say_stopping()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    interrupts.is_handled = True
    return stop
