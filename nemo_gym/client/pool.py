"""The HTTP client: requests, and a pool of connections for each event loop, with a timeout on everything."""

import asyncio
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import urljoin, urlsplit
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from nemo_gym.client.connection import (
    Connection,
    ConnectionLostError,
    HttpSettings,
    ReplyTooLargeError,
    SendQueue,
    UnsentError,
    connect,
)
from nemo_gym.client.reply import ServerReply
from nemo_gym.client.url import (
    Origin,
    Proxy,
    host_header,
    is_loopback,
    origin_of,
    proxy_for,
    request_target,
    shown_url,
    user_info_of,
)
from nemo_gym.common import tracing
from nemo_gym.common.deadline import TIME_LEFT_HEADER, Deadline, current_deadline, is_interrupted_by, timeout
from nemo_gym.common.descriptors import open_connections, outbound_limit
from nemo_gym.errors import ConfigError, ConnectError, UpstreamError
from nemo_gym.llm_api.json_codec import Body

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 30.0
"""Shorter than the 75 s our servers keep an idle connection, so a client never reuses one that is being closed."""

ADDRESSES_LAST_S = 10.0
"""How long a resolved address is used before it is looked up again."""

MAX_CONNECTING = 256
"""How many connections to a server are opened at a time. If thousands of rollouts start at once, more would all wait
for the event loop, each longer than a server may take to accept."""

NO_REUSE_S = 60.0
"""How long connections to a server are used once only after it sent data that no request asked for. The next such
data might arrive just after a request was sent, and could not be distinguished from the reply."""


REDIRECTS = frozenset((307, 308))
"""Redirects that repeat the request unchanged. Where other redirects lead is not the reply to this request."""
MAX_REDIRECTS = 5
_SENT_TO_ANY_ORIGIN = frozenset(("accept", "content-type"))

REPLY_TIME_S = 1.0
"""Subtracted from the time left that a server gets, so that its reply, which knows more than a timeout here, is in
time. Of little time it is a tenth."""


class Request(msgspec.Struct, frozen=True):
    method: str
    url: str
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    body: Body | None
    deadline: Deadline | None = None
    """The deadline of the caller. The request says how much time is left."""

    def head(self, proxy: Proxy | None) -> bytes:
        """All that precedes the body. Raises ValueError for what cannot be sent."""
        fixed = _fixed_lines(self.method, self.url, tuple(self.headers.items()), self.body is not None, proxy)
        body, varying = self.body, ""
        if body is not None:
            length = len(body) if isinstance(body, bytes) else sum(map(len, body))
            varying = f"content-length: {length}\r\n"
        if self.deadline is not None:
            left_s = self.deadline.left_s()
            varying += f"{TIME_LEFT_HEADER}: {left_s - min(REPLY_TIME_S, left_s / 10):.3f}\r\n"
        if tracing.active is not None:
            varying += tracing.header_lines()
        if self.cookies:
            cookies = "; ".join([f"{name}={value}" for name, value in self.cookies.items()])
            return b"".join((fixed, varying.encode(), _lines({"cookie": cookies}), b"\r\n"))
        return fixed + varying.encode() + b"\r\n"

    def redirected(self, location: str) -> "Request":
        """The request to make instead. Another origin gets no credentials. Raises ValueError for one not to make."""
        url = urljoin(self.url, location)
        before, after = origin_of(self.url), origin_of(url)
        if urlsplit(url).username is not None:
            raise ValueError("it names a user")
        if before == after:
            return replace(self, url=_with_user_info_of(self.url, url))
        if before.is_tls and not after.is_tls:
            raise ValueError("it leaves TLS")
        if is_loopback(after.host) and not is_loopback(before.host):
            raise ValueError("it leads to this machine")
        headers = {name: value for name, value in self.headers.items() if name.lower() in _SENT_TO_ANY_ORIGIN}
        return replace(self, url=url, headers=headers, cookies={})


def _with_user_info_of(before: str, url: str) -> str:
    user_info, at, _ = urlsplit(before).netloc.rpartition("@")
    return url.replace("://", f"://{user_info}{at}", 1)


@lru_cache(maxsize=4096)
def _fixed_lines(
    method: str, url: str, headers: tuple[tuple[str, str], ...], has_body: bool, proxy: Proxy | None
) -> bytes:
    """The request line and the headers that are the same every time. A header given replaces a default."""
    lines = {"host": host_header(url), "accept-encoding": "gzip, deflate", "user-agent": "nemo-gym"}
    if has_body:
        lines["content-type"] = "application/json"
    user_info = user_info_of(url)
    if user_info is not None:
        lines["authorization"] = user_info
    is_forwarded = proxy is not None and not origin_of(url).is_tls
    if is_forwarded and proxy is not None and proxy.authorization is not None:
        lines["proxy-authorization"] = proxy.authorization
    spelled = {name.lower(): name for name, _ in headers}
    lines |= {name.lower(): value for name, value in headers}
    start = f"http://{host_header(url)}" if is_forwarded else ""
    named = {spelled.get(name, name): value for name, value in lines.items() if name != "content-length"}
    return f"{method} {start}{request_target(url)} HTTP/1.1\r\n".encode() + _lines(named)


