"""A client that sends too much, too slowly, or too often gets an error, and its memory is released."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from nemo_gym.base_resources_server import BaseVerifyRequest, SessionState, SimpleResourcesServer, tool
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import CookieJar, ServerClient, base_url
from nemo_gym.common.retry import track_retries
from nemo_gym.errors import ConfigError, OverloadedError, SessionLostError, UpstreamError
from nemo_gym.server.app import ServerApp
from nemo_gym.server.request_checks import MAX_CONNECTIONS, ServerLimits
from nemo_gym.server.session import SessionStore
from nemo_gym.server.uvicorn_runner import bind, serving
from tests.polling import until

LATE_S = 0.5
"""A header timeout that a request which is sent at once never reaches, on a busy machine either."""
HEAD = b"POST /count HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LAST = HEAD + b"connection: close\r\n"


class Count(SessionState):
    calls: int = 0


class Counting(SimpleResourcesServer):
    @tool
    async def count(self, session: Count) -> int:
        session.calls += 1
        return session.calls

    @tool
    async def length(self, text: str) -> int:
        return len(text)

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


@asynccontextmanager
async def counting(**limits: float) -> AsyncIterator[int]:
    """A server with these limits; gives its port."""
    async with counting_app(**limits) as (port, _):
        yield port


@asynccontextmanager
async def counting_app(**limits: float) -> AsyncIterator[tuple[int, ServerApp]]:
    config = {"name": "counting", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
    allowed = ServerLimits.of(limits)
    server = Counting(config=Counting.config_class().model_validate(config), server_client=ServerClient())
    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        app = server.asgi_app(limits=allowed)
        async with serving({port: app}, [listening], allowed):
            yield port, app


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def response(port: int, *pieces: bytes) -> tuple[int, bytes]:
    """The status and body that a client gets which sends these bytes and waits."""
    async with connected(port) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        received = await asyncio.wait_for(reader.read(), 30)
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD, b"x: " + b"a" * 2000 + b"\r\ncontent-length: 2\r\n\r\n{}"],
        [HEAD, *(b"x-%d: %s\r\n" % (number, b"a" * 100) for number in range(5000))],
        [HEAD + b"x: ", *([b"a" * 10_000] * 100)],
        [b"POST /", *([b"a" * 10_000] * 100)],
        [HEAD, b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", *([b"x: " + b"a" * 1000 + b"\r\n"] * 1000)],
    ],
    ids=["one header", "many headers", "an endless header", "an endless path", "endless trailers"],
)
async def test_headers_that_are_too_large_are_refused(pieces: list[bytes]) -> None:
    async with counting(max_header_bytes=1024) as port:
        status, body = await response(port, *pieces)
        assert status == 431
        assert b"max_header_bytes" in body
        assert (await response(port, HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"))[0] == 200


async def test_a_large_body_does_not_count_as_headers() -> None:
    text = b"a" * 1_000_000
    body = b'{"text": "%s"}' % text
    head = HEAD.replace(b"count", b"length") + b"connection: close\r\n"
    async with counting(max_header_bytes=1024) as port:
        whole = await response(port, head + b"content-length: %d\r\n\r\n" % len(body) + body)
        chunks = [
            b"%x\r\n%s\r\n" % (len(part), part) for part in (body[at : at + 100] for at in range(0, 50_000, 100))
        ]
        rest = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body) - 50_000, body[50_000:])
        chunked = await response(port, head + b"transfer-encoding: chunked\r\n\r\n", *chunks, rest)
    assert whole == chunked == (200, str(len(text)).encode())


async def test_headers_that_never_end_time_out() -> None:
    async with counting(header_timeout_s=LATE_S) as port:
        status, body = await response(port, HEAD)
        assert status == 408
        assert b"header_timeout_s" in body


async def test_the_second_request_of_a_connection_times_out_too() -> None:
    async with counting(header_timeout_s=LATE_S) as port, connected(port) as (reader, writer):
        writer.write(HEAD + b"content-length: 2\r\n\r\n{}")
        assert b" 200 " in await reader.readline()
        writer.write(HEAD)
        assert b" 408 " in (await asyncio.wait_for(reader.read(), 30))


async def test_a_connection_that_sends_nothing_is_closed_without_a_response() -> None:
    async with counting(header_timeout_s=0.05) as port, connected(port) as (reader, _writer):
        assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_over_the_connection_limit_the_client_retries_until_there_is_room() -> None:
    async with counting(max_connections=4) as port, contextlib.AsyncExitStack() as idle, HttpClient() as http:
        for _ in range(4):
            _reader, writer = await idle.enter_async_context(connected(port))
            writer.write(HEAD)
        status, body = await response(port, HEAD + b"content-length: 2\r\n\r\n{}")
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "overloaded")
        client = ServerClient(addresses={"counting": base_url("127.0.0.1", port)}, http=http)
        with track_retries() as stats:
            counted = asyncio.create_task(client.send("counting", "/count", {}))
            while not stats.throttled:  # noqa: ASYNC110 - counted by the other task
                await asyncio.sleep(0.01)
            await idle.aclose()
            assert (await counted).content() == b"1"


async def test_no_connection_over_the_limit_is_reset() -> None:
    request = HEAD + b"content-length: 2\r\n\r\n{}"
    async with counting(max_connections=4) as port, contextlib.AsyncExitStack() as idle:
        for _ in range(4):
            _reader, writer = await idle.enter_async_context(connected(port))
            writer.write(HEAD)
        replies = await asyncio.gather(*(response(port, request) for _ in range(40)))
    assert {status for status, _body in replies} == {503}


async def test_a_server_with_all_sessions_in_use_refuses_another() -> None:
    async with counting(max_sessions=2) as port, HttpClient() as http:
        client = ServerClient(addresses={"counting": base_url("127.0.0.1", port)}, http=http)
        jars = [CookieJar() for _ in range(2)]
        for jar in jars:
            await client.send("counting", "/count", {}, jar=jar)
        refused = await http.fetch("POST", base_url("127.0.0.1", port) + "/count", body=b"{}", timeout_s=30)
        assert refused.status == 503
        assert orjson.loads(refused.content())["error"]["code"] == "overloaded"
        assert (await client.send("counting", "/count", {}, jar=jars[0])).content() == b"2"
        await http.fetch("DELETE", base_url("127.0.0.1", port) + "/session", cookies=jars[1], timeout_s=30)
        assert (await client.send("counting", "/count", {}, jar=CookieJar())).content() == b"1"


def test_a_full_store_ends_sessions_that_nobody_used_for_long() -> None:
    sessions = SessionStore("server", secret=b"secret", max_sessions=2)
    old, recent = sessions.open(None), sessions.open(None)
    with pytest.raises(OverloadedError, match="max_sessions"):
        sessions.open(None)
    old.last_used -= 3600
    sessions.open(None)
    assert sessions.open(recent.token) is recent
    with pytest.raises(SessionLostError):
        sessions.open(old.token)


async def test_refused_connections_leave_nothing_behind() -> None:
    async with counting(max_header_bytes=1024) as port:
        for _ in range(20):
            await response(port, HEAD, *([b"x: " + b"a" * 10_000 + b"\r\n"] * 50))
        async with asyncio.timeout(30):
            while connection_objects():  # noqa: ASYNC110 - memory is released without an event
                await asyncio.sleep(0.2)


def connection_objects() -> int:
    gc.collect()
    return sum(type(item).__name__ == "LimitedProtocol" for item in gc.get_objects())


def test_the_connection_limit_leaves_descriptors_for_outgoing_requests() -> None:
    assert ServerLimits(max_connections=7).connections() == 7
    assert 1 <= ServerLimits().connections() <= MAX_CONNECTIONS


@pytest.mark.parametrize("settings", [{"max_sessions": 0}, {"max_header_bytes": "many"}, {"header_timeout_s": -1}])
def test_a_limit_that_is_no_limit_is_a_config_error(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ServerLimits.of(settings)


async def test_requests_that_are_sent_before_their_responses_are_read_wait_outside() -> None:
    sent, answered, most = 20_000, 0, 0

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal answered, most
        answered += 1
        if answered % 5000 == 1:
            most = max(most, sum(type(each) is RequestResponseCycle for each in gc.get_objects()))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        async with serving({port: app}, [listening]), connected(port) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * sent)
            first = await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(first) * (sent - 1)) == first * (sent - 1)
    assert answered == sent
    assert most < sent / 2


@pytest.mark.parametrize("at_once", [True, False])
async def test_trailers_are_not_headers(at_once: bool) -> None:
    async with counting() as port:
        pieces = [
            LAST + b"transfer-encoding: chunked\r\n\r\n",
            b"2\r\n{}\r\n0\r\n",
            b"cookie: nemo_gym_counting=x\r\n\r\n",
        ]
        status, body = await response(port, *([b"".join(pieces)] if at_once else pieces))
    assert (status, body) == (200, b"1")


async def test_bodies_together_have_a_limit() -> None:
    large = b" " * 800_000 + b"{}"
    async with counting_app(max_unread_bytes=1_000_000) as (port, app), HttpClient() as http:

        async def status_of(body: bytes) -> int:
            try:
                return (await http.fetch("POST", f"http://127.0.0.1:{port}/count", body=body, timeout_s=30)).status
            except UpstreamError:  # the connection was closed before all of it was sent
                return 503

        assert await status_of(large) == 200
        async with connected(port) as (_, writer):
            writer.write(HEAD + b"content-length: 2000000\r\n\r\n" + b" " * 900_000)
            await until(lambda: app.unread.num_bytes == 900_000)
            assert await status_of(large) == 503
            await until(lambda: app.unread.num_bytes == 900_000)
            assert await status_of(b"{}") == 200
        await until(lambda: app.unread.num_bytes == 0)
        assert await status_of(large) == 200


@pytest.mark.parametrize(
    ("keys", "status"),
    [
        (b",".join(b'"a%d":1' % number for number in range(1001)), 413),
        (b",".join(b'"a\\"%d" \n:1' % number for number in range(1001)), 413),
        (b'"text":"' + b'\\":' * 5000 + b'"', 200),
        (b'"text":"' + b"a:b " * 5000 + b'"', 200),
    ],
    ids=["keys", "escaped keys", "text like keys", "colons"],
)
async def test_a_body_may_not_have_too_many_keys(keys: bytes, status: int) -> None:
    body = b"{" + keys + b"}"
    head = LAST.replace(b"/count", b"/length") + b"content-length: %d\r\n\r\n" % len(body)
    async with counting(max_body_keys=1000) as port:
        found, said = await response(port, head + body)
    assert found == status
    assert (b"max_body_keys" in said) is (status == 413)


async def test_a_million_invalid_items_are_one_error() -> None:
    body = orjson.dumps({"responses_create_params": {"input": [1] * 1_000_000}, "response": {}})
    head = LAST.replace(b"/count", b"/verify") + b"content-length: %d\r\n\r\n" % len(body)
    async with counting() as port:
        status, said = await response(port, head + body)
    assert status == 422
    assert len(orjson.loads(said)["detail"]) < 20
