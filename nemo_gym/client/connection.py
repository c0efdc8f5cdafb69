"""One HTTP/1.1 connection: send a request, read the whole reply, then it is free for the next request. httptools
parses; TLS and sockets belong to the event loop. Every rollout in flight waits on one of these, so it is small.

All requests of one turn of the event loop are sent together at its end: a server on the same machine is then woken up
once, and not once for each of them.

Invariant: bytes that arrive while no request is waiting for them never become the reply to a later request.
"""

import asyncio
import re
import select
import socket
import ssl
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import httptools
from pydantic import Field

from nemo_gym.client.reply import ServerReply
from nemo_gym.client.url import Origin, Proxy, open_tunnel
from nemo_gym.common.descriptors import open_connections
from nemo_gym.config.types import GlobalKeys
from nemo_gym.errors import GymError
from nemo_gym.llm_api.json_codec import Body

MAX_FRAMING_BYTES = 2**24
"""Upper bound for what chunks and trailers may add to a reply. A body may be framed with up to four times its size."""
LARGE_BODY_BYTES = 2**16
"""From this size on, copying a request costs more than sending it in pieces."""
HAPPY_EYEBALLS_DELAY_S = 0.25
"""How long one of a host's addresses may take before the next one is tried in parallel."""
_NO_BODY = frozenset((204, 304))
_INFORMATIONAL = range(100, 200)
_FRAMING_HEADERS = {b"content-length": "length", b"transfer-encoding": "chunks", b"content-encoding": "encoding"}
_IDLE_TIMEOUT = (b"HTTP/1.1 408", b"HTTP/1.0 408")
"""Load balancers say this on an idle connection before they close it. It is no sign of a broken server."""


class HttpSettings(GlobalKeys):
    """Limits on connections, and on replies, so that no server can exhaust the memory of a worker."""

    global_aiohttp_connector_limit: int = Field(default=102_400, ge=1)
    """Upper bound for open connections."""

    global_aiohttp_connector_limit_per_host: int = Field(default=16_384, ge=1)
    """Upper bound for open connections to one server: as many as rollouts in flight, or they would queue."""

    connect_timeout_s: float = Field(default=10.0, gt=0)
    """How long opening a connection may take."""

    max_response_bytes: int = Field(default=2**28, ge=1)
    """Upper bound for a reply as it is received, headers and framing included."""

    max_decompressed_response_bytes: int = Field(default=2**28, ge=1)
    """Upper bound for the body of a compressed reply once it is decompressed."""

    max_response_header_bytes: int = Field(default=2**20, ge=1)
    """Upper bound for the headers of a reply."""

    max_response_headers: int = Field(default=1000, ge=1)
    """Upper bound for the number of header lines of a reply."""


_PLAIN_HEAD = re.compile(
    rb"HTTP/1\.1 ([2-5]\d\d)(?: [^\r\n\0]*)?\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n)*)\r\n"
)
_FRAMING = re.compile(
    rb"\n(?:content-length:(?:[ \t]*(\d{1,12})[ \t]*\r)?|(?:transfer-encoding|content-encoding|upgrade|trailer):"
    rb"|connection(?!: *keep-alive *\r):)"
)
"""The headers that say how the body is sent. Matches the number of a valid Content-Length, and nothing of others."""
_PLAIN_WITHOUT_BODY = frozenset((b"204", b"205", b"304"))


def parse_plain_reply(data: bytes, *, max_headers: int) -> ServerReply | None:
    """The reply if `data` is all of it and it is a plain one: one valid Content-Length, no other framing, no
    compression, and the connection stays open. None for any other data, which needs a real parser."""
    head = _PLAIN_HEAD.match(data)
    if head is None or head[1] in _PLAIN_WITHOUT_BODY:
        return None
    lines, end = head[2], head.end()
    lengths = _FRAMING.findall(data[:end].lower())
    if len(lengths) != 1 or not lengths[0] or end + int(lengths[0]) != len(data) or lines.count(b"\n") > max_headers:
        return None
    return ServerReply("", int(head[1]), data[end:], headers=lines)


class ConnectionLostError(GymError):
    """The connection ended, or the response was not valid, before the reply was complete."""


class UnsentError(ConnectionLostError):
    """The connection ended, or bytes came that no request asked for, before the request was sent."""


class ReplyTooLargeError(ConnectionLostError):
    """A reply exceeds one of the limits."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ConnectionOwner(Protocol):
    """The pool's entry for the server that a connection leads to."""

    settings: HttpSettings
    outgoing: "SendQueue"

    def on_unsolicited(self) -> None:
        """The server sent data that no request asked for."""

    def on_lost(self, connection: "Connection") -> None:
        """The connection has ended."""


class SendQueue:
    """The connections that have a request to send when the event loop has run what is ready now."""

    __slots__ = ("_queued",)

    def __init__(self) -> None:
        self._queued: list[Connection] = []

    def add(self, connection: "Connection", loop: asyncio.AbstractEventLoop) -> None:
        if not self._queued:
            loop.call_soon(self._flush)
        self._queued.append(connection)

    def _flush(self) -> None:
        queued, self._queued = self._queued, []
        for connection in queued:
            connection.flush()


