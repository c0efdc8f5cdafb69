"""The virtual network: connections that are slow, lose packets, are reset or stay half open.

TCP repairs loss, repetition and order inside a connection, so there they are delays; between connections, requests do
arrive in another order, and a request that is repeated arrives twice."""

import asyncio
import contextvars
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

FIRST_DESCRIPTOR = 1_000_000
LATENCY_S = (0.0002, 0.002)
RETRANSMITTED_S = (0.2, 3.0)


class Socket:
    """As much of a socket as the product looks at."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def __init__(self, network: "Network", port: int, peer_port: int = 0) -> None:
        self._number = network.new_descriptor()
        self._port, self._peer_port = port, peer_port

    def fileno(self) -> int:
        return self._number

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", self._peer_port

    def setsockopt(self, *_args: object) -> None:
        pass

    def close(self) -> None:
        pass


class Listener(Socket):
    """A listening socket. It may outlive the process that accepts connections on it: its supervisor holds it."""

    def __init__(self, network: "Network", port: int, *, is_held: bool) -> None:
        super().__init__(network, port)
        self.port, self.is_held = port, is_held
        self._network = network
        self._accept: Callable[[Transport], None] | None = None
        self._backlog: deque[Transport] = deque()
        self.process: Process | None = None
        self.on_sent: Callable[[Transport, bytes], None] | None = None
        """Sees what clients send, when they send it."""

    def serve(self, process: "Process", accept: "Callable[[Transport], None]") -> None:
        self.process, self._accept = process, accept
        process.listeners[self] = None
        while self._backlog:
            self.add(self._backlog.popleft())

    def add(self, transport: "Transport") -> None:
        if self._accept is None:
            self._backlog.append(transport)
        elif transport.is_open:
            self._accept(transport)

    def lose_server(self) -> None:
        """The process that accepts is gone."""
        if self.process is not None:
            self.process.listeners.pop(self, None)
        self.process = self._accept = None
        if not self.is_held:
            self.close()

    def close(self) -> None:
        self._network.listeners.pop(self.port, None)


class PairedSocket(Socket):
    """One end of a `socketpair`. The process that it is passed to connects it to its loop."""

    def __init__(self, network: "Network") -> None:
        super().__init__(network, 0)
        self.transport = Transport(network, None, self)

    def __enter__(self) -> "PairedSocket":
        return self

    def __exit__(self, *_error: object) -> None:
        pass


class Server:
    """What `create_server` returns."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.sockets = [listener]

    def close(self) -> None:
        self._listener.lose_server()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()
        await self.wait_closed()


