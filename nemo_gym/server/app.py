"""One server as an ASGI app and for direct calls. Both end in the same handler and give the same reply."""

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from nemo_gym.client.call_log import rollout_context
from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.cookies import parse_cookies
from nemo_gym.common.deadline import timeout
from nemo_gym.common.exceptions import is_meant_for_task
from nemo_gym.common.metrics import Family
from nemo_gym.common.retry import RETRY_STATS_HEADER, track_retries
from nemo_gym.common.statistics import RequestStats
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.server.asgi import (
    FORWARDED,
    Receive,
    Scope,
    Send,
    UnreadBodies,
    call_asgi,
    cancel_on_disconnect,
    limit_body,
    read_body,
)
from nemo_gym.server.core import ServerCore
from nemo_gym.server.endpoint import ANY_TOOL, Call, Endpoint, direct_scope
from nemo_gym.server.request_checks import (
    END_SESSION,
    Headers,
    ServerLimits,
    check_json,
    check_keys,
    check_length,
    check_origin,
    check_token,
    read_deadline,
)
from nemo_gym.server.rollout_prefix import START as PREFIX_START
from nemo_gym.server.rollout_prefix import without_prefix
from nemo_gym.server.watchdog import Handler, Handlers, register_handler

if TYPE_CHECKING:
    from nemo_gym.server.forwarding import OtherWorkers


