"""Whatever a server does on a connection: a request gets its own whole answer or an error, and so does the next."""

import asyncio
import contextlib
import gzip
import ssl
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from nemo_gym.client.connection import HttpSettings
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.reply import ServerReply
from nemo_gym.errors import ConfigError, UpstreamError
from tests.polling import until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
HANG_UP = b"(hang up)"


@dataclass
class Peer:
    """A server that answers the requests it gets, on whichever connection, with these bytes in turn."""

    answers: Sequence[bytes]
    piece_bytes: int = 100_000
    url: str = ""
    connections: int = 0
    most_at_once: int = 0
    lost: int = 0
    requests: list[bytes] = field(default_factory=list)
    open: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_at_once = max(self.most_at_once, self.open)
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                answer = self.answers[(len(self.requests) - 1) % len(self.answers)]
                for start in range(0, len(answer), self.piece_bytes):
                    writer.write(answer[start : start + self.piece_bytes].removesuffix(HANG_UP))
                    await asyncio.sleep(0)
                if answer.endswith(HANG_UP):
                    writer.write_eof()
                    await reader.read()  # until the client has noticed
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def peer_with(*answers: bytes, piece_bytes: int = 100_000) -> AsyncIterator[tuple[Peer, HttpClient]]:
    peer = Peer(answers, piece_bytes)
    server = await asyncio.start_server(peer.handle, "127.0.0.1", 0)
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, HttpClient() as http:
        yield peer, http
        await http.close()
        await until(lambda: not peer.open)


async def get(http: HttpClient, peer: Peer) -> ServerReply:
    return await http.fetch("GET", peer.url, timeout_s=5)


def packed(body: bytes, encoding: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        encoding.encode(),
        len(body),
        body,
    )


@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"{}"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, b"abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, 200, b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", 500, b""),
        (packed(gzip.compress(b"whole", mtime=0), "gzip"), 200, b"whole"),
        (packed(zlib.compress(b"whole"), "deflate"), 200, b"whole"),
        (packed(b"whole", "identity"), 200, b"whole"),
    ],
)
async def test_an_answer_is_read_whole_and_the_connection_is_used_again(
    answer: bytes, status: int, body: bytes, piece_bytes: int
) -> None:
    async with peer_with(answer, OK, piece_bytes=piece_bytes) as (peer, http):
        first = await get(http, peer)
        assert (first.status, first.content()) == (status, body)
        assert (await get(http, peer)).content() == b"{}"
        assert peer.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}" + HANG_UP,
        b"HTTP/1.0 200 OK\r\n\r\n{}" + HANG_UP,
        OK + HANG_UP,
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhers",
    ],
)
async def test_a_connection_that_ends_or_says_too_much_is_used_once(answer: bytes) -> None:
    async with peer_with(answer) as (peer, http):
        for _ in range(3):
            assert (await get(http, peer)).content() == b"{}"
            await until(lambda: not peer.open)
        assert peer.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        HANG_UP,
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}" + HANG_UP,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab" + HANG_UP,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{} ",
        b"220 smtp.example.com ESMTP\r\n",
        packed(b"no gzip at all", "gzip"),
        packed(b"whole", "br"),
        b"\x00" * 1000,
    ],
)
async def test_half_an_answer_or_none_is_an_error_and_the_next_request_gets_its_own(answer: bytes) -> None:
    async with peer_with(answer, OK) as (peer, http):
        with pytest.raises(UpstreamError, match=r"connection to .* failed") as caught:
            await get(http, peer)
        assert caught.value.status == 0
        assert (await get(http, peer)).content() == b"{}"


async def test_an_answer_that_nobody_waits_for_any_more_goes_to_nobody() -> None:
    async with peer_with(b"", OK) as (peer, http):
        asking = asyncio.create_task(get(http, peer))
        await until(lambda: peer.requests)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        peer.requests.clear()
        with pytest.raises(UpstreamError, match=r"within 0\.2 s"):
            await http.fetch("GET", peer.url, timeout_s=0.2)
        await until(lambda: peer.lost == 2)
        peer.answers = [OK]
        assert (await get(http, peer)).content() == b"{}"
        assert (peer.connections, peer.lost) == (3, 2)