class Network:
    """All connections and listening sockets."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.listeners: dict[int, Listener] = {}
        self.transports: dict[int, Transport] = {}
        self._descriptors, self._ports = FIRST_DESCRIPTOR, 20_000
        self.loss_rate = self.split_rate = 0.0
        self.slow_until, self.slowness = 0.0, 1.0
        self.blocked: dict[str, float] = {}
        """Until when no packet of a process arrives, by its name."""

    def new_descriptor(self) -> int:
        self._descriptors += 1
        return self._descriptors

    def new_port(self) -> int:
        self._ports += 1
        return self._ports

    def free_listener(self) -> Listener:
        """A listening socket that closes with the process that serves it."""
        return self._listener(self.new_port(), is_held=False)

    def held_listener(self) -> Listener:
        """A listening socket that a supervisor holds."""
        return self._listener(self.new_port(), is_held=True)

    def _listener(self, port: int, *, is_held: bool) -> Listener:
        listener = self.listeners[port] = Listener(self, port, is_held=is_held)
        return listener

    def delay_s(self, *names: str) -> float:
        """How long a packet between two processes takes."""
        world, drawn = self.world, self.world.random
        delay = drawn.uniform(*LATENCY_S)
        if world.now < self.slow_until:
            delay *= self.slowness
        if self.loss_rate and drawn.random() < self.loss_rate:
            delay += drawn.uniform(*RETRANSMITTED_S)
        return max(delay, *(self.blocked.get(name, 0.0) + delay - world.now for name in names))

    async def connect(self, process: "Process", make: Any, port: int, *, sock: Any = None) -> Any:
        loop = process.loop
        if sock is not None:
            sock.transport.process = process
            sock.transport.attach(protocol := make())
            await asyncio.sleep(0)
            return sock.transport, protocol
        arrived: asyncio.Future[None] = loop.create_future()
        server = self.listeners.get(port)
        other = server.process.name if server is not None and server.process is not None else f"port {port}"

        def arrive() -> None:
            if process.is_alive:
                loop.call_soon(settle)

        def settle() -> None:
            if not arrived.done():
                arrived.set_result(None)

        self.world.after(2 * self.delay_s(process.name, other), arrive)
        await arrived
        listener = self.listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(111, "Connection refused")
        client_port = self.new_port()
        own = Transport(self, process, Socket(self, client_port, port))
        theirs = Transport(self, listener.process, Socket(self, port, client_port))
        own.peer, theirs.peer = theirs, own
        protocol = make()
        own.attach(protocol)
        listener.add(theirs)
        await asyncio.sleep(0)
        return own, protocol

    def listen(self, process: "Process", make: Any, port: int, *, sock: Any = None) -> Server:
        if sock is None:
            port = port or self.new_port()
            if port in self.listeners:
                raise OSError(98, "Address already in use")
            listener = self._listener(port, is_held=False)
        else:
            listener = sock
        context = contextvars.copy_context()

        def accept(transport: Transport) -> None:
            transport.process = process
            process.loop.call_soon(accept_now, transport, context=context)

        def accept_now(transport: Transport) -> None:
            transport.attach(make())

        listener.serve(process, accept)
        return Server(listener)

    def socketpair(self) -> tuple[PairedSocket, PairedSocket]:
        """In the place of `socket.socketpair`."""
        ours, theirs = PairedSocket(self), PairedSocket(self)
        ours.transport.peer, theirs.transport.peer = theirs.transport, ours.transport
        return ours, theirs

    def send(self, source: "Transport", item: bytes | Exception | None, *, is_whole: bool = False) -> None:
        """Send bytes, the end (None), or a reset."""
        if source.process is not None and source.process.dies_of and source.is_open:
            return
        target, names = source.peer, (source.owner, source.peer.owner)
        pieces: list[Any] = [item]
        if not is_whole and isinstance(item, bytes) and len(item) > 1 and self.world.random.random() < self.split_rate:
            middle = self.world.random.randrange(1, len(item))
            pieces = [item[:middle], item[middle:]]
        for piece in pieces:
            source.last_arrival = max(source.last_arrival, self.world.now + self.delay_s(*names))
            self.world.at(source.last_arrival, self._deliver, source, target, piece)

    def _deliver(self, source: "Transport", target: "Transport", item: Any) -> None:
        if source.is_cut:
            return
        if not target.is_open:
            if isinstance(item, bytes) and source.is_open:
                source.receive(ConnectionResetError(104, "Connection reset by peer"))
            return
        target.receive(item)

    def open_connections(self) -> "list[Transport]":
        """One end of each open connection, in the order in which they were opened."""
        return [each for each in self.transports.values() if each.is_open and each.is_client]


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, process: "Process | None", own: Socket) -> None:
        super().__init__()
        self._network, self._socket = network, own
        self.process = process
        self.peer: Transport
        self.protocol: Any = None
        self.last_arrival = 0.0
        self.is_open, self.is_cut, self.is_client = True, False, False
        self._is_closing = self._is_paused = self._has_read_scheduled = self._is_lost = False
        self.inbox: deque[bytes | Exception | None] = deque()
        """What has arrived and was not read."""
        network.transports[own.fileno()] = self

    @property
    def owner(self) -> str:
        return "nobody" if self.process is None else self.process.name

    def attach(self, protocol: Any) -> None:
        """The process has a protocol for it now."""
        process = self.process
        if process is None or not process.is_alive:
            return
        self.is_client = self._socket.getpeername()[1] in self._network.listeners
        self.protocol = protocol
        process.transports[self] = None
        self._context = contextvars.copy_context()
        process.loop.call_soon(protocol.connection_made, self, context=self._context)
        self._read_soon()

    def receive(self, item: bytes | Exception | None) -> None:
        """Something arrives in the kernel."""
        self.inbox.append(item)
        self._read_soon()

    def _read_soon(self) -> None:
        if self.protocol is None or self._is_paused or self._has_read_scheduled or not self.inbox:
            return
        self._has_read_scheduled = True
        self.process.loop.call_soon(self._read, context=self._context)  # type: ignore[union-attr]

    def _read(self) -> None:
        self._has_read_scheduled = False
        if self._is_closing or self._is_paused or not self.inbox:
            return
        received = []
        while self.inbox and isinstance(self.inbox[0], bytes):
            received.append(self.inbox.popleft())
        if received:
            self.protocol.data_received(b"".join(received))  # type: ignore[arg-type]
            self._read_soon()
            return
        item = self.inbox.popleft()
        if item is None and self.protocol.eof_received():
            return
        self._close(item if isinstance(item, Exception) else None)

    def _close(self, error: Exception | None) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self.process.loop.call_soon(self._lose, error, context=self._context)  # type: ignore[union-attr]

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            if self.is_open:
                self.is_open = False
                self._network.send(self, None)
            if self.process is not None:
                self.process.transports.pop(self, None)
            self._network.transports.pop(self._socket.fileno(), None)
            self.protocol.connection_lost(error)

    def die(self, *, is_reset: bool) -> None:
        """Its process is gone."""
        if self.is_open:
            self.is_open = False
            is_reset = is_reset and self._network.world.random.random() < 0.5
            self._network.send(self, ConnectionResetError(104, "Connection reset by peer") if is_reset else None)
        self._network.transports.pop(self._socket.fileno(), None)

    @property
    def is_orphaned(self) -> bool:
        """True if the peer is gone, which this end may not know."""
        return self.is_cut or not self.peer.is_open

    def reset(self) -> None:
        """The network resets the connection."""
        for end in (self, self.peer):
            if end.is_open:
                end.receive(ConnectionResetError(104, "Connection reset by peer"))

    def cut(self) -> None:
        """Nothing arrives any more, at either end."""
        self.is_cut = self.peer.is_cut = True

    def write_whole(self, data: bytes) -> None:
        """Send bytes that arrive together."""
        self._network.send(self, data, is_whole=True)

    # For the protocol

    def write(self, data: Any) -> None:
        if not self._is_closing and self.is_open and data:
            listener = self._network.listeners.get(self._socket.getpeername()[1])
            if listener is not None and listener.on_sent is not None:
                listener.on_sent(self, data)
            self._network.send(self, bytes(data))

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        if self.is_open:
            self._network.send(self, None)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self._close(None)

    def abort(self) -> None:
        self._close(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read_soon()

    def is_reading(self) -> bool:
        return not self._is_paused

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {
            "socket": self._socket,
            "sockname": self._socket.getsockname(),
            "peername": self._socket.getpeername(),
        }
        return known.get(name, default)


class Poller:
    """In the place of `select.poll`: what the kernel has of a connection that was not read."""

    network: Network

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def register(self, number: int, _events: int) -> None:
        self._numbers.append(number)

    def poll(self, _timeout: float | None = None) -> list[tuple[int, int]]:
        found = (self.network.transports.get(number) for number in self._numbers)
        return [(0, 1) for transport in found if transport is None or transport.inbox]
