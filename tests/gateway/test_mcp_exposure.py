"""`expose_tools_over_mcp`, used by the protocol's own client package: sessions, allowed tools, names in the record."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from nemo_gym.client.server_client import CookieJar, ServerClient
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.testing import calls, example_row, response_of, running_servers, server_spec

FOLDER = PARENT_DIR / "tests/servers/resources_servers/mcp_shop"


def client_package() -> Any:
    mcp = pytest.importorskip("mcp")
    return mcp if hasattr(mcp, "Client") else pytest.skip("mcp 1 has no Client")


@asynccontextmanager
async def shop() -> AsyncIterator[ServerClient]:
    settings: dict[str, Any] = {"domain": "agent", "expose_tools_over_mcp": True}
    spec = server_spec("shop", "resources_servers", "mcp_shop", folder=FOLDER, **settings)
    async with running_servers([spec], transport="http") as client:
        yield client


@asynccontextmanager
async def connected(client: ServerClient, seeded: dict[str, Any]) -> AsyncIterator[Any]:
    """A client of the protocol, as an agent sets it up by the answer of `/seed_session`."""
    import httpx2  # type: ignore[import-not-found,unused-ignore]
    from mcp.client.streamable_http import streamable_http_client

    told = seeded["mcp"]
    assert (told["server_name"], told["url_path"], told["transport"]) == ("shop", "/mcp", "http")
    url = client.url_of("shop") + told["url_path"]
    async with (
        httpx2.AsyncClient(headers=told["headers"]) as http,
        client_package().Client(streamable_http_client(url, http_client=http)) as session,
    ):
        yield session


async def test_a_program_calls_the_tools_of_its_rollout() -> None:
    client_package()
    async with shop() as client:
        jar, other = CookieJar(), CookieJar()
        seeded = await client.call("shop", "/seed_session", {}, answer=dict, jar=jar)
        await client.call("shop", "/seed_session", {}, answer=dict, jar=other)
        async with connected(client, seeded) as session:
            listed = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert set(listed) == {"add", "weigh"}
            assert listed["add"].description == "Put a fruit into the cart."
            assert listed["add"].input_schema["required"] == ["fruit"]
            assert (await session.call_tool("add", {"fruit": "fig"})).content[0].text == '["fig"]'
            assert (await session.call_tool("add", {})).is_error
            assert "weigh" in (await session.call_tool("weigh", {})).content[0].text
        row = example_row(response=response_of(calls("mcp__shop__add", {}), calls("mcp__other__add", {})))
        scored = await client.call("shop", "/verify", row, answer=dict, jar=jar)
        assert (scored["called"], scored["cart"]) == (["add", "mcp__other__add"], ["fig"])
        assert (await client.call("shop", "/verify", row, answer=dict, jar=other))["cart"] == []


async def test_a_session_has_the_tools_that_its_row_allows() -> None:
    client_package()
    async with shop() as client:
        seeded = await client.call("shop", "/seed_session", {"only": ["weigh"]}, answer=dict, jar=CookieJar())
        async with connected(client, seeded) as session:
            assert [tool.name for tool in (await session.list_tools()).tools] == ["weigh"]
            with pytest.raises(Exception, match="no tool 'add'"):
                await session.call_tool("add", {"fruit": "fig"})


async def test_a_token_that_is_not_ours_is_refused() -> None:
    async with shop() as client:
        body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        url = client.url_of("shop") + "/mcp"
        for token in (None, "", "0.a.b", "~", "x~bnVsbA==.0000"):
            headers = {} if token is None else {"X-NeMo-Gym-Session-Token": token}
            assert (await client.http.fetch("POST", url, body=body, headers=headers, timeout_s=30)).status == 401
        assert (await client.http.fetch("GET", url, timeout_s=30)).status == 405
        await client.call("shop", "/seed_session", {}, answer=dict, jar=(jar := CookieJar()))
        cookie = next(iter(jar.values()))  # signed by the server, too, but for something else
        signed = {"X-NeMo-Gym-Session-Token": cookie}
        assert (await client.http.fetch("POST", url, body=body, headers=signed, timeout_s=30)).status == 401


@pytest.mark.parametrize("body", [b"not json", b"[]", b'"text"', b"{", b"\xff", b""])
async def test_an_invalid_body_of_verify_is_the_callers_mistake(body: bytes) -> None:
    async with shop() as client:
        reply = await client.http.fetch("POST", client.url_of("shop") + "/verify", body=body, timeout_s=30)
    assert reply.status == 422


async def test_a_message_opens_no_session_of_its_own() -> None:
    async with shop() as client:
        seeded = await client.call("shop", "/seed_session", {}, answer=dict, jar=CookieJar())
        body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        headers = seeded["mcp"]["headers"]
        reply = await client.http.fetch(
            "POST", client.url_of("shop") + "/mcp", body=body, headers=headers, timeout_s=30
        )
        assert reply.status == 200
        assert reply.cookies == {}


async def test_a_session_has_the_tools_that_its_row_lists() -> None:
    client_package()
    listed = [{"type": "function", "name": "weigh", "parameters": {}}]
    async with shop() as client:
        row = {"responses_create_params": {"input": "Weigh.", "tools": listed}}
        seeded = await client.call("shop", "/seed_session", row, answer=dict, jar=CookieJar())
        async with connected(client, seeded) as session:
            assert [tool.name for tool in (await session.list_tools()).tools] == ["weigh"]
            with pytest.raises(Exception, match="no tool 'add'"):
                await session.call_tool("add", {"fruit": "fig"})
