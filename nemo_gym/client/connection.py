"""One HTTP/1.1 connection: a request goes out, its whole answer comes in, then the next may. httptools parses; TLS
and sockets are the loop's. A rollout in flight is one of these that waits, so it is kept small."""

import asyncio
import socket
import ssl
import zlib
from functools import cache
from typing import Any, NamedTuple

import httptools
from multidict import CIMultiDict

from nemo_gym.errors import GymError

LARGE_BODY_BYTES = 2**16
"""From here on copying a body costs more than sending two pieces."""
FAMILIES_DELAY_S = 0.25
"""How long one of a host's addresses has before the next is tried beside it."""
_NO_BODY = frozenset((204, 304))
_INFORMATIONAL = range(100, 200)


class ConnectionLostError(GymError):
    """The connection ended, or made no sense, before the answer was whole."""


class Origin(NamedTuple):
    """Whom to connect to."""

    host: str
    port: int
    is_tls: bool


class Received(NamedTuple):
    """A whole answer."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


class Connection(asyncio.Protocol):
    """Asked one thing at a time by whoever holds it. What comes unasked ends it."""

    __slots__ = ("_ends_with_connection", "_headers", "_loop", "_parser", "_parts", "_transport", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Received] | None = None
        self._parser: Any = None
        self._forget()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """End it at once, also in the middle of an answer."""
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, head: bytes, body: bytes | None) -> Received:
        """Send a request and wait for all of its answer. A connection that is left before is of no more use."""
        if self._transport is None:
            raise ConnectionLostError("it was closed")
        self._waiter = self._loop.create_future()
        self._parser = self._parser or httptools.HttpResponseParser(self)
        if body is not None and len(body) >= LARGE_BODY_BYTES:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + (body or b""))
        try:
            return await self._waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._waiter = None
            self._forget()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionLostError(f"it answered in no HTTP we know: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._ends_with_connection and error is None:
            self._finish()
        self._fail(ConnectionLostError(f"it hung up before its answer was whole{f': {error}' if error else ''}"))

    def on_message_begin(self) -> None:
        if self._waiter is None or self._waiter.done():
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.add(name.decode("latin-1"), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        status = self._parser.get_status_code()
        self._ends_with_connection = not has_length and status not in _NO_BODY and status not in _INFORMATIONAL

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() in _INFORMATIONAL:
            self._forget()
        else:
            self._finish()

    def _finish(self) -> None:
        if self._waiter is None or self._waiter.done():
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        try:
            body = _plain(body, self._headers.get("content-encoding", "identity"))
        except (zlib.error, ValueError) as error:
            self._fail(ConnectionLostError(f"its answer cannot be unpacked: {error}"))
            return
        if not self._parser.should_keep_alive() or self._ends_with_connection:
            self.close()
        self._waiter.set_result(Received(self._parser.get_status_code(), self._headers, body))

    def _fail(self, error: ConnectionLostError) -> None:
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _forget(self) -> None:
        self._headers: CIMultiDict[str] = CIMultiDict()
        self._parts: list[bytes] = []
        self._ends_with_connection = False


def _plain(body: bytes, encoding: str) -> bytes:
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "deflate", "x-gzip"):
        raise ValueError(f"it is packed as {encoding!r}, which was not asked for")
    return zlib.decompress(body, wbits=47)  # 47: gzip or zlib, whichever it says it is


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def connect(origin: Origin, addresses: list[Any]) -> Connection:
    """Open a connection to whichever address answers first."""
    loop = asyncio.get_running_loop()
    tls: dict[str, Any] = {"ssl": _tls(), "server_hostname": origin.host} if origin.is_tls else {}
    if len(addresses) == 1:
        host, port = addresses[0][4][:2]
        _, connection = await loop.create_connection(lambda: Connection(loop), host, port, **tls)
        return connection
    from aiohappyeyeballs import start_connection

    opened: socket.socket = await start_connection(addresses, happy_eyeballs_delay=FAMILIES_DELAY_S, loop=loop)
    try:
        _, connection = await loop.create_connection(lambda: Connection(loop), sock=opened, **tls)
    except BaseException:
        opened.close()
        raise
    return connection
