"""One server as an ASGI app and for direct calls. Both end in the same handler and give the same reply."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.cookies import parse_cookies
from nemo_gym.common.deadline import timeout
from nemo_gym.common.retry_stats import RETRY_STATS_HEADER, track_retries
from nemo_gym.server.asgi import Receive, Scope, Send, limit_body, read_body
from nemo_gym.server.blocking_monitor import Handler, Handlers, register_handler
from nemo_gym.server.core import ServerCore
from nemo_gym.server.disconnect import cancel_on_disconnect
from nemo_gym.server.endpoint import ANY_TOOL, Call, Endpoint
from nemo_gym.server.error_responses import redact_errors
from nemo_gym.server.fastapi_bridge import bypassable_endpoints, call_fastapi
from nemo_gym.server.limits import ServerLimits
from nemo_gym.server.request_checks import (
    END_SESSION,
    Headers,
    check_json,
    check_length,
    check_origin,
    check_token,
    read_deadline,
)


class ServerApp:
    """The endpoints of one server, and its own FastAPI app if it has one."""

    def __init__(
        self,
        core: ServerCore,
        endpoints: Iterable[Endpoint],
        *,
        fastapi_app: Any = None,
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
        token: str | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self.core, self.name, self._lifespan = core, core.name, lifespan
        self.fastapi_app, self.token, self.limits = fastapi_app, token, limits or ServerLimits()
        self.endpoints = {endpoint.path: endpoint for endpoint in endpoints}
        core.is_stateful = fastapi_app is not None or any(one.needs_session for one in self.endpoints.values())
        self._direct_endpoints = self.endpoints if fastapi_app is None else bypassable_endpoints(fastapi_app)
        # a FastAPI app matches patterns itself
        self._any_tool = self.endpoints.get(ANY_TOOL) if fastapi_app is None else None
        self._handlers: list[Handler] = []

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """What is open while the server answers requests: the server's own resources and those of its FastAPI app."""
        app = self.fastapi_app
        async with self._lifespan(), nullcontext() if app is None else app.router.lifespan_context(app):
            yield

    def register_handlers(self, handlers: Handlers) -> None:
        """Have the blocking monitor recognize the handlers of this server."""
        own = [(endpoint.path, endpoint.function) for endpoint in self.endpoints.values()]
        routes = () if self.fastapi_app is None else self.fastapi_app.routes
        routed = [(route.path, route.endpoint) for route in routes if hasattr(route, "endpoint")]
        found = (register_handler(handlers, self.name + path, function) for path, function in (*own, *routed))
        self._handlers = [handler for handler in found if handler is not None]

    def blocked(self) -> dict[str, dict[str, float]]:
        """The handlers that blocked the event loop: how often, and for how long in total."""
        return {
            handler.name: {"times": handler.times, "seconds": round(handler.seconds, 3)}
            for handler in self._handlers
            if handler.times
        }

    def release(self, token: str) -> None:
        self.core.sessions.release(token)

    def direct(
        self, method: str, path: str, body: Any, cookies: Mapping[str, str], *, ends_session: bool = False
    ) -> Awaitable[ServerReply]:
        """Answer a caller in the same worker."""
        endpoint = self._direct_endpoints.get(path, self._any_tool) if method == "POST" else None
        call = Call(path, body, cookies, self.core.client, self.core.compute, body_is_owned=ends_session)
        if endpoint is not None:
            return self.core.run(endpoint, call, ends_session=ends_session)
        return self._direct_elsewhere(method, call, ends_session=ends_session)

    async def _direct_elsewhere(self, method: str, call: Call, *, ends_session: bool) -> ServerReply:
        if self.fastapi_app is None:
            return self._not_found(method, call.path)
        return await call_fastapi(self.fastapi_app, self.core, method, call, ends_session=ends_session)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if self.fastapi_app is not None:
                await self.fastapi_app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._check(scope, headers)
            deadline = read_deadline(headers)
            limit_s = None if deadline is None else deadline.left_s()
            with track_retries() as retry_stats:
                async with timeout(limit_s, what=f"{self.name}{scope['path']}"):
                    reply = await self._route(scope, receive, send, headers)
            if reply is not None:
                if retry_stats.retries or retry_stats.throttled:
                    reply.headers = {**reply.headers, RETRY_STATS_HEADER: retry_stats.as_header()}
                await self.core.send(reply, receive, send, deadline=deadline)
        except Exception as error:
            await self.core.send(self.core.failed(error), receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if self.token is None:
            check_origin(scope, headers, self.limits.allowed_hosts)
        else:
            check_token(headers, self.token, self.name)
        check_length(headers, self.limits.max_body_bytes)

    async def _route(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> ServerReply | None:
        """The reply to send. None if it has been sent, or if the client has disconnected."""
        method, path = scope["method"], scope["path"]
        if path == "/health" and method == "GET":
            return self._health()
        cookies = parse_cookies(headers.get(b"cookie", b""))
        if path == "/session" and method == "DELETE":
            self.release(cookies.get(self.core.session_cookie, ""))
            return ServerReply(self.name, 200, {})
        # uvicorn passes on no more than the declared length, which is checked
        limited = receive if b"content-length" in headers else limit_body(receive, self.limits.max_body_bytes)
        endpoint = self._direct_endpoints.get(path, self._any_tool) if method == "POST" else None
        if endpoint is not None:
            check_json(headers)
            call = Call(path, await read_body(limited), cookies, self.core.client, self.core.compute, scope=scope)
            async with cancel_on_disconnect(receive):
                return await self.core.run(endpoint, call, ends_session=END_SESSION in headers)
        elif self.fastapi_app is not None:
            await self.fastapi_app(scope, limited, redact_errors(send))
        else:
            return self._not_found(method, path)
        return None

    def _health(self) -> ServerReply:
        health = {"status": "ok", "server": self.name}
        blocked = self.blocked()
        return ServerReply(self.name, 200, {**health, "blocked": blocked} if blocked else health)

    def _not_found(self, method: str, path: str) -> ServerReply:
        is_known = path in self.endpoints and method != "POST"
        status, detail = (405, "Method Not Allowed") if is_known else (404, "Not Found")
        return ServerReply(self.name, status, {"detail": detail})
