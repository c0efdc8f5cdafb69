"""Servers that bring a FastAPI app of their own, with our endpoints and sessions inside it."""

from collections.abc import MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from nemo_gym.common.cookies import parse_cookies
from nemo_gym.common.exceptions import is_meant_for_task
from nemo_gym.common.statistics import RequestStats
from nemo_gym.server.asgi import SESSION_COOKIE_ATTRIBUTES, App, Receive, Scope, Send, read_body
from nemo_gym.server.core import ServerCore
from nemo_gym.server.endpoint import Call, Endpoint
from nemo_gym.server.error_responses import redact_errors
from nemo_gym.server.request_checks import END_SESSION, check_json
from nemo_gym.server.rollout_prefix import RolloutContextMiddleware
from nemo_gym.server.session import Session

SESSION_IN_SCOPE = "nemo_gym.server.session"
_DOCUMENTATION = frozenset(("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"))


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
        await core.send(await core.run(self.endpoint, call), receive, send)


class SessionMiddleware:
    """Gives `request.session` to a FastAPI app. The session cookie goes out with every reply, errors included."""

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
            await (running if core.around is None else core.around(running))
        except BaseException as error:
            if status or is_meant_for_task(error):
                raise
            await core.send(core.failed(error), receive, send_with_cookie)
        finally:
            if session is not None:
                session.users -= 1
                if ends_session() or session.is_new:
                    core.sessions.release(session.token)


class FastApiApp:
    """A server's own FastAPI app: which paths it answers itself, and which of our endpoints it has."""

    def __init__(self, app: Any) -> None:
        self._app = app
        first: dict[str, Any] = {}
        for route in app.routes:
            first.setdefault(getattr(route, "path", ""), getattr(route, "app", None))
        self.endpoints = {path: route.endpoint for path, route in first.items() if isinstance(route, EndpointRoute)}
        """Our endpoints that are first at their path."""
        ours = (SessionMiddleware, RolloutContextMiddleware)
        has_middleware = any(item.cls not in ours for item in app.user_middleware)
        self.bypassable: dict[str, Endpoint] = {} if has_middleware else self.endpoints
        """Those that can be called without the app."""
        self.get_paths = {route.path for route in app.routes if "GET" in (getattr(route, "methods", None) or ())}
        added = (route for route in app.routes if not isinstance(getattr(route, "app", None), EndpointRoute))
        paths = {route.path for route in added if hasattr(route, "path")} - _DOCUMENTATION
        self.stats = {path: RequestStats() for path in sorted(paths)}
        """Of the routes that the server has added. Paths with parameters are not counted."""
        self.handlers = [(route.path, route.endpoint) for route in app.routes if hasattr(route, "endpoint")]

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        """What the app opens at start-up and closes in the end."""
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
            await self._app(scope, receive, redact_errors(send_and_look))
        except BaseException as error:
            failure = "cancelled" if is_meant_for_task(error) else "internal"
            raise
        finally:
            stats.end(started, failure)
