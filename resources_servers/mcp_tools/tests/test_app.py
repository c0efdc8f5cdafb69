"""Rollouts with the tools of a real MCP server have the rewards of a loop with the package's own client."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn
from mcp import Client
from mcp.server.mcpserver import MCPServer

from nemo_gym.client.server_client import ServerReply
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.interop.mcp_connection import McpConnection, McpServer
from nemo_gym.testing import BrowserLikeClient, client_for, example_row, running_servers, server_spec
from resources_servers.mcp_tools.app import McpToolsResourcesServer, gives
from resources_servers.mcp_tools.example_server import make_server
from tests.interop import ROLLOUTS, choice, play_all, with_choices
from tests.polling import until
from tests.stacks import rollout_of, scripted_servers

CONFIG = "resources_servers/mcp_tools/configs/mcp_tools.yaml"
DEPOSITS = [json.dumps({"name": "deposit", "arguments": {"amount": amount}}) for amount in (1, 2, -5)]
CHOICES = [*DEPOSITS, *DEPOSITS, json.dumps({"name": "balance", "arguments": {}}), "Done."]
EXPECTED = "3"
STDIO = {"command": ["python", "-m", "resources_servers.mcp_tools.example_server"]}
SHORT_S = 3.0
"""For a call that is never answered. Connecting has as long, also on a busy machine."""


@asynccontextmanager
async def serving(server: MCPServer) -> AsyncIterator[str]:
    """The URL of a server over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error"))
        task = asyncio.create_task(running.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            running.should_exit = True
            await task


async def own_loop(url: str, seed: int) -> float:
    """The random policy with the package's own client."""
    async with Client(url, mode="legacy") as client:
        turn = 0
        while (action := choice(CHOICES, str(seed), turn)) != "Done.":
            call = json.loads(action)
            await client.call_tool(call["name"], call["arguments"])
            turn += 1
        (told,) = (await client.call_tool("balance", {})).content
    return float(getattr(told, "text", None) == EXPECTED)


def row(seed: int) -> dict[str, Any]:
    return with_choices({"checks": [{"tool": "balance", "output": EXPECTED}]}, CHOICES, seed)


def settings(**servers: Any) -> dict[str, Any]:
    return {"mcp_tools": {"resources_servers": {"mcp_tools": {"mcp_servers": servers}}}}


@pytest.mark.parametrize(("transport", "rollouts"), [("http", ROLLOUTS), ("stdio", 4)])
@pytest.mark.slow
async def test_rewards_are_those_of_the_own_loop(transport: str, rollouts: int) -> None:
    async with serving(make_server()) as url:
        expected = [await own_loop(url, seed) for seed in range(rollouts)]
        place = {"accounts": {"url": url, "command": []} if transport == "http" else STDIO}
        results = await play_all(
            CONFIG, "mcp_tools_simple_agent", [row(seed) for seed in range(rollouts)], **settings(**place)
        )
    assert [result["reward"] for result in results] == expected
    assert transport == "stdio" or set(expected) == {0.0, 1.0}
    errors = [item["output"] for result in results for item in result["response"]["output"] if item.get("output")]
    assert any("must be positive" in output for output in errors)


@asynccontextmanager
async def tools_of(*servers: MCPServer, **config: Any) -> AsyncIterator[BrowserLikeClient]:
    async with AsyncExitStack() as opened:
        urls = [await opened.enter_async_context(serving(server)) for server in servers]
        places = {f"server{number}": {"url": url} for number, url in enumerate(urls)}
        running = client_for(McpToolsResourcesServer, domain="agent", mcp_servers=places, **config)
        yield await opened.enter_async_context(running)


def odd_server() -> MCPServer:
    server = MCPServer("odd", log_level="ERROR")

    @server.tool()
    async def wait() -> str:
        await asyncio.sleep(600)
        return "never"

    @server.tool()
    def listed() -> list[int]:
        return [1, 2]

    return server


STUCK = """
import os, pathlib, sys, time
from mcp.server.mcpserver import MCPServer
server = MCPServer("stuck", log_level="ERROR")
@server.tool()
async def wait() -> str:
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(600)
server.run("stdio")
"""


@pytest.mark.slow
async def test_a_server_that_is_stuck_in_a_tool_ends_with_its_connection(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    started = tmp_path / "started"
    command = ["python", str(tmp_path / "stuck.py"), str(started)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        connection = McpConnection("stuck", McpServer(command=command), tasks, timeout_s=100)
        call = tasks.create_task(connection.call("wait", {}))
        await until(lambda: started.exists() and started.read_text())
        call.cancel()
        while psutil.pid_exists(
            int(started.read_text())
        ):  # the rollout ends, then its server, while the client closes
            connection.close()
            await asyncio.sleep(0.1)
    assert not psutil.pid_exists(int(started.read_text()))


async def test_tools_of_several_servers_are_listed_and_each_answers() -> None:
    async with tools_of(odd_server(), MCPServer("empty")) as client:
        listed = (await client.post("/tool_schemas", json={})).json()["tools"]
        assert [tool["name"] for tool in listed] == ["wait", "listed"]
        assert (await client.post("/listed", json={})).text == "1\n2"
        assert (await client.post("/no_such_tool", json={})).status == 422


async def test_two_tools_with_one_name_are_an_error_of_the_config() -> None:
    with pytest.raises(ConfigError, match="'wait'"):
        async with tools_of(odd_server(), odd_server()):
            pass


async def test_a_server_that_fails_in_a_call_leaves_the_rollout_without_a_result() -> None:
    replies = [{"turn": 0, "call": [{"name": "wait", "arguments": {}}]}, {"say": "end"}]
    async with serving(odd_server()) as url:
        config: dict[str, Any] = {"domain": "agent", "mcp_servers": {"mine": {"url": url}}, "tool_timeout_s": SHORT_S}
        environment = server_spec("tools", "resources_servers", "mcp_tools", **config)
        async with running_servers(scripted_servers(environment, replies)) as client:
            with pytest.raises(RolloutError, match="call of wait") as raised:
                await client.call("agent", "/run", example_row(expected_answer="end"), answer=ServerReply)
    assert raised.value.cause == "environment"


async def test_a_tool_that_does_not_answer_is_no_result() -> None:
    async with tools_of(odd_server(), tool_timeout_s=SHORT_S) as client:
        reply = await client.post("/wait", json={})
        assert reply.status >= 500
        assert "call of wait" in reply.text


@pytest.mark.parametrize(
    "server",
    [{"command": ["no-such-program"]}, {"command": ["python", "-c", "exit(3)"]}, {"url": "http://127.0.0.1:9"}],
)
async def test_a_server_that_is_not_there_is_named(server: dict[str, Any]) -> None:
    with pytest.raises(RolloutError, match="MCP server mine"):
        async with client_for(McpToolsResourcesServer, domain="agent", mcp_servers={"mine": server}):
            pass


@pytest.mark.slow
async def test_the_process_of_a_rollout_ends_with_it() -> None:
    def servers() -> list[psutil.Process]:
        return [each for each in psutil.Process().children() if is_server(each)]

    def is_server(process: psutil.Process) -> bool:
        try:
            return "example_server" in " ".join(process.cmdline())
        except psutil.NoSuchProcess:  # it has ended, or is about to be waited for
            return False

    async with client_for(McpToolsResourcesServer, domain="agent", mcp_servers={"accounts": STDIO}) as client:
        await until(lambda: not servers())
        assert (await client.post("/balance", json={})).text == "0"
        assert len(servers()) == 1
        await client.request("DELETE", "/session")
        await until(lambda: not servers())


async def test_a_row_that_checks_a_tool_of_no_server_ends_before_the_model_is_called() -> None:
    async with serving(make_server()) as url:
        servers = {"accounts": {"url": url}}
        environment = server_spec("mcp_tools", "resources_servers", "mcp_tools", domain="other", mcp_servers=servers)
        for tool, cause in (("balance", "model"), ("balances", "input")):
            each = example_row(checks=[{"tool": tool, "output": "3"}])
            assert (await rollout_of(environment, each, [{"status": 500}]))["error"]["cause"] == cause


@pytest.mark.parametrize(
    ("text", "is_given"),
    [
        ("12", True),
        ("The balance is **12**.", True),
        ("The balance is 12, as asked.", True),
        ("$12", True),
        ("12 is not what it was: it was 7, now 12", True),
        ("112", False),
        ("1200", False),
        ("1,200 or 12,000", False),
        ("12.5", False),
        ("-12", False),
        ("It is not 12.", False),
        ("It was 12. It is not 12.", False),
        ("12 or 13", False),
        ("13 or 12", False),
        ("a12", False),
        ("", False),
    ],
)
def test_an_answer_is_given_as_whole_words_or_numbers(text: str, is_given: bool) -> None:
    assert gives(text, "12") is is_given
