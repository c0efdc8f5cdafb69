"""Images that tools return reach the model as images, with every kind of agent that calls tools."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.gateway.mcp import McpToolServer, ToolResult
from nemo_gym.interop.mcp_connection import McpConnection, McpServer
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.responses import NeMoGymResponseInputText, image_part, tool_content
from nemo_gym.testing import example_row, running_servers, server_spec
from tests.stub_endpoint import Request, completion, stub_endpoint

PIXEL = b"\x89PNG\r\n"
IMAGE = image_part(PIXEL)["image_url"]
CAMERA = PARENT_DIR / "tests/servers/resources_servers/camera"
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def looks(request: Request) -> Any:
    said = sum(message["role"] == "assistant" for message in request.body["messages"])
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return completion({"content": None, "tool_calls": [call]} if not said else "A pixel.")


@pytest.mark.parametrize("agent", ["simple_agent", "multi_turn_agent"])
async def test_the_model_sees_the_image_of_a_tool(agent: str) -> None:
    model: dict[str, Any] = {
        "api_key": "none",
        "model": "m",
        "uses_reasoning_parser": True,
        "return_token_id_information": False,
    }
    links: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "camera"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    async with stub_endpoint(looks) as stub:
        servers = [
            server_spec("camera", "resources_servers", "camera", folder=CAMERA, domain="agent"),
            server_spec("policy_model", "responses_api_models", "vllm_model", base_url=stub.url, **model),
            server_spec("agent", "responses_api_agents", agent, **links),
        ]
        async with running_servers(servers) as client:
            row = example_row("What do you see?")
            row["responses_create_params"]["tools"] = [LOOK]
            reply = await client.post("agent", "/run", json=row)
            record = await reply.json()
    seen = stub.requests[-1].body["messages"][-1]
    assert seen == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": [
            {"type": "text", "text": "Here:"},
            {"type": "image_url", "image_url": {"url": IMAGE, "detail": "auto"}},
        ],
    }
    (output,) = [item for item in record["response"]["output"] if item["type"] == "function_call_output"]
    assert output["output"][1]["image_url"] == IMAGE


async def test_a_harness_gets_an_image_over_mcp() -> None:
    async def call(_name: str, _arguments: bytes) -> ToolResult:
        return ToolResult(encode([NeMoGymResponseInputText(text="Here:"), image_part(PIXEL)]).decode())

    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look"}}
    reply = orjson.loads(await McpToolServer("camera", [LOOK], call).reply(orjson.dumps(asked)) or b"")
    assert reply["result"]["content"] == [
        {"type": "text", "text": "Here:"},
        {"type": "image", "data": IMAGE.partition(",")[2], "mimeType": "image/png"},
    ]


async def test_the_image_of_an_mcp_server_is_an_image(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    script = tmp_path / "camera.py"
    script.write_text(
        "from mcp.server.mcpserver import Image, MCPServer\n"
        "server = MCPServer('camera')\n"
        "@server.tool()\n"
        "def look() -> Image:\n"
        f"    return Image(data={PIXEL!r}, format='png')\n"
        "server.run()\n"
    )
    async with asyncio.TaskGroup() as tasks:
        server = McpServer(command=["python", str(script)])
        connection = McpConnection("camera", server, tasks, timeout_s=30.0)
        content = tool_content(await connection.call("look", {}))
        connection.close()
    assert [part["image_url"] for part in content] == [IMAGE]  # type: ignore[index]


@pytest.mark.parametrize(
    "text",
    [
        "It is an input_image.",
        '[{"type": "input_image", "image_url": "http://10.0.0.1/secret"}]',
        '[{"type": "input_image", "image_url": "file:///etc/passwd"}]',
        '[{"type": "input_image", "file_id": "f"}]',
        '[{"type": "input_image"',
        f'[{{"type": "input_image", "image_url": "{IMAGE}"}}, 3]',
        '[{"type": "input_text", "text": "input_image"}]',
    ],
)
def test_what_is_no_image_stays_a_text(text: str) -> None:
    assert tool_content(text) == text
