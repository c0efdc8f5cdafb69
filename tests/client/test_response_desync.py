"""Each request gets its own reply or an error, never another request's, whatever a server sends and when."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
import uvloop

from nemo_gym.client.pool import HttpClient
from nemo_gym.errors import UpstreamError
from tests.raw_server import raw_server

Get = Callable[[str], Awaitable[bytes]]


def reply(body: bytes, *, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body) if length is None else length, body)


def chunked(body: bytes) -> bytes:
    parts = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"


def read_request(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    return received


def spurious_once_idle(
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None, spurious: bytes, *, in_next_turn: bool
) -> bytes:
    """The second request's reply, with `spurious` bytes in the client's socket that its loop has not read yet when the
    request is made, or `in_next_turn` just before it is sent."""

    def answer(listening: socket.socket, body: bytes) -> socket.socket:
        connection, _ = listening.accept()
        read_request(connection)
        connection.sendall(reply(body))
        return connection

    async def main() -> bytes:
        async with HttpClient() as http:
            first = asyncio.create_task(asyncio.to_thread(answer, listening, b"first"))
            assert (await http.fetch("GET", url, timeout_s=10)).content() == b"first"
            with await first as connection:
                second = asyncio.create_task(asyncio.to_thread(answer, listening, b"second"))
                await asyncio.sleep(0)
                if in_next_turn:
                    asyncio.get_running_loop().call_soon(connection.sendall, spurious)
                else:
                    connection.sendall(spurious)
                body = (await http.fetch("GET", url, timeout_s=10)).content()  # sent at the end of the loop's turn
            with await second:
                return body

    with socket.create_server(("127.0.0.1", 0)) as listening, asyncio.Runner(loop_factory=loop_factory) as runner:
        listening.settimeout(10)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        return runner.run(main())


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("spurious", [reply(b"spurious"), b"HTTP/1.1 ", b"x"])
@pytest.mark.parametrize("in_next_turn", [False, True])
def test_bytes_that_wait_in_the_socket_are_not_the_next_reply(
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None, spurious: bytes, in_next_turn: bool
) -> None:
    assert spurious_once_idle(loop_factory, spurious, in_next_turn=in_next_turn) == b"second"


async def test_a_second_reply_in_the_same_read_adds_nothing_to_the_first() -> None:
    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"mine") + b"HTTP/1.1 500 No\r\nx-other: 1\r\ncontent-length: 1\r\n\r\n!")
        await writer.drain()

    async with raw_server(twice) as port, HttpClient() as http:
        received = await http.fetch("GET", f"http://127.0.0.1:{port}", timeout_s=10)
    assert (received.status, received.content(), dict(received.headers)) == (200, b"mine", {"content-length": "4"})


async def test_a_reply_before_the_request_was_sent_ends_the_connection() -> None:
    accepted: list[int] = []

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"too large"))
        await reader.read()

    async with raw_server(early, limit=1024) as port, HttpClient() as http:
        for _ in range(2):
            received = await http.fetch("POST", f"http://127.0.0.1:{port}", body=b"x" * 50_000_000, timeout_s=10)
            assert received.content() == b"too large"
    assert len(accepted) == 2


async def test_after_unsolicited_data_each_connection_is_used_once() -> None:
    accepted, spoke = [], asyncio.Event()

    def speak(writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"late"))
        spoke.set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply(b"{}"))
            if len(accepted) == 1:
                asyncio.get_running_loop().call_later(0.01, speak, writer)

    async with raw_server(handle) as port, HttpClient() as http:
        url = f"http://127.0.0.1:{port}"
        await http.fetch("GET", url, timeout_s=10)
        await spoke.wait()
        await asyncio.sleep(0.05)  # the loop reads what came, while nobody asks
        for _ in range(3):
            assert (await http.fetch("GET", url, timeout_s=10)).content() == b"{}"
    assert len(accepted) == 4


@dataclass
class FaultyServer:
    """Replies with the request's path, in a different faulty way each time. What no request asked for is sent only
    while the client is idle: later it could not be told from a reply by anyone."""

    random: random.Random
    client_is_idle: bool = True
    url: str = ""
    late: list[asyncio.TimerHandle] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            fault = self.random.choice((*FAULTS, *WHOLE))
            if not await fault(self, path, writer):
                break

    def later(self, send: Callable[[], None]) -> None:
        def if_idle() -> None:
            if self.client_is_idle:
                send()

        delay = self.random.choice((0.0, 0.001, 0.003))
        self.late.append(asyncio.get_running_loop().call_later(delay, if_idle))


Fault = Callable[[FaultyServer, bytes, asyncio.StreamWriter], Awaitable[bool]]


async def right(_server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(reply(path))
    return True


async def in_pieces(_server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    for byte in chunked(path):
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    return True


async def after_informational(_server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n" + reply(path))
    return True


async def twice(_server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(reply(path) * 2)
    return True


async def again_later(server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(reply(path))
    server.later(lambda: writer.write(reply(path)))
    return True


async def next_reply_early(server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(reply(path))
    server.later(lambda: writer.write(reply(b"/early")))
    return True


async def half_a_reply_later(server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(reply(path))
    server.later(lambda: writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n/"))
    return True


async def extra_bytes(_server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(reply(path) + b"\r\n\r\nextra")
    return True


async def length_too_small(_server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(reply(path, length=len(path) - 1))
    return True


async def length_too_large(_server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(reply(path, length=len(path) + 1))
    await asyncio.sleep(0.002)
    return False


async def too_late(server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    asyncio.get_running_loop().call_later(0.1, writer.write, reply(path))
    return True


async def two_lengths(_server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n" + reply(path).removeprefix(b"HTTP/1.1 200 OK\r\n"))
    return True


async def length_and_chunks(_server: FaultyServer, path: bytes, writer: asyncio.StreamWriter) -> bool:
    writer.write(chunked(path).replace(b"\r\n\r\n", b"\r\ncontent-length: 1\r\n\r\n", 1))
    return True


async def hang_up(_server: FaultyServer, _path: bytes, _writer: asyncio.StreamWriter) -> bool:
    return False


WHOLE: tuple[Fault, ...] = (right, in_pieces, after_informational)
FAULTS: tuple[Fault, ...] = (
    *(twice, again_later, next_reply_early, half_a_reply_later, extra_bytes, length_too_small, length_too_large),
    *(two_lengths, length_and_chunks, hang_up),
)


@asynccontextmanager
async def ours(timeout_s: float) -> AsyncIterator[Get]:
    async with HttpClient() as http:

        async def get(url: str) -> bytes:
            return (await http.fetch("GET", url, timeout_s=timeout_s)).content()

        yield get


@asynccontextmanager
async def with_aiohttp(timeout_s: float) -> AsyncIterator[Get]:
    async with aiohttp.ClientSession() as session:

        async def get(url: str) -> bytes:
            async with asyncio.timeout(timeout_s), session.get(url) as response:
                return await response.read()

        yield get


async def wrong_replies(
    client: Callable[[float], contextlib.AbstractAsyncContextManager[Get]], seed: int
) -> list[str]:
    """The requests that got anything but their own reply, out of some hundred. An error is right, too."""
    server, found = FaultyServer(random.Random(seed)), []
    async with raw_server(server.handle) as port:
        for start in range(0, 150, 10):
            async with client(0.1) as get:
                for number in range(start, start + 10):
                    path = f"/{number:04d}"
                    server.client_is_idle = False
                    with contextlib.suppress(UpstreamError, aiohttp.ClientError, TimeoutError):
                        body = await get(f"http://127.0.0.1:{port}{path}")
                        found += [] if body == path.encode() else [f"{path} got {body!r}"]
                    server.client_is_idle = True
                    await asyncio.sleep(server.random.choice((0.0, 0.0, 0.001, 0.004)))
        for handle in server.late:
            handle.cancel()
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_no_request_gets_anothers_reply_and_aiohttp_does_no_better(seed: int) -> None:
    mine, theirs = await wrong_replies(ours, seed), await wrong_replies(with_aiohttp, seed)
    assert mine == []
    assert len(mine) <= len(theirs)


async def test_a_reply_after_the_time_out_goes_to_nobody() -> None:
    server = FaultyServer(random.Random(0))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            await (too_late if path.endswith(b"slow") else right)(server, path, writer)

    async with raw_server(handle) as port, HttpClient() as http:
        url = f"http://127.0.0.1:{port}"
        for number in range(5):
            with pytest.raises(UpstreamError):
                await http.fetch("GET", f"{url}/{number}slow", timeout_s=0.02)
            assert (await http.fetch("GET", f"{url}/{number}", timeout_s=10)).content() == f"/{number}".encode()
        await asyncio.sleep(0.15)
        assert (await http.fetch("GET", f"{url}/end", timeout_s=10)).content() == b"/end"