class Connection(asyncio.Protocol):
    """Sends one request at a time. Data that no request asked for closes it."""

    __slots__ = (
        *("_body", "_declared_bytes", "_encoding", "_ends_with_connection", "_headers", "_is_parsing"),
        *("_loop", "_owner", "_parser", "_poller", "_reply", "_transport", "_unsent", "_waiter", "_wire_bytes"),
        *("_has_tls", "_was_used"),
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: ConnectionOwner) -> None:
        self._loop, self._owner = loop, owner
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[ServerReply] | None = None
        self._unsent: tuple[bytes, ...] = ()
        """The request that waits for the end of the loop's turn."""
        self._has_tls = self._was_used = False
        self._parser: Any = None
        self._wire_bytes = self._declared_bytes = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: bytes | bytearray = b""
        self._encoding, self._ends_with_connection = "", False
        self._reply: ServerReply | None = None
        self._is_parsing = False
        """The current reply is not a plain one."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close at once, also in the middle of a reply."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, head: bytes, body: Body | None) -> "asyncio.Future[ServerReply]":
        """Send a request. The future is its whole reply; call `finish` when it is done or no longer wanted."""
        if self._transport is None:
            raise UnsentError("the connection was closed")
        self._waiter, self._wire_bytes = self._loop.create_future(), 0
        self._unsent = (head, *body) if isinstance(body, tuple) else (head, body or b"")
        self._owner.outgoing.add(self, self._loop)
        return self._waiter

    def flush(self) -> None:
        """Send the request, unless it was given up since."""
        pieces, self._unsent = self._unsent, ()
        if not pieces or self._waiter is None or self._waiter.done():
            return
        if self._transport is None or self._transport.is_closing() or self._has_unread_bytes():
            self._fail(UnsentError("it was closed, or bytes came on it, before the request was sent"))
            return
        try:
            if sum(map(len, pieces)) < LARGE_BODY_BYTES:
                self._transport.write(b"".join(pieces))
            else:
                self._transport.writelines(pieces)
        except Exception as error:  # one request must not keep the others of this turn from being sent
            self._fail(ConnectionLostError(f"the request cannot be sent: {error}"))

    def _has_unread_bytes(self) -> bool:
        """True if the kernel holds bytes that the loop has not read yet: a second reply, the end of the connection.
        They would be taken as the reply to this request. Over TLS, a server sends session tickets first."""
        return (self._was_used or not self._has_tls) and bool(self._poller.poll(0))

    def finish(self) -> bool:
        """End the exchange that `send` began. True if the connection is free for the next one: a request without a
        reply leaves it in an unknown state, so that closes it."""
        has_replied = self._was_used = self._reply is not None
        self._waiter = self._reply = None
        self._unsent = ()
        if self._is_parsing:
            self._is_parsing = False
            self._reset()
        if not has_replied:
            self.close()
        return has_replied and self.is_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        open_connections.outbound += 1
        self._poller = select.poll()
        self._poller.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._has_tls = transport.get_extra_info("ssl_object") is not None

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done() or self._unsent:
            is_late = not self.is_open or (self._waiter is not None and self._waiter.cancelled())
            self._fail(UnsentError("bytes came that no request asked for"))
            if not is_late and not data.startswith(_IDLE_TIMEOUT):
                self._owner.on_unsolicited()
            return
        if not self._wire_bytes and self._receive_plain(data):
            return
        self._wire_bytes += len(data)
        try:
            if self._parser is None:
                self._parser = httptools.HttpResponseParser(self)
            self._is_parsing = True
            self._parser.feed_data(data)
            self._check_size()
        except ReplyTooLargeError as error:
            self._fail(error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionLostError(f"invalid HTTP response: {error}"))
        else:
            self._deliver()

    def _receive_plain(self, data: bytes) -> bool:
        """Take a whole plain reply, as nearly all are, without a parser. False if `data` is anything else."""
        settings = self._owner.settings
        if len(data) > min(settings.max_response_header_bytes, settings.max_response_bytes) or self._is_sending():
            return False
        reply = parse_plain_reply(data, max_headers=settings.max_response_headers)
        if reply is None or self._waiter is None:
            return False
        self._reply = reply
        self._waiter.set_result(reply)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        open_connections.outbound -= 1
        self._owner.on_lost(self)
        if self._ends_with_connection and error is None:
            self._complete()
            self._deliver()
        reason = f": {error}" if error else ""
        what = "the request was sent" if self._unsent else "its reply was complete"
        kind = UnsentError if self._unsent else ConnectionLostError
        self._fail(kind(f"the server closed the connection before {what}{reason}"))

    def on_message_begin(self) -> None:
        if self._reply is not None:  # a second reply in the same read: nothing of it may get into the first
            self.close()
            self._owner.on_unsolicited()
            self._headers, self._body = [], b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        has_length = False
        for name, value in self._headers:
            known = _FRAMING_HEADERS.get(name) or _FRAMING_HEADERS.get(name.lower())
            if known == "encoding":
                self._encoding = self._encoding or value.decode("latin-1").strip().lower()
            elif known is not None:
                has_length = True
                if known == "length" and value.isdigit():
                    self._declared_bytes = int(value)
        status = self._parser.get_status_code()
        self._ends_with_connection = not has_length and status not in _NO_BODY and status not in _INFORMATIONAL

    def on_body(self, part: bytes) -> None:
        if not self._body:
            self._body = part
        elif isinstance(self._body, bytearray):
            self._body += part
        else:
            self._body = bytearray(self._body) + part

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() in _INFORMATIONAL:
            self._reset()
        else:
            self._complete()

    def _complete(self) -> None:
        if self._reply is not None:
            return
        body = bytes(self._body)
        if self._encoding:
            try:
                body = self._decompressed(body, self._encoding)
            except (zlib.error, ValueError) as error:
                self._fail(ConnectionLostError(f"the reply cannot be decompressed: {error}"))
                return
            except ReplyTooLargeError as error:
                self._fail(error)
                return
        if not self._parser.should_keep_alive() or self._ends_with_connection or self._is_sending():
            self.close()
        self._reply = ServerReply("", self._parser.get_status_code(), body, headers=self._headers)

    def _deliver(self) -> None:
        """Hand over the reply when all bytes that came with it are parsed: if more follow its end, it is invalid."""
        if self._reply is not None and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._reply)

    def _check_size(self) -> None:
        """Raise if what has arrived so far, or is announced, exceeds a limit. Called after every read, so a read may
        overshoot it."""
        settings, wire_bytes = self._owner.settings, self._wire_bytes
        if wire_bytes > settings.max_response_header_bytes:
            body_bytes = len(self._body)
            allowed = settings.max_response_header_bytes + min(MAX_FRAMING_BYTES, 4 * body_bytes)
            if wire_bytes - body_bytes > allowed:
                raise self._too_large("headers and framing", "max_response_header_bytes")
        if max(wire_bytes, self._declared_bytes) > settings.max_response_bytes:
            raise self._too_large("the reply", "max_response_bytes")
        if len(self._headers) > settings.max_response_headers:
            raise self._too_large("the number of headers", "max_response_headers")

    def _too_large(self, what: str, setting: str) -> ReplyTooLargeError:
        limit = getattr(self._owner.settings, setting)
        return ReplyTooLargeError(self._parser.get_status_code() or 200, f"{what} exceeded {setting}, {limit}")

    def _decompressed(self, body: bytes, encoding: str) -> bytes:
        if encoding == "identity":
            return body
        if encoding not in ("gzip", "deflate", "x-gzip"):
            raise ValueError(f"its encoding is {encoding!r}; expected gzip or deflate")
        limit = self._owner.settings.max_decompressed_response_bytes
        unpacker = zlib.decompressobj(wbits=_wbits(body))
        unpacked = unpacker.decompress(body, limit + 1)
        if len(unpacked) > limit:
            raise self._too_large("the decompressed reply", "max_decompressed_response_bytes")
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("it is incomplete, or more follows its end")
        return unpacked

    def _is_sending(self) -> bool:
        """True if the reply came before the whole request was sent: the rest would precede the next request."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def _fail(self, error: ConnectionLostError) -> None:
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _reset(self) -> None:
        self._headers, self._body, self._reply = [], b"", None
        self._declared_bytes, self._encoding, self._ends_with_connection = 0, "", False


