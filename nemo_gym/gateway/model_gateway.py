"""A model and tools for external programs that agents start. Each program gets its own secret path on loopback,
with the model's endpoints and the tools over MCP below it."""

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
from nemo_gym.server.model_endpoints import answer_about_models, model_endpoints, refused_path
from nemo_gym.server.request_checks import ServerLimits, check_json, check_keys, check_origin
from nemo_gym.server.uvicorn_runner import bind, serving

LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class _Program:
    """The endpoints below the path of one program."""

    endpoints: dict[str, Endpoint]
    model: str
    context: contextvars.Context
    """Context of the rollout: its deadline, recording and tracing also apply to calls of the program."""


class ModelGateway:
    """Serves programs their model at `url_of(path)/v1` and their tools at `url_of(path)/mcp`."""

    def __init__(self, core: ServerCore, limits: ServerLimits | None = None) -> None:
        self._core, self._limits = core, limits or ServerLimits()
        self._unread = UnreadBodies(core.name, self._limits.max_unread_bytes)
        self._programs: dict[str, _Program] = {}
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
        """Also listen on a Unix socket, for a sandbox without a network. Every user can open the socket, since a
        sandbox may run as any user, so `folder` should be private."""
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
        """Open a path for one program while the block runs."""
        path = f"/{secrets.token_urlsafe(16)}"
        listed = model_endpoints(chat_completions, responses)
        if tools is not None:
            listed = [*listed, McpEndpoint(lambda _: tools)]
        endpoints = {endpoint.path: endpoint for endpoint in listed}
        self._programs[path] = _Program(endpoints, model, contextvars.copy_context())
        try:
            yield path
        finally:
            del self._programs[path]

    def url_of(self, path: str, *, port: int | None = None) -> str:
        """Return the base URL of a path; with `port`, as seen from a sandbox that forwards this port."""
        return base_url(LOOPBACK, port or self.port) + path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        token, _, rest = scope["path"].removeprefix("/").partition("/")
        program = self._programs.get(f"/{token}")
        context = contextvars.copy_context() if program is None else program.context.copy()
        await asyncio.create_task(self._serve(program, f"/{rest}", scope, receive, send), context=context)

    async def _serve(self, program: _Program | None, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._reply(program, path, scope, receive)
        except Exception as error:
            reply = self._core.failed(error)
        if reply is not None:
            await self._core.send(reply, receive, send)

    async def _reply(self, program: _Program | None, path: str, scope: Scope, receive: Receive) -> ServerReply | None:
        """Return the reply; None if the client has disconnected."""
        headers = dict(scope["headers"])
        check_origin(scope, headers, frozenset())
        about = answer_about_models(path, program.model, server=self._core.name) if program is not None else None
        if about is not None and scope["method"] == "GET":
            return about if isinstance(about, ServerReply) else ServerReply(self._core.name, 200, about)
        endpoint = program.endpoints.get(path) if program is not None else None
        if endpoint is None:
            served = program.endpoints if program is not None else ()
            return refused_path(ServerReply(self._core.name, 404, {"detail": "Not Found"}), path, served)
        if scope["method"] != "POST":  # clients of MCP may try GET for a stream, and DELETE to end a session
            raise RefusedError(405, "Method Not Allowed")
        check_json(headers)
        body = await read_body(limit_body(receive, self._limits.max_body_bytes), self._unread)
        check_keys(body, self._limits.max_body_keys)
        call = Call(path, body, {}, self._core.client, self._core.compute, scope=scope)
        async with cancel_on_disconnect(receive):
            return await self._core.run(endpoint, call)
        return None
