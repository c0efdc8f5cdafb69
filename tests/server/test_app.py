"""What a server does with requests that are not as they should be."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from starlette.requests import Request

from nemo_gym.base_resources_server import (
    SESSION_ID_KEY,
    BaseVerifyRequest,
    SessionState,
    SimpleResourcesServer,
    tool,
)
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import TOKEN_HEADER, ServerClient, base_url
from nemo_gym.common.deadline import TIME_LEFT_HEADER, Deadline
from nemo_gym.errors import RolloutError
from nemo_gym.server.request_checks import ServerLimits
from nemo_gym.server.uvicorn_runner import bind, serving
from nemo_gym.testing import BrowserLikeClient, client_for, example_row, response_of
from tests.polling import until


class Seen(SessionState):
    calls: int = 0

    def close(self) -> None:
        EVENTS.append("closed")


class Watched(SimpleResourcesServer):
    """Tells what happens to its handlers."""

    @tool
    async def count(self, session: Seen) -> int:
        session.calls += 1
        return session.calls

    @tool
    async def lose(self) -> None:
        raise RolloutError("environment", "the disk is full")

    @tool
    async def wait(self, log: list[str]) -> None:
        EVENTS.append("waiting")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            EVENTS.append("cancelled")
            raise

    @tool
    async def time_left(self, deadline: Deadline) -> float:
        return deadline.left_s()

    @tool
    def plain(self) -> str:
        """Runs in a thread: no loop runs here."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return "in a thread"
        return "on the loop"

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


EVENTS: list[str] = []
POST = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"null", 422),
        (b"[]", 422),
        (b"{", 422),
        (b"\xff\xfe", 422),
        (b"[" * 100_000, 422),
        (b"{}" * 9, 422),
    ],
)
async def test_garbage_is_refused_with_what_is_wrong(content: bytes, status: int) -> None:
    async with client_for(Watched) as client:
        answer = await client.post("/verify", content=content)
        assert answer.status == status
        assert answer.json()["detail"][0]["loc"][0] == "body"
        assert (await client.post("/verify", json=example_row(response=response_of()))).status == 200


async def test_only_the_first_of_many_invalid_items_is_reported() -> None:
    async with client_for(Watched) as client:
        row = example_row(response=response_of(*({"type": 1} for _ in range(1000))))
        answer = await client.post("/verify", json=row)
        assert (answer.status, len(answer.json()["detail"])) == (422, 1)


async def test_a_body_that_says_it_is_too_large_is_refused_unread() -> None:
    async with small_server() as (client, port):
        assert (await client.post("/verify", content=b"x" * 2000)).status == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST % b"/verify" + b"content-length: 99999999999\r\n\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()