async def test_no_more_connections_than_allowed_are_open_and_the_others_wait() -> None:
    async with peer_with(OK) as (peer, _):
        async with HttpClient(HttpSettings(global_aiohttp_connector_limit_per_host=2)) as http:
            answers = await asyncio.gather(*(get(http, peer) for _ in range(20)))
        assert [answer.content() for answer in answers] == [b"{}"] * 20
        assert (peer.most_at_once, len(peer.requests)) == (2, 20)


AT_ONCE = 300
"""Each costs two open files here, and 1,024 is a usual limit."""


async def test_hundreds_of_requests_at_once_each_get_their_own_answer() -> None:
    open_connections = 0

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        open_connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(asked), asked))
        writer.close()
        open_connections -= 1

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, HttpClient() as http:
        for _ in range(3):
            answers = await asyncio.gather(*(http.fetch("GET", f"{url}/{n}", timeout_s=60) for n in range(AT_ONCE)))
            assert [answer.content() for answer in answers] == [b"/%d" % n for n in range(AT_ONCE)]
        await http.close()
        await until(lambda: not open_connections)


async def test_what_is_sent_is_what_was_meant() -> None:
    async with peer_with(OK) as (peer, http):
        place = peer.url.removeprefix("http://")
        url = f"http://me:s%40y@{place}/a b/ä?q=1&r=x y#there"
        await http.fetch("POST", url, body=b"", headers={"X-Team": "gym"}, cookies={"a": "1", "b": "2"}, timeout_s=5)
        first, *others = peer.requests[0].decode().split("\r\n")
    assert first == "POST /a%20b/%C3%A4?q=1&r=x%20y HTTP/1.1"
    assert {line.lower() for line in others} >= {
        f"host: {place}",
        "authorization: basic bwu6c0b5",
        "x-team: gym",
        "cookie: a=1; b=2",
        "content-length: 0",
        "content-type: application/json",
    }


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://host/v1", "http:///v1", "", "http://host:port"])
async def test_an_invalid_address_is_an_error_at_once(url: str) -> None:
    async with HttpClient() as http:
        with pytest.raises(ConfigError, match="Cannot send a request"):
            await http.fetch("GET", url, timeout_s=5)


@pytest.mark.parametrize("value", ["key\n", "key\r\nHost: elsewhere"])
async def test_no_header_can_be_smuggled_in(value: str) -> None:
    async with HttpClient() as http:
        with pytest.raises(ConfigError, match="line break") as caught:
            await http.fetch("GET", "http://127.0.0.1:9", headers={"Authorization": value}, timeout_s=5)
    assert "key" not in str(caught.value)


ASK = """
import asyncio, sys
from nemo_gym.common import event_loop
from nemo_gym.client.pool import HttpClient

async def ask():
    async with HttpClient() as http:
        for _ in range(2):
            print((await http.fetch("GET", sys.argv[1], timeout_s=10)).content())

{run}(ask())
"""


@pytest.mark.parametrize("run", ["asyncio.run", "event_loop.run"])
async def test_a_server_with_a_certificate_is_spoken_to_only_if_it_is_to_be_trusted(run: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    peer = Peer([OK])
    server = await asyncio.start_server(peer.handle, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"

    async def asked(**trust: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", ASK.replace("{run}", run), url],
            env=trust,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    async with server:
        trusted = await asked(SSL_CERT_FILE=str(tmp_path / "authority.pem"))
        doubtful = await asked()
        await until(lambda: not peer.open)
    assert trusted.stdout == "b'{}'\n" * 2, trusted.stderr
    assert (peer.connections, len(peer.requests)) == (1, 2)
    assert "ConnectError" in doubtful.stderr
    assert "certificate verify failed" in doubtful.stderr


async def test_idle_connections_to_one_server_make_room_for_those_to_another() -> None:
    settings = {"global_aiohttp_connector_limit": 2}
    async with peer_with(OK) as (first, _), peer_with(OK) as (second, _), HttpClient.of(settings) as http:
        await asyncio.gather(get(http, first), get(http, first))
        assert first.open == 2
        await get(http, second)
        await until(lambda: first.open == 1)
        assert second.open == 1
