"""Tools over the Model Context Protocol: one JSON-RPC message in, its reply out, whatever the transport.

Only what a server of tools needs is here, in every version of the protocol with a handshake, so it needs no package.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from nemo_gym import __version__
from nemo_gym.client.reply import raise_environment_failure
from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply
from nemo_gym.errors import GymError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.server.endpoint import Call, Endpoint
from nemo_gym.server.tools import no_such_tool, offered_tools

PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The newest one is offered to a client that asks for another."""
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
MCP_PATH = "/mcp"
MAX_BATCH = 100
TOOL_TIMEOUT_S = 600.0


class ToolResult(NamedTuple):
    """What a tool answered, as the model sees it."""

    text: str
    is_error: bool = False


CallTool = Callable[[str, bytes], Coroutine[Any, Any, ToolResult]]
"""Calls a tool by its name with its arguments as JSON."""


class _RpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class McpToolServer:
    """Offers tools to a client of the protocol."""

    name: str
    tools: Sequence[JsonObject]
    """As a row's `responses_create_params.tools` lists them. Nothing else can be called."""
    call: CallTool
    instructions: str = ""
    """What a client may tell its model, such as the task."""

    async def reply(self, raw: bytes) -> bytes | None:
        """The reply to a message or a batch of them; None if it needs none."""
        try:
            message = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            return encode(_failure(None, PARSE_ERROR, f"Invalid JSON: {error}"))
        if not isinstance(message, list):
            answer = await self._answer(message)
            return None if answer is None else encode(answer)
        if not 0 < len(message) <= MAX_BATCH:
            text = f"A batch of {len(message)} messages; expected 1 to {MAX_BATCH}."
            return encode(_failure(None, INVALID_REQUEST, text))
        answers = [answer for one in message if (answer := await self._answer(one)) is not None]
        return encode(answers) if answers else None

    async def _answer(self, message: Any) -> JsonObject | None:
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            is_reply = isinstance(message, dict) and ("result" in message or "error" in message)
            return None if is_reply else _failure(None, INVALID_REQUEST, "Expected a JSON-RPC request.")
        if message.get("id") is None:  # a notification
            return None
        params = message.get("params")
        try:
            result = await self._result(message["method"], params if isinstance(params, dict) else {})
        except _RpcError as error:
            return _failure(message["id"], error.code, str(error))
        except GymError as error:
            return _failure(message["id"], INTERNAL_ERROR, str(error))
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def _result(self, method: str, params: JsonObject) -> JsonObject:
        if method == "initialize":
            asked = params.get("protocolVersion")
            return {
                "protocolVersion": asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": self.name, "version": __version__},
                **({"instructions": self.instructions} if self.instructions else {}),
            }
        if method == "tools/list":
            return {"tools": [_described(tool) for tool in self._offered()]}
        if method == "tools/call":
            return await self._called(params)
        if method == "ping":
            return {}
        raise _RpcError(METHOD_NOT_FOUND, f"This server offers tools only; it has no '{method}'.")

    async def _called(self, params: JsonObject) -> JsonObject:
        name, arguments = params.get("name"), params.get("arguments")
        if arguments is not None and not isinstance(arguments, dict):
            raise _RpcError(INVALID_PARAMS, "The arguments of a tool must be an object.")
        names = offered_tools(self.tools)
        if not isinstance(name, str) or name not in names:
            raise _RpcError(INVALID_PARAMS, no_such_tool(name, names))
        text, is_error = await self.call(name, orjson.dumps(arguments or {}))
        return {"content": [{"type": "text", "text": text}], "isError": is_error}

    def _offered(self) -> list[JsonObject]:
        names = offered_tools(self.tools)
        return [tool for tool in self.tools if tool.get("name") in names]


def _described(tool: JsonObject) -> JsonObject:
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"name": tool["name"], "description": tool.get("description") or "", "inputSchema": schema}


def _failure(request_id: Any, code: int, message: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def session_tools(
    client: ServerClient, environment: str, jar: CookieJar, *, timeout_s: float = TOOL_TIMEOUT_S
) -> CallTool:
    """The tools of an environment in the session of `jar`, which `/seed_session` has opened. An error of a tool is a
    result for the model. A server that cannot be reached, or has lost the session, raises RolloutError."""

    async def call(name: str, arguments: bytes) -> ToolResult:
        reply = await client.send(environment, f"/{name}", arguments, cause="tool", jar=jar, timeout_s=timeout_s)
        raise_environment_failure(reply)
        return ToolResult(reply.text(), reply.status >= 400)

    return call


class McpEndpoint(Endpoint):
    """The transport "Streamable HTTP" without streams and sessions: one message in, its reply in JSON."""

    opens_session = False

    def __init__(self, server_for: Callable[[Call], McpToolServer]) -> None:
        super().__init__(MCP_PATH, self._unused, cause="tool")
        self._server_for = server_for

    async def _unused(self) -> None:
        """An endpoint has a handler; this one answers by itself."""

    async def __call__(self, call: Call) -> ServerReply:
        server = self._server_for(call)
        reply = await server.reply(encode(call.body))
        return ServerReply(server.name, 202 if reply is None else 200, reply)