async def test_a_body_that_grows_too_large_is_refused() -> None:
    async with small_server() as (client, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST % b"/verify" + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            writer.write(b"200\r\n" + b"x" * 512 + b"\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        assert (await client.get("/health")).json() == {"status": "ok", "server": "test"}


@asynccontextmanager
async def small_server(*, token: str | None = None) -> AsyncIterator[tuple[BrowserLikeClient, int]]:
    config = {"name": "test", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
    server = Watched(config=Watched.config_class().model_validate(config), server_client=ServerClient())
    app = server.asgi_app(token=token, limits=ServerLimits(max_body_bytes=1000))
    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        async with serving({port: app}, [listening]), HttpClient() as http:
            yield BrowserLikeClient(server, base_url("127.0.0.1", port), http), port


@pytest.mark.parametrize(
    "token", ["0.made-up.0123456789abcdef0123456789abcdef", "0", "x" * 5000, "1.2.3.4", "0.ä.ö", "..", '"']
)
async def test_a_forged_session_token_is_refused(token: str) -> None:
    async with client_for(Watched) as client:
        client.cookies["Watched___test"] = token
        answer = await client.post("/count", json={})
        assert answer.status == 401
        assert answer.json()["error"]["code"] == "session_invalid"
        assert (await client.another().post("/count", json={})).json() == 1


async def test_a_session_token_of_another_server_is_refused() -> None:
    async with client_for(Watched) as one, client_for(Watched) as other:
        await one.post("/count", json={})
        other.cookies.update(one.cookies)
        assert (await other.post("/count", json={})).status == 401


async def test_sessions_are_separate_and_lost_once_deleted() -> None:
    async with client_for(Watched) as client:
        assert [(await client.post("/count", json={})).json() for _ in range(2)] == [1, 2]
        assert (await client.another().post("/count", json={})).json() == 1
        EVENTS.clear()
        await client.request("DELETE", "/session")
        assert EVENTS == ["closed"]
        lost = await client.post("/count", json={})
        assert lost.status == 410
        assert lost.json()["error"] == {
            "cause": "environment",
            "code": "session_lost",
            "message": lost.json()["detail"],
            "retryable": True,
            "server": "test",
        }


async def test_a_session_in_which_the_environment_failed_cannot_be_scored() -> None:
    async with client_for(Watched) as client:
        lost = await client.post("/lose", json={})
        assert (lost.status, lost.json()["error"]["cause"]) == (502, "environment")
        row = example_row(response=response_of())
        assert (await client.post("/verify", json=row)).status == 410
        assert (await client.another().post("/verify", json=row)).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({TOKEN_HEADER: "wrong"}, 401),
        ({TOKEN_HEADER: "secret"}, 200),
        ({"Authorization": "Bearer secret"}, 200),
        ({"x-api-key": "secret"}, 200),
        ({"x-api-key": "wrong"}, 401),
    ],
)
async def test_a_server_with_a_token_asks_for_it(headers: dict[str, str], status: int) -> None:
    async with small_server(token="secret") as (client, _):
        assert (await client.request("POST", "/count", b"{}", headers)).status == status


async def test_the_time_left_travels_with_the_request_and_ends_it() -> None:
    async with client_for(Watched) as client:
        answer = await client.request("POST", "/time_left", b"{}", {TIME_LEFT_HEADER: "60"})
        assert 0 < answer.json() <= 60
        answer = await client.request("POST", "/wait", b'{"log": []}', {TIME_LEFT_HEADER: "0.2"})
        assert answer.status == 504
        assert answer.json()["error"]["cause"] == "timeout"


@pytest.mark.parametrize("time_left", ["soon", "", "nan", "inf", "-1", "1e999"])
async def test_a_malformed_time_left_is_a_bad_request(time_left: str) -> None:
    async with client_for(Watched) as client:
        reply = await client.request("POST", "/time_left", b"{}", {TIME_LEFT_HEADER: time_left})
        assert reply.status == 400
        assert TIME_LEFT_HEADER in reply.json()["detail"]


class Routed(Watched):
    """Brings a FastAPI app of its own."""

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.get("/more")(self.plain)
        return app


@pytest.mark.parametrize("kind", [Watched, Routed])
async def test_work_for_a_client_that_goes_away_is_cancelled(kind: type[SimpleResourcesServer]) -> None:
    EVENTS.clear()
    async with client_for(kind) as client:
        port = int(client.url.rpartition(":")[2])
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST % b"/wait" + b'content-length: 11\r\n\r\n{"log": []}')
        await until(lambda: EVENTS == ["waiting"])
        writer.close()
        await until(lambda: len(EVENTS) > 1)
        assert EVENTS == ["waiting", "cancelled"]


async def test_a_plain_function_runs_in_a_thread() -> None:
    async with client_for(Watched) as client:
        assert (await client.post("/plain", json={})).text == "in a thread"


class Asking(SimpleResourcesServer):
    """Reads its session the FastAPI way, without routes of its own."""

    async def verify(self, request: Request, body: BaseVerifyRequest) -> float:
        return float(bool(request.session[SESSION_ID_KEY]))


async def test_a_request_has_its_session_whichever_way_it_came() -> None:
    row = example_row(response=response_of())
    async with client_for(Asking) as client:
        answer = await client.post("/verify", json=row)
        direct = await client.server.asgi_app().direct("POST", "/verify", row, {})
        assert (answer.status, direct.status) == (200, 200)
        assert answer.content() == direct.content()


class Holding(Watched):
    """Holds something open while it answers."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        EVENTS.append("opened")
        yield
        EVENTS.append("shut")


async def test_what_a_server_holds_open_is_opened_before_the_first_request_and_closed_after_the_last() -> None:
    EVENTS.clear()
    async with client_for(Holding) as client:
        assert EVENTS == ["opened"]
        assert (await client.get("/health")).status == 200
    assert EVENTS == ["opened", "shut"]


async def test_other_methods_and_paths_are_refused() -> None:
    async with client_for(Watched) as client:
        assert (await client.get("/verify")).status == 405
        assert (await client.get("/nowhere")).status == 404
        assert (await client.get("/")).json() == {"status": "ok"}
        assert (await client.post("/run", json={})).status == 404


async def test_a_client_that_sends_half_a_request_does_not_hold_up_others() -> None:
    async with client_for(Watched) as client:
        port = int(client.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as stalled:
            stalled.sendall(POST % b"/verify" + b"content-length: 50\r\n\r\n{")
            assert (await client.post("/verify", json=example_row(response=response_of()))).status == 200
