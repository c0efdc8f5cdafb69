"""Servers written with FastAPI: classes with their own app, and handlers with parameters that FastAPI provides.

Core loads this module as the plugin `fastapi` if a class overrides `setup_webserver`, or if a handler's signature has
a type of FastAPI or Starlette.
"""

import inspect
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, get_args

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nemo_gym.client.call_log import rollout_context
from nemo_gym.common.cookies import parse_cookies
from nemo_gym.common.event_loop import run_in_thread
from nemo_gym.common.exceptions import is_meant_for_task
from nemo_gym.common.plugins import plugin
from nemo_gym.common.statistics import RequestStats
from nemo_gym.compat.folder_functions import judge_failure_reply
from nemo_gym.judge import JudgeError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.server.asgi import SESSION_COOKIE_ATTRIBUTES, App, Receive, Scope, Send, call_asgi, read_body
from nemo_gym.server.base import PUBLIC_HOOKS, SimpleServer
from nemo_gym.server.core import ServerCore
from nemo_gym.server.endpoint import Call, Endpoint, Provide, direct_scope
from nemo_gym.server.error_responses import redact_body
from nemo_gym.server.request_checks import END_SESSION, check_json
from nemo_gym.server.rollout_prefix import without_prefix
from nemo_gym.server.session import Session

SESSION_IN_SCOPE = "nemo_gym.server.session"
SERVED = "nemo_gym.compat.served"
"""In the scope of requests that a server gets. An app that somebody else calls, such as a test, raises its errors."""
_DOCUMENTATION = frozenset(("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"))
_MARKERS = frozenset(("Depends", "Security", "Header", "Query", "Cookie", "Path"))
_PROVIDED_TYPES = frozenset(("BackgroundTasks", "HTTPConnection", "SecurityScopes"))
_CALL = "nemo_gym.compat.fastapi_servers.call"

# Apps


def make_app(server: SimpleServer) -> FastAPI:
    """Create a FastAPI app with the endpoints of a server."""
    app = FastAPI()
    app.add_middleware(RolloutContextMiddleware)
    server.setup_session_middleware(app)
    for endpoint in server.endpoints():
        app.router.routes.append(Route(endpoint.path, EndpointRoute(server.core(), endpoint), methods=["POST"]))
    if server.overrides(*PUBLIC_HOOKS):
        plugin("sessions").add_session_routes(app, server)
    return app


def add_session_middleware(app: FastAPI, core: ServerCore) -> None:
    """Add `request.session` to an app, unless it has it."""
    present: list[Any] = [item.cls for item in app.user_middleware]
    if SessionMiddleware not in present:
        app.add_middleware(SessionMiddleware, core=core)


def add_exception_middleware(app: FastAPI, core: ServerCore) -> None:
    """Turn the errors of an app's handlers into JSON, unless we serve it, which does that already."""
    app.add_middleware(ExceptionMiddleware, core=core)


class ExceptionMiddleware:
    """Answers what handlers raise."""

    def __init__(self, app: App, core: ServerCore) -> None:
        self._app, self._core = app, core

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def note_start(message: MutableMapping[str, Any]) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        except Exception as error:
            if has_started or scope["type"] != "http" or SERVED in scope or is_meant_for_task(error):
                raise
            await self._core.send(self._core.failed(error), receive, send)


class EndpointRoute:
    """One of our endpoints as a route of a FastAPI app."""

    def __init__(self, core: ServerCore, endpoint: Endpoint) -> None:
        self._core, self.endpoint = core, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        core, headers = self._core, dict(scope["headers"])
        check_json(headers)
        body, cookies = await read_body(receive), parse_cookies(headers.get(b"cookie", b""))
        session: Session | None = scope.get(SESSION_IN_SCOPE)
        call = Call(scope["path"], body, cookies, core.client, core.compute, session, scope)
        call.raises_errors = SERVED not in scope
        try:
            reply = await core.run(self.endpoint, call)
        except JudgeError as error:
            if SERVED in scope:
                raise
            await judge_failure_reply(error, [orjson.loads(body)])(scope, receive, send)
            return
        await core.send(reply, receive, send)