class OwnApp(Protocol):
    """An app that a server brings itself, with routes beside our endpoints."""

    endpoints: Mapping[str, Endpoint]
    """Our endpoints that are first at their path."""
    bypassable: Mapping[str, Endpoint]
    """Endpoints that can be called without the app."""
    get_paths: Container[str]
    """Paths at which it answers GET."""
    stats: Mapping[str, RequestStats]
    """Counts of the requests to routes that the server has added, by path."""
    handlers: Iterable[tuple[str, Callable[..., Any]]]
    """Path and function of its routes."""

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        """Open what the app needs while it serves, and close it in the end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class ServerApp:
    """The endpoints of one server, and its own app if it brings one."""

    def __init__(
        self,
        core: ServerCore,
        endpoints: Iterable[Endpoint],
        *,
        own_app: OwnApp | None,
        answer_get: Callable[[str], Any],
        shape_refusal: Callable[[str, ServerReply], ServerReply],
        lifespan: Callable[[], AbstractAsyncContextManager[Any]],
        token: str | None,
        limits: ServerLimits,
        concurrency: int | None,
    ) -> None:
        self.core, self.name, self.token, self.limits, self.concurrency = core, core.name, token, limits, concurrency
        self._answer_get, self._lifespan, core.direct = answer_get, lifespan, self.direct
        self._shape_refusal = shape_refusal
        self.endpoints = {endpoint.path: endpoint for endpoint in endpoints}
        core.is_stateful = own_app is not None or any(one.needs_session for one in self.endpoints.values())
        self.own_app = own_app
        self._direct_endpoints = self.endpoints if own_app is None else own_app.bypassable
        # an own app matches patterns itself
        self._any_tool = self.endpoints.get(ANY_TOOL) if own_app is None else None
        self.unread = UnreadBodies(core.name, limits.max_unread_bytes)
        self._handlers: list[Handler] = []
        self.families: Callable[[], list[Family]] = list
        """The metrics of this server's worker; none if nobody measures them."""
        self.pages: dict[str, Callable[[], bytes]] = {}
        """Functions that answer GET at paths that no route of the server has, such as `/metrics`."""
        self.others: OtherWorkers | None = None
        """The other workers behind this server's address, if there are any."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open what is needed to answer requests: the server's own resources and those of its own app."""
        async with self._lifespan(), nullcontext() if self.own_app is None else self.own_app.lifespan():
            yield

    def register_handlers(self, handlers: Handlers) -> None:
        """Have the watchdog recognize the handlers of this server."""
        own = [(endpoint.path, endpoint.function) for endpoint in self.endpoints.values()]
        routed = [] if self.own_app is None else self.own_app.handlers
        found = (register_handler(handlers, self.name + path, function) for path, function in (*own, *routed))
        self._handlers = [handler for handler in found if handler is not None]

    def blocked(self) -> dict[str, dict[str, float]]:
        """The handlers that blocked the event loop: how often, and for how long in total."""
        return {
            handler.name: {"times": handler.times, "seconds": round(handler.seconds, 3)}
            for handler in self._handlers
            if handler.times
        }

    def release(self, token: str) -> Awaitable[object] | None:
        """End a session. If it is in another worker, await the result."""
        cookies = {self.core.session_cookie: token}
        if self.others is not None and self._other_worker(cookies) is not None:
            return self.direct("DELETE", "/session", None, cookies)
        self.core.sessions.release(token)
        return None

    def direct(
        self, method: str, path: str, body: Any, cookies: Mapping[str, str], *, ends_session: bool = False
    ) -> Awaitable[ServerReply]:
        """Answer a caller in the same worker. A call that no endpoint here answers takes the way of a request."""
        core, endpoint = self.core, self._direct_endpoints.get(path)
        if endpoint is None and not path.startswith(PREFIX_START):
            endpoint = self._any_tool
        call = Call(path, body, cookies, core.client, core.compute, ends_session=ends_session)
        is_elsewhere = self.others is not None and self._other_worker(cookies) is not None
        if endpoint is None or method != "POST" or is_elsewhere:
            return self._direct_request(method, call)
        return core.run(endpoint, call)

    async def _direct_request(self, method: str, call: Call) -> ServerReply:
        """Answer a request as over HTTP, but without a socket. The caller is trusted."""
        scope = direct_scope(call, method=method)
        if call.ends_session:
            scope["headers"].append((END_SESSION, b"1"))
        body = b"" if call.body is None else encode(call.body, exclude_unset=True)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            reply = await self._route(scope, receive, send, dict(scope["headers"]))
            if reply is not None:
                await self.core.send(reply, receive, send)

        try:
            return await call_asgi(respond, scope, body, server=self.name)
        except BaseException as error:
            if is_meant_for_task(error):
                raise
            return self.core.failed(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
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
                    reply.headers[RETRY_STATS_HEADER] = retry_stats.as_header()
                await self.core.send(reply, receive, send, deadline=deadline)
        except BaseException as error:
            if is_meant_for_task(error):
                raise
            await self.core.send(self.core.failed(error), receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if self.token is not None:
            check_token(headers, self.token, self.name)
        check_origin(scope, headers, self.limits.allowed_hosts, checks_host=self.token is None)
        check_length(headers, self.limits.max_body_bytes)

    async def _route(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> ServerReply | None:
        """The reply to send. None if it has been sent, or if the client has disconnected."""
        method, path = scope["method"], scope["path"]
        if path.startswith(PREFIX_START) and (inner := without_prefix(scope)):
            with rollout_context(inner["path_params"]["rollout_id"]):
                return await self._route(inner, receive, send, headers)
        if method == "GET" and (reply := self._get(path)) is not None:
            return reply
        cookies = parse_cookies(headers.get(b"cookie", b""))
        # uvicorn passes on no more than the declared length, which is checked
        limited = receive if b"content-length" in headers else limit_body(receive, self.limits.max_body_bytes)
        if (
            self.others is not None
            and FORWARDED not in headers
            and (worker := self._other_worker(cookies)) is not None
        ):
            await self.others.forward(worker, self.name, scope, limited, send, cookies)
            return None
        if path == "/session" and method == "DELETE":
            self.core.sessions.release(cookies.get(self.core.session_cookie, ""))
            return ServerReply(self.name, 200, {})
        endpoint = self._direct_endpoints.get(path, self._any_tool) if method == "POST" else None
        if endpoint is not None:
            check_json(headers)
            body = await read_body(limited, self.unread)
            if endpoint.limits_keys:
                check_keys(body, self.limits.max_body_keys)
            ends_session = END_SESSION in headers
            call = Call(
                path, body, cookies, self.core.client, self.core.compute, scope=scope, ends_session=ends_session
            )
            async with cancel_on_disconnect(receive):
                return await self.core.run(endpoint, call)
        elif self.own_app is not None:
            await self.own_app(scope, limited, send)
        else:
            return self._not_found(method, path)
        return None

    def _other_worker(self, cookies: Mapping[str, str]) -> int | None:
        """The worker that has the session of a request, if it is not this one."""
        token = cookies.get(self.core.session_cookie)
        return self.core.sessions.other_worker(token) if token else None

    def _get(self, path: str) -> ServerReply | None:
        """Answer GET with what this class or the server's `answer_get` has at a path. An own app has its routes."""
        if path == "/health":
            blocked = self.blocked()
            health = {"status": "ok", "server": self.name}
            return ServerReply(self.name, 200, {**health, "blocked": blocked} if blocked else health)
        if self.own_app is not None and path in self.own_app.get_paths:
            return None
        value = self.pages[path]() if path in self.pages else self._answer_get(path)
        return value if value is None or isinstance(value, ServerReply) else ServerReply(self.name, 200, value)

    def _not_found(self, method: str, path: str) -> ServerReply:
        is_known = path in self.endpoints and method != "POST"
        status, detail = (405, "Method Not Allowed") if is_known else (404, "Not Found")
        return self._shape_refusal(path, ServerReply(self.name, status, {"detail": detail}))