def _wbits(body: bytes) -> int:
    """Return zlib's window size for a body: gzip (31), zlib (15), or the bare deflate (-15) that some servers send."""
    if body[:2] == b"\x1f\x8b":
        return 31
    return 15 if len(body) >= 2 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0 else -15


@cache
def _tls() -> ssl.SSLContext:
    """The certificates that are trusted: the system's, or those in SSL_CERT_FILE and SSL_CERT_DIR."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def connect(
    origin: Origin, addresses: list[Any], make: Callable[[], Connection], *, tunnel_through: Proxy | None = None
) -> Connection:
    """Open a connection to the first of the addresses that accepts one: the host's, or those of the proxy."""
    loop = asyncio.get_running_loop()
    tls: dict[str, Any] = {"ssl": _tls(), "server_hostname": origin.host} if origin.is_tls else {}
    if len(addresses) == 1 and tunnel_through is None:
        host, port = addresses[0][4][:2]
        _, connection = await loop.create_connection(make, host, port, **tls)
        return connection
    from aiohappyeyeballs import start_connection

    opened: socket.socket = await start_connection(addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S, loop=loop)
    try:
        if tunnel_through is not None:
            await open_tunnel(opened, origin, tunnel_through)
        _, connection = await loop.create_connection(make, sock=opened, **tls)
    except BaseException:
        opened.close()
        raise
    return connection