def _lines(headers: Mapping[str, str]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        raise ValueError("a header may not contain a line break")
    return text.encode()


class Slots:
    """A semaphore that takes no coroutine while there are free slots: `if not slots.take(): await slots.wait()`."""

    __slots__ = ("_waiting", "free")

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        if self.free <= 0:
            return False
        self.free -= 1
        return True

    async def wait(self) -> None:
        """Wait for a slot and take it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


@dataclass(slots=True, eq=False)
class _Peer:
    """One origin, and the idle connections to it, the longest idle first."""

    origin: Origin
    proxy: Proxy | None
    settings: HttpSettings
    slots: Slots
    opened: set[Connection]
    """The open connections of the whole pool, idle or in use."""
    outgoing: SendQueue
    connecting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONNECTING))
    idle: deque[tuple[float, Connection]] = field(default_factory=deque)
    addresses: list[Any] = field(default_factory=list)
    resolved_at: float = -math.inf
    no_reuse_until: float = -math.inf
    was_reached: bool = False
    """True once a connection to the server was made."""

    def take_idle(self) -> Connection | None:
        """The connection that was used last, so that the others reach their keep-alive limit."""
        while self.idle:
            since, connection = self.idle.pop()
            if time.monotonic() - since < KEEP_ALIVE_S and connection.is_open:
                return connection
            connection.close()
        return None

    def put_idle(self, connection: Connection) -> None:
        now = time.monotonic()
        if now < self.no_reuse_until:
            connection.close()
        else:
            self.idle.append((now, connection))

    def on_unsolicited(self) -> None:
        """Called when the server sent data that no request asked for."""
        if time.monotonic() >= self.no_reuse_until:
            address = f"{self.origin.host}:{self.origin.port}"
            logger.warning("%s sent data that no request asked for; using each connection once", address)
        self.no_reuse_until = time.monotonic() + NO_REUSE_S
        self.close_old(older_than_s=-math.inf)

    def on_lost(self, connection: Connection) -> None:
        self.opened.discard(connection)

    def no_connection(self) -> str:
        """Return the error for a server that cannot be reached."""
        through = f" through the proxy {self.proxy}" if self.proxy else ""
        return f"no connection to {self.origin.host}:{self.origin.port}{through}"

    def close_old(self, *, older_than_s: float) -> None:
        while self.idle and self.idle[0][0] <= time.monotonic() - older_than_s:
            self.idle.popleft()[1].close()

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        if time.monotonic() - self.resolved_at > ADDRESSES_LAST_S:
            host, port = (self.proxy or self.origin)[:2]
            self.addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
            self.resolved_at = time.monotonic()
        tunnel_through = self.proxy if self.origin.is_tls else None
        try:
            connection = await connect(
                self.origin, self.addresses, lambda: Connection(loop, self), tunnel_through=tunnel_through
            )
        except ConnectionResetError:
            self.was_reached = True
            raise
        self.was_reached = True
        if connection.is_open:
            self.opened.add(connection)
        return connection


class HttpClient:
    """A pool of connections. Whoever makes one closes it."""

    def __init__(self, settings: HttpSettings | None = None) -> None:
        self._settings = settings or HttpSettings()
        self.max_response_bytes = self._settings.max_response_bytes
        self._limit = min(self._settings.global_aiohttp_connector_limit, outbound_limit())
        self._slots = Slots(self._limit)
        self._peers: dict[tuple[Origin, bool], _Peer] = {}
        self._opened: set[Connection] = set()
        self._outgoing = SendQueue()
        self._sweep: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """A pool with the settings that a configuration makes."""
        return cls(HttpSettings.of(config))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections, also those in use."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for peer in self._peers.values():
            peer.close_old(older_than_s=-math.inf)
        for connection in self._opened:
            connection.close()
        await asyncio.sleep(0)  # a closed connection lets go of its socket in the loop's next turn

    def usage(self) -> tuple[int, int]:
        """Count the connections in use and the idle ones."""
        idle = sum(len(peer.idle) for peer in self._peers.values())
        return len(self._opened) - idle, idle

    def was_reached(self, url: str) -> bool:
        """True if a connection to the server of this URL was ever made."""
        origin = origin_of(url)
        return any(peer.was_reached for (each, _), peer in self._peers.items() if each == origin)

    def fetch(
        self,
        method: str,
        url: str,
        *,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
        timeout_s: float,
        server: str | None = None,
        use_proxy: bool = True,
    ) -> Coroutine[Any, Any, ServerReply]:
        """Send one request and read the whole reply, in `timeout_s` and within the deadline of the running task.

        A redirect that repeats the request (307, 308) is followed; any other is returned as it is.
        """
        name, deadline, now = server or shown_url(url), current_deadline(), time.monotonic()
        if deadline is not None and deadline.at <= now:
            raise UpstreamError(name, 0, f"no time left to ask {shown_url(url)}", cause="timeout")
        request = Request(method, url, headers or {}, cookies or {}, body, deadline)
        exchange = self._exchange(request, name, use_proxy=use_proxy)
        is_limited = is_interrupted_by(deadline, at=now + timeout_s)
        return exchange if is_limited else _limited(exchange, timeout_s, url, name)

    async def _follow(self, request: Request, received: ServerReply, name: str, *, use_proxy: bool) -> ServerReply:
        for _ in range(MAX_REDIRECTS):
            location = received.headers.get("location")
            if received.status not in REDIRECTS or location is None:
                return received
            try:
                request = request.redirected(location)
            except ValueError as error:
                raise UpstreamError(name, received.status, f"its redirect is not followed: {error}") from error
            received = await self._exchange(request, name, use_proxy=use_proxy, follows=False)
        if received.status in REDIRECTS:
            raise UpstreamError(name, received.status, f"more than {MAX_REDIRECTS} redirects")
        return received

    async def _exchange(self, request: Request, name: str, *, use_proxy: bool, follows: bool = True) -> ServerReply:
        try:
            origin = origin_of(request.url)
            peer = self._peers.get((origin, use_proxy)) or self._add_peer(origin, use_proxy=use_proxy)
            head = request.head(peer.proxy)
        except ValueError as error:
            raise ConfigError(f"Cannot send a request to {shown_url(request.url)}: {error}") from error
        if not peer.slots.take():
            await peer.slots.wait()
        try:
            if not self._slots.take():
                await self._slots.wait()
            try:
                while True:
                    idle = peer.take_idle()
                    connection = idle or await self._connect(peer, name)
                    try:
                        reply = connection.send(head or request.head(peer.proxy), request.body)
                        head = b""  # who waits for a long reply need not hold what was sent
                        received = await reply
                        break
                    except UnsentError as error:
                        if idle is None:
                            raise ConnectError(name, 0, f"{peer.no_connection()}: {error}") from error
                    finally:
                        if connection.finish():
                            peer.put_idle(connection)
                            if self._sweep is None:
                                self._sweep_later()
            finally:
                self._slots.release()
        except ReplyTooLargeError as error:
            raise UpstreamError(name, error.status, str(error)) from error
        except (ConnectionLostError, OSError) as error:
            raise UpstreamError(name, 0, f"connection to {origin.host}:{origin.port} failed: {error}") from error
        finally:
            peer.slots.release()
        if follows and received.status in REDIRECTS:
            return await self._follow(request, received, name, use_proxy=use_proxy)
        return received

    def _add_peer(self, origin: Origin, *, use_proxy: bool) -> _Peer:
        proxy = proxy_for(origin, os.environ) if use_proxy else None
        slots = Slots(self._settings.global_aiohttp_connector_limit_per_host)
        peer = self._peers[origin, use_proxy] = _Peer(
            origin, proxy, self._settings, slots, self._opened, self._outgoing
        )
        return peer

    async def _connect(self, peer: _Peer, name: str) -> Connection:
        if open_connections.outbound >= self._limit:
            self._close_longest_idle()
        limit_s = self._settings.connect_timeout_s
        try:
            async with peer.connecting, asyncio.timeout(limit_s):
                return await peer.connect()
        except TimeoutError as error:
            raise ConnectError(name, 0, f"{peer.no_connection()} within {limit_s:g} s") from error
        except OSError as error:
            raise ConnectError(name, 0, f"{peer.no_connection()}: {error}") from error

    def _close_longest_idle(self) -> None:
        """Close an idle connection to one server so that one to another can be opened."""
        peers = [peer for peer in self._peers.values() if peer.idle]
        if peers:
            min(peers, key=lambda peer: peer.idle[0][0]).idle.popleft()[1].close()

    def _sweep_later(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._close_old)

    def _close_old(self) -> None:
        self._sweep = None
        for peer in self._peers.values():
            peer.close_old(older_than_s=KEEP_ALIVE_S)
        if any(peer.idle for peer in self._peers.values()):
            self._sweep_later()


async def _limited(exchange: Coroutine[Any, Any, ServerReply], timeout_s: float, url: str, name: str) -> ServerReply:
    def no_reply(limit: str) -> UpstreamError:
        return UpstreamError(name, 0, f"no reply from {shown_url(url)} within {limit}", cause="timeout")

    with timeout(timeout_s, error=no_reply):
        return await exchange


class Closable(Protocol):
    async def close(self) -> None: ...


def close_with_loop(thing: Closable) -> AsyncIterator[None]:
    """Close `thing` when the running loop ends: a loop closes its generators then. Keep a reference to the result."""

    async def hold() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await thing.close()

    holding = hold()
    asyncio.get_running_loop().create_task(anext(holding))  # type: ignore[arg-type]
    return holding


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[HttpClient, AsyncIterator[None]]] = WeakKeyDictionary()


def shared_client() -> HttpClient:
    """The client of the running loop, for code that is handed none."""
    loop = asyncio.get_running_loop()
    if loop not in _shared:
        client = HttpClient()
        _shared[loop] = client, close_with_loop(client)
    return _shared[loop][0]


async def close_shared_client() -> None:
    """Close the running loop's client, if it ever had one."""
    client, _closing = _shared.pop(asyncio.get_running_loop(), (None, None))
    if client is not None:
        await client.close()
