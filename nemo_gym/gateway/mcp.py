"""Tools over the Model Context Protocol: one JSON-RPC message in, its reply out, over any transport.

Only what a server of tools needs is here, in every version of the protocol with a handshake, so it needs no package.

`expose_tools_over_mcp` serves the tools of an environment below `/mcp` at its own address, for agents that hand them
to programs: `/seed_session` answers with the URL and a header that names the session and the tools it may call.
"""

import base64
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import orjson

from nemo_gym import __version__
from nemo_gym.client.reply import raise_environment_failure
from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply
from nemo_gym.config.keys import NEMO_GYM_MCP_METADATA_KEY
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode, set_fields
from nemo_gym.llm_api.responses import NeMoGymResponseContent, tool_content
from nemo_gym.server.asgi import RefusedError
from nemo_gym.server.core import ServerCore
from nemo_gym.server.endpoint import Call, Endpoint, plain_result
from nemo_gym.server.seed import PARAMS, row_in
from nemo_gym.server.session import Session
from nemo_gym.server.tools import NOT_TOOLS, any_tools_of, no_such_tool, offered_tools

PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""A client that asks for another version is offered the newest one."""
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
MCP_PATH = "/mcp"
MAX_BATCH = 100
TOOL_TIMEOUT_S = 600.0


class ToolResult(NamedTuple):
    """The reply of a tool, as the model sees it."""

    text: str
    is_error: bool = False


CallTool = Callable[[str, bytes], Coroutine[Any, Any, ToolResult]]
"""Calls a tool by name, with its arguments as JSON."""


class _RpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class McpToolServer:
    """Serves tools to an MCP client."""

    name: str
    tools: Sequence[JsonObject]
    """In the form of a row's `responses_create_params.tools`. No other tool can be called."""
    call: CallTool
    instructions: str = ""
    """Instructions for the client's model, such as the task."""

    async def reply(self, raw: bytes) -> bytes | None:
        """Return the reply to a message or a batch; None if it needs no reply."""
        try:
            message = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            return encode(_failure(None, PARSE_ERROR, f"Invalid JSON: {error}"))
        if not isinstance(message, list):
            answer = await self._answer(message)
            return None if answer is None else encode(answer)
        if not 0 < len(message) <= MAX_BATCH:
            text = f"The batch has {len(message)} messages; expected 1 to {MAX_BATCH}."
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
        return {"content": _content(text), "isError": is_error}

    def _offered(self) -> list[JsonObject]:
        names = offered_tools(self.tools)
        return [tool for tool in self.tools if tool.get("name") in names]


def _content(text: str) -> list[JsonObject]:
    """The output of a tool. Images are content of their own."""
    content = tool_content(text)
    return [{"type": "text", "text": content}] if isinstance(content, str) else [*map(_content_part, content)]


def _content_part(part: NeMoGymResponseContent) -> JsonObject:
    if part["type"] == "input_text":
        return {"type": "text", "text": part["text"]}
    head, _, data = part["image_url"].partition(",")
    return {"type": "image", "data": data, "mimeType": head.removeprefix("data:").partition(";")[0]}


def _described(tool: JsonObject) -> JsonObject:
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"name": tool["name"], "description": tool.get("description") or "", "inputSchema": schema}


