"""Connections to MCP servers, for environments whose tools come from them."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from nemo_gym.common.exceptions import leaf_errors
from nemo_gym.episodes import import_extra
from nemo_gym.errors import RolloutError, ToolError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode


class McpServer(BaseModel, frozen=True, extra="forbid"):
    """An MCP server: a command, which is started for every rollout, or a URL."""

    command: list[str] = Field(default_factory=list)
    """The command; `python` is this interpreter."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the command. It inherits only a few of ours, such as HOME."""
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("an MCP server has either a command or a url")
        return self


class McpConnection:
    """A connection to one server. A separate task owns it, since the client must be closed in the task that opened
    it."""

    def __init__(self, name: str, server: McpServer, tasks: asyncio.TaskGroup, *, timeout_s: float) -> None:
        self._name, self._server, self._timeout_s = name, server, timeout_s
        self._mcp = import_extra("mcp", extra="mcp")
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = tasks.create_task(self._hold())

    async def client(self) -> Any:
        try:
            return await asyncio.wait_for(asyncio.shield(self._opened), self._timeout_s)
        except Exception as error:
            causes = ", ".join(str(each) or type(each).__name__ for each in leaf_errors(error))
            raise self._failure(f"cannot be used: {causes}") from error

    async def call(self, tool: str, arguments: JsonObject) -> str:
        """Call a tool and return its reply, with images as `tool_content` reads them. Raises ToolError if the tool
        reports a failure."""
        client, types = await self.client(), self._mcp.types
        try:
            result = await client.call_tool(tool, arguments, read_timeout_seconds=self._timeout_s)
        except self._mcp.MCPError as error:
            if error.error.code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT):
                raise self._failure(f"did not answer a call of {tool}: {error}") from error
            raise ToolError(str(error)) from error
        texts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
        text = "\n".join(texts) if texts else json.dumps(result.structured_content)
        if result.is_error:
            raise ToolError(text)
        if any(part.type == "image" for part in result.content):
            return encode([*map(_part, result.content)]).decode()
        return text

    def close(self) -> None:
        self._task.cancel()

    async def _hold(self) -> None:
        """Keep the connection open until it is closed. Only the first cancellation is passed on: a second one would
        interrupt the client while it stops its server."""
        connected, is_closing = asyncio.ensure_future(self._connect()), False
        while not connected.done():
            try:
                await asyncio.shield(connected)
            except asyncio.CancelledError:
                if not is_closing:
                    is_closing = connected.cancel()

    async def _connect(self) -> None:
        """Connect with the older handshake, which gives each connection a session also over HTTP."""
        try:
            async with AsyncExitStack() as opened:
                place = await opened.enter_async_context(self._transport())
                self._opened.set_result(await opened.enter_async_context(self._mcp.Client(place, mode="legacy")))
                await asyncio.Event().wait()
        except Exception as error:
            if not self._opened.done():
                self._opened.set_exception(error)
                self._opened.exception()  # retrieved here, so that asyncio does not warn if nothing awaits it

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        command, server = self._server.command, self._server
        if server.url is None:
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
            env = {"PATH": path, **server.env}
            yield self._mcp.StdioServerParameters(command=command[0], args=command[1:], env=env)
            return
        http = import_extra("mcp.client.streamable_http", extra="mcp")
        async with http.create_mcp_http_client(headers=server.headers) as browser:
            yield http.streamable_http_client(server.url, http_client=browser)

    def _failure(self, found: str) -> RolloutError:
        return RolloutError("environment", f"The MCP server {self._name} {found}")


def _part(part: Any) -> JsonObject:
    if part.type == "image":
        return {"type": "input_image", "image_url": f"data:{part.mime_type};base64,{part.data}", "detail": "auto"}
    return {"type": "input_text", "text": part.text if part.type == "text" else f"[{part.type}]"}
