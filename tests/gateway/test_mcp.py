"""An environment's tools over MCP, called by the protocol's own client package."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from nemo_gym.client.server_client import CookieJar
from nemo_gym.gateway.mcp import McpToolServer, ToolResult, session_tools
from nemo_gym.gateway.model_gateway import ModelGateway
from nemo_gym.testing import ServerSpec, example_row, rows_of, running_servers, says, server_spec

COUNTER = "resources_servers/example_stateful_counter"
TOOLS = rows_of(f"{COUNTER}/data/example.jsonl")[0]["responses_create_params"]["tools"]


def environment() -> list[ServerSpec]:
    return [server_spec("counter", "resources_servers", "example_stateful_counter", domain="agent")]


def client_package() -> Any:
    """The package `mcp`, if it is the one of the dev extra."""
    mcp = pytest.importorskip("mcp")
    return mcp if hasattr(mcp, "Client") else pytest.skip("mcp 1 has no Client")


@asynccontextmanager
async def counter_over_http() -> AsyncIterator[tuple[str, Any]]:
    """The URL of a counter at 40, and a function that verifies it."""
    async with running_servers(environment()) as client:
        jar = CookieJar()
        row = example_row(initial_count=40, expected_count=42)
        await client.call("counter", "/seed_session", row, answer=dict, jar=jar)
        tools = McpToolServer("counter", TOOLS, session_tools(client, "counter", jar))
        gateway = ModelGateway(client.local["counter"].core)  # type: ignore[attr-defined]

        async def reward() -> float:
            scored = await client.call("counter", "/verify", {**row, "response": says("Done.")}, answer=dict, jar=jar)
            return float(scored["reward"])

        async with gateway.serving():
            with gateway.opened(no_model, no_model, model="none", tools=tools) as path:
                yield f"{gateway.url_of(path)}/mcp", reward


async def no_model(body: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError("only tools are called")


async def echo(name: str, arguments: bytes) -> ToolResult:
    return ToolResult(f"{name} {arguments.decode()}")


async def ask(message: Any) -> Any:
    reply = await McpToolServer("test", TOOLS, echo).reply(orjson.dumps(message))
    return None if reply is None else orjson.loads(reply)


async def test_a_client_lists_and_calls_the_tools_in_one_session() -> None:
    mcp = client_package()
    async with counter_over_http() as (url, reward):
        async with mcp.Client(url) as session:
            listed = (await session.list_tools()).tools
            assert [(tool.name, tool.description) for tool in listed] == [
                (tool["name"], tool["description"]) for tool in TOOLS
            ]
            assert listed[0].input_schema == TOOLS[0]["parameters"]
            await session.call_tool("increment_counter", {"count": 2})
            read = await session.call_tool("get_counter_value", {})
            assert orjson.loads(read.content[0].text) == {"count": 42}
            wrong = await session.call_tool("increment_counter", {"count": "two"})
            assert wrong.is_error
        assert await reward() == 1.0


@pytest.mark.parametrize(
    ("asked", "given"), [("2025-03-26", "2025-03-26"), ("1999-01-01", "2025-11-25"), (None, "2025-11-25")]
)
async def test_the_version_is_the_clients_if_it_is_known(asked: str | None, given: str) -> None:
    answer = await ask({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": asked}})
    assert answer["result"]["protocolVersion"] == given


@pytest.mark.parametrize("name", ["verify", "seed_session", "next_message", "unheard_of", None, ["increment_counter"]])
async def test_only_offered_tools_can_be_called(name: Any) -> None:
    tools = [*TOOLS, *({"type": "function", "name": name} for name in ("verify", "seed_session", "next_message"))]
    server = McpToolServer("test", tools, echo)
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    assert orjson.loads(await server.reply(orjson.dumps(call)) or b"{}")["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (7, -32600),
        (None, -32600),
        ([], -32600),
        ([{}] * 101, -32600),
        ({"id": 1}, -32600),
        ({"id": 1, "method": 7}, -32600),
        ({"id": 1, "method": "resources/list"}, -32601),
        ({"id": 1, "method": "server/discover", "params": [1]}, -32601),
        ({"id": 1, "method": "tools/call", "params": {"name": "get_counter_value", "arguments": [1]}}, -32602),
    ],
)
async def test_what_is_no_request_for_tools_is_refused(message: Any, code: int) -> None:
    assert (await ask(message))["error"]["code"] == code


async def test_invalid_json_is_refused() -> None:
    for raw in (b"", b"{", b"\xff", b"[" * 100_000):
        reply = await McpToolServer("test", TOOLS, echo).reply(raw)
        assert orjson.loads(reply or b"{}")["error"]["code"] == -32700


async def test_notifications_and_replies_get_no_reply_and_a_batch_gets_one_for_each_request() -> None:
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
    assert await ask(notification) is None
    assert await ask({"jsonrpc": "2.0", "id": 1, "result": {}}) is None
    assert await ask([notification]) is None
    assert await ask([ping, notification, ping]) == [{"jsonrpc": "2.0", "id": 7, "result": {}}] * 2
