"""A web page cannot use a server on loopback: not by CSRF, and not by DNS rebinding."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from fastapi import FastAPI

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient, base_url
from nemo_gym.common.metrics import Family
from nemo_gym.runtime.head_server import HeadServer
from nemo_gym.server.request_checks import ServerLimits, is_loopback
from nemo_gym.server.uvicorn_runner import bind, serving
from nemo_gym.testing import client_for


class Greeter(SimpleResourcesServer):
    @tool
    async def greet(self) -> str:
        return "Hello."

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


class Routed(Greeter):
    """Has a FastAPI app of its own, with a middleware, so that every request goes through it."""

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/more")(self.greet)
        app.middleware("http")(lambda request, call_next: call_next(request))
        return app


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 200),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200),
        ({"Content-Type": "application/vnd.api+json"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "text/plain; application/json"}, 415),
    ],
)
@pytest.mark.parametrize("kind", [Greeter, Routed])
async def test_a_body_must_be_declared_as_json(
    kind: type[SimpleResourcesServer], headers: dict[str, str], status: int
) -> None:
    async with client_for(kind) as client:
        assert (await client.request("POST", "/greet", b"{}", headers)).status == status


async def raw(port: int, lines: str, body: str = "") -> bytes:
    """The first line of the reply."""
    return (await whole(port, lines, body)).split(b"\r\n", 1)[0]


async def whole(port: int, lines: str, body: str = "") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{lines}\r\nconnection: close\r\n\r\n{body}".encode())
    try:
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


async def test_a_body_without_a_content_type_is_refused_and_no_body_needs_none() -> None:
    async with client_for(Greeter) as client:
        port = int(client.url.rpartition(":")[2])
        post = "POST /greet HTTP/1.1\r\nhost: localhost\r\n"
        assert b" 415 " in await raw(port, post + "content-length: 2", "{}")
        assert b" 415 " in await raw(port, post + "transfer-encoding: chunked", "2\r\n{}\r\n0\r\n\r\n")
        assert b" 200 " in await raw(port, post + "content-length: 0")
        assert b" 200 " in await raw(port, post.rstrip())


CALLERS = [
    ({}, 200),
    ({"Host": "localhost:1234"}, 200),
    ({"Host": "[::1]:80"}, 200),
    ({"Host": "127.0.0.2"}, 200),
    ({"Host": "gym.example"}, 200),
    ({"Host": "evil.example"}, 421),
    ({"Host": "127.0.0.1.evil.example:80"}, 421),
    ({"Host": "localhost@evil.example"}, 421),
    ({"Host": "[::1"}, 421),
    ({"Host": ""}, 421),
    ({"Origin": "http://localhost:3000"}, 200),
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "file://"}, 403),
]


@pytest.mark.parametrize(("headers", "status"), CALLERS)
async def test_only_this_machine_may_address_a_server_on_loopback(headers: dict[str, str], status: int) -> None:
    async with greeter() as port:
        lines = "\r\n".join(f"{name}: {value}" for name, value in ({"Host": "localhost"} | headers).items())
        assert str(status).encode() in await raw(port, f"GET /health HTTP/1.1\r\n{lines}")


@asynccontextmanager
async def greeter(*, token: str | None = None) -> AsyncIterator[int]:
    config = {"name": "greeter", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
    server = Greeter(config=Greeter.config_class().model_validate(config), server_client=ServerClient())
    limits = ServerLimits.of({"allowed_hosts": ["gym.example"]})
    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        async with serving({port: server.asgi_app(token=token, limits=limits)}, [listening], limits):
            yield port


async def test_the_token_stands_for_the_host() -> None:
    async with greeter(token="secret") as port:
        line = "GET /health HTTP/1.1\r\nhost: node-7.cluster"
        assert b" 401 " in await raw(port, line)
        assert b" 200 " in await raw(port, line + "\r\nauthorization: Bearer secret")


async def test_a_web_page_of_elsewhere_is_refused_even_with_the_token() -> None:
    async with greeter(token="secret") as port:
        line = "GET /health HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret\r\norigin: http://"
        assert b" 200 " in await raw(port, line + "localhost")
        refused = await whole(port, line + "evil.example")
        assert b" 403 " in refused
        assert b"the origin 'http://evil.example' are refused" in refused


async def test_refusals_show_text_and_say_nothing_untrue() -> None:
    async with greeter(token="secret") as port:
        refused = await whole(port, "GET /health HTTP/1.1\r\nhost: localhost")
        assert b"requires the run's token" in refused
        assert b"beyond" not in refused
    async with greeter() as port:
        refused = await whole(port, "POST /greet HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2", "{}")
        assert b"The Content-Type is missing; expected application/json." in refused


@pytest.mark.parametrize(
    ("headers", "status"), [({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403)]
)
async def test_the_head_server_refuses_them_too(headers: dict[str, str], status: int) -> None:
    async def metrics() -> list[Family]:
        return []

    head = HeadServer(config_yaml=lambda: "a: 1", instances=list, health=dict, metrics=metrics)
    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        async with serving({port: head}, [listening]), HttpClient() as http:
            url = base_url("127.0.0.1", port) + "/global_config_dict_yaml"
            assert orjson.loads((await http.fetch("GET", url, timeout_s=30)).content()) == "a: 1"
            assert (await http.fetch("GET", url, headers=headers, timeout_s=30)).status == status


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "a.localhost", "::1%lo"])
def test_names_of_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "localhost.example", "127.0.0.1.example", ""])
def test_other_names(host: str) -> None:
    assert not is_loopback(host)
