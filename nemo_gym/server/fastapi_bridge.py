"""Servers that bring a FastAPI app of their own: our endpoints and sessions inside it, direct calls into it."""

from collections.abc import Mapping, MutableMapping
from typing import Any

from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.cookies import parse_cookies
from nemo_gym.common.metrics import RequestStats
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.server.asgi import SESSION_COOKIE_ATTRIBUTES, App, Receive, Scope, Send, read_body
from nemo_gym.server.asgi_calls import call_asgi
from nemo_gym.server.core import ServerCore
from nemo_gym.server.endpoint import Call, Endpoint, direct_scope, set_cookies
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
        except Exception as error:
            if status:
                raise
            await core.send(core.failed(error), receive, send_with_cookie)
        finally:
            if session is not None:
                session.users -= 1
                if ends_session() or session.is_new:
                    core.sessions.release(session.token)


def get_paths(fastapi_app: Any) -> set[str]:
    """The paths at which a FastAPI app answers GET requests itself, documentation aside."""
    routes = () if fastapi_app is None else fastapi_app.routes
    return {route.path for route in routes if "GET" in (getattr(route, "methods", None) or ())}


def bypassable_endpoints(fastapi_app: Any) -> dict[str, Endpoint]:
    """The endpoints that can be called without the FastAPI app: those first at their path, if there is no middleware
    before them but our own."""
    own = (SessionMiddleware, RolloutContextMiddleware)
    if any(item.cls not in own for item in fastapi_app.user_middleware):
        return {}
    return our_endpoints(fastapi_app)


def our_endpoints(fastapi_app: Any) -> dict[str, Endpoint]:
    """Our endpoints that are first at their path."""
    first: dict[str, Any] = {}
    for route in fastapi_app.routes:
        first.setdefault(getattr(route, "path", ""), getattr(route, "app", None))
    return {path: route.endpoint for path, route in first.items() if isinstance(route, EndpointRoute)}


def own_routes(fastapi_app: Any) -> list[str]:
    """The paths of the routes that the server has added to our endpoints."""
    added = (route for route in fastapi_app.routes if not isinstance(getattr(route, "app", None), EndpointRoute))
    return sorted({route.path for route in added if hasattr(route, "path")} - _DOCUMENTATION)


def count_requests(app: App, stats: Mapping[str, RequestStats]) -> App:
    """The app, with its requests counted by path. Paths with parameters are not counted."""

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        counts = stats.get(scope["path"])
        if counts is None:
            return await app(scope, receive, send)
        failure: str | None = "cancelled"

        async def send_and_look(message: MutableMapping[str, Any]) -> None:
            nonlocal failure
            if message["type"] == "http.response.start":
                status = message["status"]
                failure = None if status < 400 else "input" if status < 500 else "internal"
            await send(message)

        started = counts.start()
        try:
            await app(scope, receive, send_and_look)
        except Exception:
            failure = "internal"
            raise
        finally:
            counts.end(started, failure)

    return counted


async def call_fastapi(
    fastapi_app: App, core: ServerCore, method: str, call: Call, *, ends_session: bool
) -> ServerReply:
    """Run a FastAPI app in this process: its routing and its middleware, but no socket."""
    scope = direct_scope(call, method=method)
    if ends_session:
        scope["headers"].append((END_SESSION, b"1"))
    body = b"" if call.body is None else encode(call.body, exclude_unset=True)

    async def redacted(scope: Scope, receive: Receive, send: Send) -> None:
        await fastapi_app(scope, receive, redact_errors(send))

    try:
        reply = await call_asgi(redacted, scope, body)
    except Exception as error:
        return core.failed(error)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers}
    return ServerReply(core.name, reply.status, reply.body, set_cookies(reply.headers), headers)
