"""The HTTP client ends in time, and the pauses between tries follow their rule."""

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psutil
import pytest

from nemo_gym.client.pool import MAX_CONNECTING, HttpClient
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.common.deadline import fresh_deadline
from nemo_gym.common.retry import track_retries
from nemo_gym.errors import ConnectError, RolloutError, UpstreamError
from tests.polling import until

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer_that(talk: Talk) -> AsyncIterator[str]:
    """A peer that does just that with every connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.close()


async def stall(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def half_a_body(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    await writer.drain()


async def hang_up(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    return


async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"what?\r\n\r\n")
    await writer.drain()


@pytest.mark.parametrize("talk", [half_a_body, hang_up, babble])
async def test_a_peer_that_breaks_off_is_an_error_that_names_it(talk: Talk) -> None:
    async with peer_that(talk) as url, HttpClient() as http:
        with pytest.raises(UpstreamError, match=f"{url} did not answer: .*failed") as caught:
            await http.fetch("POST", url, body=b"{}", timeout_s=5)
        assert not isinstance(caught.value, ConnectError)


async def test_a_peer_that_stalls_is_waited_for_no_longer_than_allowed() -> None:
    async with peer_that(stall) as url, HttpClient() as http:
        with pytest.raises(UpstreamError, match=r"within 0\.1 s") as caught:
            await http.fetch("GET", url, timeout_s=0.1)
        assert caught.value.cause == "timeout"
        with fresh_deadline(0.2), pytest.raises(UpstreamError, match=r"within 0\.|no time left"):
            await http.fetch("GET", url, timeout_s=60)


async def test_nobody_there_is_an_error_that_says_nothing_was_sent() -> None:
    async with HttpClient() as http:
        with pytest.raises(ConnectError, match="no connection"):
            await http.fetch("GET", "http://127.0.0.1:9", timeout_s=5)


async def test_a_peer_that_accepts_no_connection_is_waited_for_until_the_timeout() -> None:
    with socket.socket() as listening, contextlib.ExitStack() as opened:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(2):  # its queue is full now, and the next one waits
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        async with HttpClient.of({"connect_timeout_s": 0.2}) as http:
            with pytest.raises(ConnectError, match=r"no connection .* within 0\.2 s"):
                await http.fetch("GET", f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_s=5)


async def test_a_large_body_arrives_whole() -> None:
    received: list[int] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(len(await reader.readexactly(3_000_000)))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()

    async with peer_that(count) as url, HttpClient() as http:
        answer = await http.fetch("POST", url, body=b"x" * 3_000_000, timeout_s=10)
    assert (answer.status, received) == (200, [3_000_000])


async def test_a_server_that_cannot_be_reached_is_tried_again_as_long_as_there_is_time() -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody_listens.getsockname()[1]}"
        async with ServerClient(addresses={"agent": address}, http=HttpClient()) as client:
            with track_retries() as stats, pytest.raises(RolloutError, match=r"no connection|within 2 s") as caught:
                await client.call("agent", "/run", {}, answer=ServerReply, timeout_s=2.0)
    assert caught.value.server == "agent"
    assert stats.retries >= 1


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_of_a_server_is_an_error_and_never_its_answer(status: int) -> None:
    async def redirect(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Go\r\nlocation: /login\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        await writer.drain()

    async with peer_that(redirect) as url, ServerClient(addresses={"agent": url}, http=HttpClient()) as client:
        with pytest.raises(RolloutError, match=f"answered {status}"):
            await client.call("agent", "/run", {}, answer=ServerReply, timeout_s=10)


async def test_a_flood_of_requests_opens_few_connections_at_a_time() -> None:
    def opening() -> int:
        found = psutil.Process().net_connections(kind="tcp")
        return sum(one.status == psutil.CONN_SYN_SENT and one.raddr[1] == port for one in found if one.raddr)

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)  # and nobody accepts
        port = listening.getsockname()[1]
        async with HttpClient() as http:
            url = f"http://127.0.0.1:{port}/"
            asking = [asyncio.create_task(http.fetch("GET", url, timeout_s=60)) for _ in range(MAX_CONNECTING * 2)]
            await until(lambda: opening() > MAX_CONNECTING - 10)
            assert opening() <= MAX_CONNECTING
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def test_a_connection_that_the_server_closed_before_the_request_was_sent_can_be_retried() -> None:
    """As in a process so busy that the server no longer waits for its request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with HttpClient() as http:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            fetching = asyncio.create_task(http.fetch("POST", url, body=b"{}", timeout_s=60))

            def close_the_first() -> None:
                listening.accept()[0].close()

            while not fetching.done():
                await asyncio.sleep(0)
                if select.select([listening], [], [], 0)[0]:
                    close_the_first()
                    break
            with pytest.raises(ConnectError, match="before the request was sent"):
                await fetching
