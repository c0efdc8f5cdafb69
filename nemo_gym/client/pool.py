"""The HTTP client: a pool of connections for each event loop, with a timeout on everything."""

import asyncio
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary

from nemo_gym.client.connection import (
    Connection,
    ConnectionLostError,
    HttpSettings,
    ReplyTooLargeError,
    SendQueue,
    UnsentError,
    connect,
)
from nemo_gym.client.http_messages import MAX_REDIRECTS, REDIRECTS, HttpReply, Request
from nemo_gym.client.url import Origin, Proxy, origin_of, proxy_for, shown_url
from nemo_gym.common.deadline import current_deadline, is_interrupted_by, timeout
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
data might arrive just after a request was sent, and nothing would tell it from the reply."""


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
    """A connection was ever made, whatever became of it."""

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
        """What an error says of a server that cannot be reached."""
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
        """How many connections are in use, and how many are idle."""
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
    ) -> Coroutine[Any, Any, HttpReply]:
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

    async def _follow(self, request: Request, received: HttpReply, name: str, *, use_proxy: bool) -> HttpReply:
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

    async def _exchange(self, request: Request, name: str, *, use_proxy: bool, follows: bool = True) -> HttpReply:
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
        """Make room for a connection to one server at the expense of another."""
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


async def _limited(exchange: Coroutine[Any, Any, HttpReply], timeout_s: float, url: str, name: str) -> HttpReply:
    def no_reply(limit: str) -> UpstreamError:
        return UpstreamError(name, 0, f"no reply from {shown_url(url)} within {limit}", cause="timeout")

    with timeout(timeout_s, error=no_reply):
        return await exchange


class Closable(Protocol):
    async def close(self) -> None: ...


def close_with_loop(thing: Closable) -> AsyncIterator[None]:
    """Close a thing when the running loop ends, which closes the generators it has begun. Keep what this gives."""

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
