"""`expose_tools_over_mcp`: the tools of an environment at its own address, below `/mcp`, for agents that hand them to
programs. `/seed_session` answers with the URL and a header that names the session and the tools it may call."""

import base64
import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import orjson

from nemo_gym.client.server_client import CookieJar, ServerReply
from nemo_gym.config.keys import NEMO_GYM_MCP_METADATA_KEY
from nemo_gym.errors import ConfigError
from nemo_gym.gateway.mcp import MCP_PATH, McpEndpoint, McpToolServer, session_tools
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode, set_fields
from nemo_gym.server.asgi import RefusedError
from nemo_gym.server.core import ServerCore
from nemo_gym.server.endpoint import Call, Endpoint, plain_result
from nemo_gym.server.seed import PARAMS, row_in
from nemo_gym.server.session import Session
from nemo_gym.server.tools import NOT_TOOLS, any_tools_of, offered_tools

SESSION_HEADER = "X-NeMo-Gym-Session-Token"


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool as clients of the protocol see it."""

    name: str
    schema: JsonObject
    description: str = ""


class CatchAllRoute:
    """A route such as `/{name}`, which takes calls of tools that have no route of their own."""

    def tool(self, name: str, schema: JsonObject, description: str = "") -> McpTool:
        """A tool that the route answers."""
        return McpTool(name, schema, description)


class ExposedServer(Protocol):
    """What is asked of an environment."""

    def core(self) -> ServerCore: ...
    def tool_schemas(self) -> list[JsonObject]: ...
    def normalize_tool_name(self, name: str) -> str: ...
    def mcp_tools(self, harvested: list[McpTool], catchall: CatchAllRoute | None) -> Sequence[McpTool] | None: ...
    def mcp_allowed_tools_for_session(self, seed_body: Any) -> Sequence[str] | None: ...


def exposed_endpoints(endpoints: list[Endpoint], server: ExposedServer) -> list[Endpoint]:
    """The endpoints of an environment, with those that exposing its tools takes."""
    added = {"/seed_session": _SeedEndpoint, "/verify": _VerifyEndpoint}
    kept = [added[each.path](each, server) if each.path in added else each for each in endpoints]
    return [*kept, _mcp_endpoint(server)]


def tools_to_expose(server: ExposedServer) -> list[McpTool]:
    """What the environment's `mcp_tools` makes of its typed routes."""
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
    """The schema of a route's body; None if it has parameters in its path, or no typed body."""
    try:
        body = None if "{" in route.path else Endpoint(route.path, route.endpoint, cause="tool").arguments
    except (ConfigError, TypeError):
        return None
    return None if body is None else body.model_json_schema()


class _SeedEndpoint(Endpoint):
    def __init__(self, seed: Endpoint, server: ExposedServer) -> None:
        super().__init__(seed.path, seed.function, cause=seed.cause)
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
        """The environment says which tools the session may call. By default those that its row lists; rows for agents
        whose tools all come over MCP often list none, which means all."""
        core, allowed = self._server.core(), self._server.mcp_allowed_tools_for_session(body)
        allowed = offered or None if allowed is None else allowed
        encoded = base64.urlsafe_b64encode(orjson.dumps(None if allowed is None else [*allowed])).decode()
        token = core.sessions.sign(f"{session.token}~{encoded}")
        place = {"server_name": core.name, "url_path": MCP_PATH, "transport": "http"}
        return {**place, "headers": {SESSION_HEADER: token}}


class _VerifyEndpoint(Endpoint):
    """Cuts the prefix that clients put before the names of this server's tools."""

    def __init__(self, verify: Endpoint, server: ExposedServer) -> None:
        super().__init__(verify.path, verify.function, cause=verify.cause, finish=verify.finish)
        self._server = server

    def __call__(self, call: Call) -> Awaitable[Any]:
        try:
            body = orjson.loads(encode(call.body, exclude_unset=True) or b"{}")
        except orjson.JSONDecodeError:
            return super().__call__(call)  # which says what is wrong with it
        response = body.get("response") if isinstance(body, dict) else None
        for item in (response.get("output") or ()) if isinstance(response, dict) else ():
            if isinstance(item, dict) and isinstance(item.get("name"), str):
                item["name"] = self._server.normalize_tool_name(item["name"])
        call.body = encode(body)
        return super().__call__(call)


def _mcp_endpoint(server: ExposedServer) -> McpEndpoint:
    """The tools run in the session that the header names."""
    exposed = cache(partial(tools_to_expose, server))

    def server_for(call: Call) -> McpToolServer:
        core = server.core()
        headers = {} if call.scope is None else dict(call.scope["headers"])
        token = headers.get(SESSION_HEADER.lower().encode(), b"").decode("latin-1")
        session, separator, encoded = token.rpartition(".")[0].rpartition("~")
        if not separator or not core.sessions.is_signed(token):  # any other token of this server is signed, too
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