class SessionMiddleware:
    """Adds `request.session` to a FastAPI app. Every reply, including errors, sets the session cookie."""

    def __init__(self, app: App, core: ServerCore) -> None:
        self._app, self._core = app, core

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        core, headers = self._core, dict(scope["headers"])
        session: Session | None = None
        status = 0

        def ends_session() -> bool:
            return END_SESSION in headers and 0 < status < 400

        async def send_with_cookie(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if session is not None and not ends_session():
                    line = f"{core.session_cookie}={session.token}; {SESSION_COOKIE_ATTRIBUTES}"
                    message["headers"] = [*message.get("headers", ()), (b"set-cookie", line.encode())]
                    session.is_new = False
            await send(message)

        try:
            session = core.sessions.open(parse_cookies(headers.get(b"cookie", b"")).get(core.session_cookie))
            session.users += 1
            scope["session"], scope[SESSION_IN_SCOPE] = session.data, session
            running = self._app(scope, receive, send_with_cookie)
            await (running if core.wrap_call is None else core.wrap_call(running))
        except BaseException as error:
            if status or is_meant_for_task(error) or SERVED not in scope:
                raise
            await core.send(core.failed(error), receive, send_with_cookie)
        finally:
            if session is not None:
                session.users -= 1
                if ends_session() or session.is_new:
                    core.sessions.release(session.token)


class RolloutContextMiddleware:
    """Removes the rollout prefix from paths, for an app that is served alone. Our servers do so before any
    middleware."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = without_prefix(scope) if scope["type"] == "http" else None
        if inner is None:
            return await self._app(scope, receive, send)
        with rollout_context(inner["path_params"]["rollout_id"]):
            return await self._app(inner, receive, send)


class FastApiApp:
    """A server's own FastAPI app: its own paths, and our endpoints in it."""

    def __init__(self, app: Any) -> None:
        self._app, self.routes = app, app.routes
        first: dict[str, Any] = {}
        for route in app.routes:
            first.setdefault(getattr(route, "path", ""), getattr(route, "app", None))
        self.endpoints = {path: route.endpoint for path, route in first.items() if isinstance(route, EndpointRoute)}
        ours = (SessionMiddleware, RolloutContextMiddleware, ExceptionMiddleware)
        has_middleware = any(item.cls not in ours for item in app.user_middleware)
        self.bypassable: dict[str, Endpoint] = {} if has_middleware else self.endpoints
        self.get_paths = {route.path for route in app.routes if "GET" in (getattr(route, "methods", None) or ())}
        added = (route for route in app.routes if not isinstance(getattr(route, "app", None), EndpointRoute))
        paths = {route.path for route in added if hasattr(route, "path")} - _DOCUMENTATION
        self.stats = {path: RequestStats() for path in sorted(paths)}
        """Statistics of the routes that the server added. Paths with parameters are not counted."""
        self.handlers = [(route.path, route.endpoint) for route in app.routes if hasattr(route, "endpoint")]

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        """Return the app's lifespan: what it opens at start-up and closes at shutdown."""
        lifespan: AbstractAsyncContextManager[Any] = self._app.router.lifespan_context(self._app)
        return lifespan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the request, and replace secrets in error responses."""
        stats = self.stats.get(scope["path"]) or RequestStats()
        failure: str | None = "cancelled"

        async def send_and_look(message: MutableMapping[str, Any]) -> None:
            nonlocal failure
            if message["type"] == "http.response.start":
                status = message["status"]
                failure = None if status < 400 else "input" if status < 500 else "internal"
            await send(message)

        started = stats.start()
        try:
            await self._app({**scope, SERVED: True}, receive, redact_errors(send_and_look))
        except BaseException as error:
            failure = "cancelled" if is_meant_for_task(error) else "internal"
            raise
        finally:
            stats.end(started, failure)


def redact_errors(send: Send) -> Send:
    """Wrap the `send` of an app: replace secrets in the bodies of its error responses."""
    start: MutableMapping[str, Any] | None = None

    async def send_redacted(message: MutableMapping[str, Any]) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and message["status"] >= 400:
            start = message
            return
        if start is not None:
            body = redact_body(message.get("body", b""))
            headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            if not message.get("more_body"):
                headers.append((b"content-length", str(len(body)).encode()))
            await send({**start, "headers": headers})
            message, start = {**message, "body": body}, None
        await send(message)

    return send_redacted


# Parameters of handlers


def provider_of(kind: type[Any]) -> Provide | None:
    """Return the function that provides a handler's `Request` or `Response`."""
    return {"Request": _request, "Response": _response}.get(kind.__name__)


def _request(call: Call) -> Request:
    scope = direct_scope(call) if call.scope is None else call.scope

    async def receive() -> dict[str, Any]:
        body = b"" if call.sent is None else encode(call.sent, exclude_unset=True)
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({**scope, "session": None if call.session is None else call.session.data}, receive)


def _response(call: Call) -> Response:
    if call.response is None:
        call.response = Response()
    return call.response


def _resolves(parameter: inspect.Parameter) -> bool:
    """True if FastAPI provides the value of this parameter."""
    kind, markers = parameter.annotation, (parameter.default, *get_args(parameter.annotation)[1:])
    if any(type(one).__module__ == "fastapi.params" and type(one).__name__ in _MARKERS for one in markers):
        return True
    is_class = isinstance(kind, type) and kind.__module__.partition(".")[0] in ("fastapi", "starlette")
    return is_class and kind.__name__ in _PROVIDED_TYPES


def with_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler, without the parameters that FastAPI provides: these are resolved for each call. A handler
    without such parameters is returned unchanged."""
    signature = inspect.signature(function, eval_str=True)
    theirs = [parameter for parameter in signature.parameters.values() if _resolves(parameter)]
    if not theirs:
        return function

    async def call_handler(http_request: Request, **resolved: Any) -> None:
        await http_request.scope[_CALL](resolved)

    by_keyword = inspect.Parameter.KEYWORD_ONLY
    asked = inspect.Parameter("http_request", by_keyword, annotation=Request)
    resolved_names = [each.replace(kind=by_keyword) for each in theirs]
    call_handler.__signature__ = inspect.Signature([asked, *resolved_names])  # type: ignore[attr-defined]
    app = FastAPI(openapi_url=None)
    app.add_api_route("/{path:path}", call_handler, methods=["POST"], response_model=None)

    async def handler(http_request: Request, http_response: Response, **given: Any) -> Any:
        result: Any = None
        is_called = False

        async def call(resolved: dict[str, Any]) -> None:
            nonlocal result, is_called
            is_called, values = True, {**given, **resolved}
            is_async = inspect.iscoroutinefunction(function)
            result = await (function(**values) if is_async else run_in_thread(function, **values))

        reply = await call_asgi(app, {**http_request.scope, _CALL: call}, await http_request.body())
        for cookie in reply.headers.getall("set-cookie", ()):
            http_response.raw_headers.append((b"set-cookie", cookie.encode("latin-1")))
        # a dependency, or an invalid header, may have ended the call with a reply of its own
        return result if is_called and reply.status < 400 else reply

    ours = [each.replace(kind=by_keyword) for each in signature.parameters.values() if each not in theirs]
    added = {"http_request": Request, "http_response": Response}
    ours += [inspect.Parameter(name, by_keyword, annotation=kind) for name, kind in added.items()]
    handler.__signature__ = signature.replace(parameters=ours)  # type: ignore[attr-defined]
    handler.__name__, handler.__qualname__ = function.__name__, function.__qualname__
    return handler