def _failure(request_id: Any, code: int, message: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def session_tools(
    client: ServerClient, environment: str, jar: CookieJar, *, timeout_s: float = TOOL_TIMEOUT_S
) -> CallTool:
    """Return a function that calls tools of an environment in the session of `jar`, opened by `/seed_session`. An
    error of a tool is a result for the model. A server that cannot be reached, or has lost the session, raises
    RolloutError."""

    async def call(name: str, arguments: bytes) -> ToolResult:
        reply = await client.send(environment, f"/{name}", arguments, cause="tool", jar=jar, timeout_s=timeout_s)
        raise_environment_failure(reply)
        return ToolResult(reply.text, reply.status >= 400)

    return call


class McpEndpoint(Endpoint):
    """The transport "Streamable HTTP" without streams and sessions: one message per request, the reply as JSON."""

    opens_session = False

    def __init__(self, server_for: Callable[[Call], McpToolServer]) -> None:
        super().__init__(MCP_PATH, self._unused, cause="tool")
        self._server_for = server_for

    async def _unused(self) -> None:
        """Placeholder: an endpoint needs a handler, but `__call__` answers."""

    async def __call__(self, call: Call) -> ServerReply:
        server = self._server_for(call)
        reply = await server.reply(encode(call.body))
        return ServerReply(server.name, 202 if reply is None else 200, reply)


SESSION_HEADER = "X-NeMo-Gym-Session-Token"


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool as MCP clients see it."""

    name: str
    schema: JsonObject
    description: str = ""


class CatchAllRoute:
    """A route such as `/{name}`, which handles tools without their own route."""

    def tool(self, name: str, schema: JsonObject, description: str = "") -> McpTool:
        """Return a tool that this route handles."""
        return McpTool(name, schema, description)


class ExposedServer(Protocol):
    """The methods of an environment that are used here."""

    def core(self) -> ServerCore: ...
    def tool_schemas(self) -> list[JsonObject]: ...
    def normalize_tool_name(self, name: str) -> str: ...
    def mcp_tools(self, harvested: list[McpTool], catchall: CatchAllRoute | None) -> Sequence[McpTool] | None: ...
    def mcp_allowed_tools_for_session(self, seed_body: Any) -> Sequence[str] | None: ...


def exposed_endpoints(endpoints: list[Endpoint], server: ExposedServer) -> list[Endpoint]:
    """Return the endpoints of an environment, changed and extended for exposed tools."""
    added = {"/seed_session": _SeedEndpoint, "/verify": _VerifyEndpoint}
    kept = [added[each.path](each, server) if each.path in added else each for each in endpoints]
    return [*kept, _mcp_endpoint(server)]


def tools_to_expose(server: ExposedServer) -> list[McpTool]:
    """Return the tools that the environment's `mcp_tools` selects from its typed routes."""
    marked = server.tool_schemas()
    found = [McpTool(each["name"], each["parameters"], each.get("description") or "") for each in marked]
    routes = getattr(server.core().own_app, "routes", ())
    own = (route for route in routes if inspect.isroutine(getattr(route, "endpoint", None)))  # not our endpoints
    posts = [route for route in own if "POST" in (route.methods or ())]
    takes_any = any_tools_of(server) or any(route.path.startswith("/{") for route in posts)
    for route in posts:
        schema, name = _schema_of(route), route.path.strip("/")
        if schema is not None and name not in NOT_TOOLS and name not in {tool.name for tool in found}:
            found.append(McpTool(name, schema, inspect.getdoc(route.endpoint) or ""))
    return list(server.mcp_tools(found, CatchAllRoute() if takes_any else None) or ())


def _schema_of(route: Any) -> JsonObject | None:
    """Return the schema of a route's body; None if it has parameters in its path, or no typed body."""
    try:
        body = None if "{" in route.path else Endpoint(route.path, route.endpoint, cause="tool").arguments
    except (ConfigError, TypeError):
        return None
    return None if body is None else body.model_json_schema()


class _SeedEndpoint(Endpoint):
    def __init__(self, seed: Endpoint, server: ExposedServer) -> None:
        super().__init__(seed.path, seed.function, cause=seed.cause, fields_of=seed.fields_of)
        self._seed, self._server, self.needs_session = seed, server, True

    def __call__(self, call: Call) -> Awaitable[Any]:
        row = row_in(call.body)
        return self._answer(self._seed(call), call, offered_tools(set_fields(row[PARAMS]).get("tools")) if row else [])

    async def _answer(self, running: Awaitable[Any], call: Call, offered: list[str]) -> JsonObject:
        result = await plain_result(running, call)
        if call.session is None:
            raise AssertionError("it asks for a session")
        encoded = result.content() if isinstance(result, ServerReply) else encode(result)
        answer: JsonObject = {} if result is None else orjson.loads(encoded)
        return {**answer, NEMO_GYM_MCP_METADATA_KEY: self._metadata(call.session, call.body, offered)}

    def _metadata(self, session: Session, body: Any, offered: list[str]) -> JsonObject:
        """Return the URL and the header of a session. The environment decides which tools the session may call, by
        default those of its row. A row without tools allows all."""
        core, allowed = self._server.core(), self._server.mcp_allowed_tools_for_session(body)
        allowed = offered or None if allowed is None else allowed
        encoded = base64.urlsafe_b64encode(orjson.dumps(None if allowed is None else [*allowed])).decode()
        token = core.sessions.sign(f"{session.token}~{encoded}")
        place = {"server_name": core.name, "url_path": MCP_PATH, "transport": "http"}
        return {**place, "headers": {SESSION_HEADER: token}}


class _VerifyEndpoint(Endpoint):
    """Removes the prefix that clients put before tool names."""

    def __init__(self, verify: Endpoint, server: ExposedServer) -> None:
        super().__init__(
            verify.path, verify.function, cause=verify.cause, finish=verify.finish, fields_of=verify.fields_of
        )
        self._server = server

    def __call__(self, call: Call) -> Awaitable[Any]:
        try:
            body = orjson.loads(encode(call.body, exclude_unset=True) or b"{}")
        except orjson.JSONDecodeError:
            return super().__call__(call)  # which reports the error
        response = body.get("response") if isinstance(body, dict) else None
        for item in (response.get("output") or ()) if isinstance(response, dict) else ():
            if isinstance(item, dict) and isinstance(item.get("name"), str):
                item["name"] = self._server.normalize_tool_name(item["name"])
        call.body = encode(body)
        return super().__call__(call)


def _mcp_endpoint(server: ExposedServer) -> McpEndpoint:
    """Create the endpoint. Tools run in the session that the header names."""
    exposed = cache(partial(tools_to_expose, server))

    def server_for(call: Call) -> McpToolServer:
        core = server.core()
        headers = {} if call.scope is None else dict(call.scope["headers"])
        token = headers.get(SESSION_HEADER.lower().encode(), b"").decode("latin-1")
        session, separator, encoded = token.rpartition(".")[0].rpartition("~")
        if not separator or not core.sessions.is_signed(token):  # other tokens of this server are signed, too
            raise RefusedError(401, f"{SESSION_HEADER} is missing or wrong.")
        allowed = orjson.loads(base64.urlsafe_b64decode(encoded))
        listed = [
            {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema}
            for tool in exposed()
            if allowed is None or tool.name in allowed
        ]
        jar = CookieJar({core.session_cookie: session})
        return McpToolServer(core.name, listed, session_tools(core.client, core.name, jar))

    return McpEndpoint(server_for)
