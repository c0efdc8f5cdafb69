"""Environments of an OpenEnv server: the policy's message is an action, its tool calls are calls of MCP tools."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
from pydantic import Field, PrivateAttr

from nemo_gym import JsonObject
from nemo_gym.answers import last_text
from nemo_gym.base_resources_server import (
    BaseNextMessageRequest,
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    ToolError,
    ToolName,
    any_tool,
)
from nemo_gym.episodes import EpisodeResourcesServer, EpisodeSession
from nemo_gym.errors import RolloutError


class OpenEnvConfig(BaseResourcesServerConfig, extra="forbid"):
    openenv_base_url: str
    """The URL of the OpenEnv server, such as `http://127.0.0.1:8000`."""
    message_timeout_s: float = Field(default=300.0, gt=0)


class OpenEnvRow(BaseSeedSessionRequest):
    reset_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `reset`, such as `seed`."""
    action_field: str | None = None
    """The field of an action that takes the policy's message. Without it the message is the whole action, as JSON."""


class OpenEnvConnection:
    """One WebSocket, which is one environment on the server. It is opened, and the environment reset, at first use."""

    def __init__(
        self, config: OpenEnvConfig, row: OpenEnvRow, http: aiohttp.ClientSession, closing: asyncio.TaskGroup
    ) -> None:
        self._config, self.row, self._http, self._closing = config, row, http, closing
        self._socket: Any = None

    async def reset(self) -> JsonObject:
        url = f"{self._config.openenv_base_url.rstrip('/')}/ws"
        try:
            self._socket = await self._http.ws_connect(url, max_msg_size=100 * 2**20)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._failure(f"cannot be reached at {url}: {error}") from error
        return await self._ask("reset", self.row.reset_kwargs)

    async def step(self, action: JsonObject) -> JsonObject:
        if self._socket is None:
            await self.reset()
        return await self._ask("step", action)

    async def _ask(self, kind: str, data: JsonObject) -> JsonObject:
        try:
            await self._socket.send_json({"type": kind, "data": data})
            reply = await self._socket.receive_json(timeout=self._config.message_timeout_s)
        except (aiohttp.ClientError, TimeoutError, TypeError, ValueError) as error:  # TypeError: it was closed
            raise self._failure(f"did not answer a {kind}: {error or type(error).__name__}") from error
        match reply:
            case {"type": "observation", "data": {"observation": dict()} as step}:
                return dict(step)
            case {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": why}} if kind == "step":
                raise ValueError(why)
        raise self._failure(f"answered a {kind} with {reply!r:.500}")

    def _failure(self, found: str) -> RolloutError:
        return RolloutError("environment", f"The OpenEnv server {found}", server=self._config.name)

    def close(self) -> None:
        if self._socket is not None:
            with suppress(RuntimeError):  # the server is stopping, and closes all connections
                self._closing.create_task(self._close())

    async def _close(self) -> None:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            await self._socket.close()


class OpenEnvResourcesServer(EpisodeResourcesServer):
    config: OpenEnvConfig

    _http: aiohttp.ClientSession = PrivateAttr()
    _closing: asyncio.TaskGroup = PrivateAttr()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        unlimited = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=unlimited) as self._http, asyncio.TaskGroup() as self._closing:
            yield

    async def seed_session(self, body: OpenEnvRow, session: EpisodeSession) -> None:
        session.episode = OpenEnvConnection(self.config, body, self._http, self._closing)

    async def next_message(  # type: ignore[override]
        self, body: BaseNextMessageRequest, session: EpisodeSession
    ) -> str | None:
        if session.episode is None or session.is_over:
            return None
        if body.turn == 0:
            return _shown((await session.episode.reset())["observation"])
        try:
            shown = _shown(await self._act(read_action(session.episode.row, last_text(body.response)), session))
        except ValueError as error:
            return f"That is no action: {error}"
        return None if session.is_over else shown

    @any_tool
    async def call_tool(self, name: ToolName, body: dict[str, Any], session: EpisodeSession) -> str:
        """Call a tool of the environment over MCP."""
        if session.episode is None:
            raise RolloutError("input", "The session has no episode: call /seed_session first.")
        if session.is_over:
            raise ToolError("The episode is over.")
        try:
            observed = await self._act({"type": "call_tool", "tool_name": str(name), "arguments": body}, session)
        except ValueError as error:
            raise ToolError(str(error)) from error
        return _shown(observed.get("error") or observed.get("result"))

    async def _act(self, action: JsonObject, session: EpisodeSession) -> JsonObject:
        """One step. Raises ValueError if the environment knows no such action."""
        reply = await session.episode.step(action)
        session.add_step(float(reply.get("reward") or 0.0), is_over=bool(reply.get("done")))
        return dict(reply["observation"])


def read_action(row: OpenEnvRow, text: str) -> JsonObject:
    if row.action_field is not None:
        return {row.action_field: text}
    if not isinstance(action := json.loads(text), dict):
        raise ValueError("expected a JSON object")
    return action


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if name != "metadata" or item}
    return value if isinstance(value, str) else json.dumps(value)
