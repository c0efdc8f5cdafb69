"""A model and tools for programs that we start and do not write: each gets a path of its own on loopback, which nobody
can guess, with the model's endpoints below it and the tools over MCP."""

import asyncio
import contextvars
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.client.server_client import ServerReply, base_url
from nemo_gym.gateway.mcp import McpEndpoint, McpToolServer
from nemo_gym.server.asgi import (
    Receive,
    RefusedError,
    Scope,
    Send,
    UnreadBodies,
    cancel_on_disconnect,
    limit_body,
    read_body,
)
from nemo_gym.server.core import ServerCore
from nemo_gym.server.endpoint import Call, Endpoint
from nemo_gym.server.model_endpoints import answer_about_models, model_endpoints
from nemo_gym.server.request_checks import ServerLimits, check_json, check_keys, check_origin
from nemo_gym.server.uvicorn_runner import bind, serving

LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class _Room:
    """What is below one path."""

    endpoints: dict[str, Endpoint]
    model: str
    context: contextvars.Context
    """That of the rollout: its deadline, recording and tracing hold for the calls of the program, too."""


class ModelGateway:
    """Programs find their model at `url_of(path)/v1` and their tools at `url_of(path)/mcp`."""

    def __init__(self, core: ServerCore, limits: ServerLimits | None = None) -> None:
        self._core, self._limits = core, limits or ServerLimits()
        self._unread = UnreadBodies(core.name, self._limits.max_unread_bytes)
        self._rooms: dict[str, _Room] = {}
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ModelGateway"]:
        """Listen on a free port of loopback while the block runs."""
        with bind(LOOPBACK, 0) as listening:
            self.port = listening.getsockname()[1]
            async with serving({self.port: self}, [listening], self._limits):
                yield self

    @asynccontextmanager
    async def socket(self, folder: Path) -> AsyncIterator[Path]:
        """Listen on a Unix socket, too, for a sandbox without a network. It is open to every user, because a sandbox
        may run as any. So `folder` should be closed to others."""
        path = folder / "gateway.sock"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            path.chmod(0o666)
            async with serving({None: self}, [listening], self._limits):
                yield path

    @contextmanager
    def opened(
        self,
        chat_completions: Callable[..., Any],
        responses: Callable[..., Any],
        *,
        model: str,
        tools: McpToolServer | None = None,
    ) -> Iterator[str]:
        """A path for one program. After the block nothing answers there."""
        path = f"/{secrets.token_urlsafe(16)}"
        listed = model_endpoints(chat_completions, responses, reads_only=True)
        if tools is not None:
            listed = [*listed, McpEndpoint(lambda _: tools)]
        endpoints = {endpoint.path: endpoint for endpoint in listed}
        self._rooms[path] = _Room(endpoints, model, contextvars.copy_context())
        try:
            yield path
        finally:
            del self._rooms[path]

    def url_of(self, path: str, *, port: int | None = None) -> str:
        """The base URL of a path; with `port`, as a sandbox sees it that forwards this port."""
        return base_url(LOOPBACK, port or self.port) + path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        token, _, rest = scope["path"].removeprefix("/").partition("/")
        room = self._rooms.get(f"/{token}")
        context = contextvars.copy_context() if room is None else room.context.copy()
        await asyncio.create_task(self._serve(room, f"/{rest}", scope, receive, send), context=context)

    async def _serve(self, room: _Room | None, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._reply(room, path, scope, receive)
        except Exception as error:
            reply = self._core.failed(error)
        if reply is not None:
            await self._core.send(reply, receive, send)

    async def _reply(self, room: _Room | None, path: str, scope: Scope, receive: Receive) -> ServerReply | None:
        """The reply; None if the client has gone."""
        headers = dict(scope["headers"])
        check_origin(scope, headers, frozenset())
        about = answer_about_models(path, room.model, server=self._core.name) if room is not None else None
        if about is not None and scope["method"] == "GET":
            return about if isinstance(about, ServerReply) else ServerReply(self._core.name, 200, about)
        endpoint = room.endpoints.get(path) if room is not None else None
        if endpoint is None:
            return ServerReply(self._core.name, 404, {"error": {"message": "Not Found", "type": "not_found"}})
        if scope["method"] != "POST":  # clients of MCP may try GET for a stream, and DELETE to end a session
            raise RefusedError(405, "Method Not Allowed")
        check_json(headers)
        body = await read_body(limit_body(receive, self._limits.max_body_bytes), self._unread)
        check_keys(body, self._limits.max_body_keys)
        call = Call(path, body, {}, self._core.client, self._core.compute, scope=scope)
        async with cancel_on_disconnect(receive):
            return await self._core.run(endpoint, call)
        return None
