"""A server made callable, as an ASGI app and by a direct call. Both end in the same handler and the same answer."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from typing import Any

from nemo_gym.client.server_client import END_SESSION_HEADER, TOKEN_HEADER, ServerClient, ServerReply
from nemo_gym.common.deadline import HEADER as DEADLINE_HEADER
from nemo_gym.common.deadline import Deadline, timeout
from nemo_gym.common.retry_stats import HEADER as TALLY_HEADER
from nemo_gym.common.retry_stats import track_retries
from nemo_gym.compute.pool import Compute
from nemo_gym.errors import Cause
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.sse import CONTENT_TYPE as EVENT_STREAM
from nemo_gym.llm_api.sse import EventStream, event
from nemo_gym.server.blocking_monitor import Handler, Handlers, register_handler
from nemo_gym.server.disconnect import cancel_on_disconnect
from nemo_gym.server.endpoint import ANY_TOOL, Call, Endpoint, cookies_set_by, direct_scope, set_cookies
from nemo_gym.server.error_responses import RefusedError, failure_of
from nemo_gym.server.session import Session, SessionStore

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 256 * 2**20
"""A rollout of many turns with token ids and log-probs is some tens of megabytes."""

BODY_TIMEOUT_S = 120.0

SESSION_IN_SCOPE = "nemo_gym.server.session"
_SESSION_COOKIE = "path=/; Max-Age=1209600; httponly; samesite=lax"
_DEADLINE, _END, _TOKEN = (name.encode() for name in (DEADLINE_HEADER, END_SESSION_HEADER, TOKEN_HEADER))
_PASSED_ON_HEADERS = frozenset(("retry-after",))
"""Of the headers of an answer that a handler gives, or passes on from a peer, those that concern the caller."""


class ServerCore:
    """What a server's handlers run in: its name, its sessions, its way to other servers, its pool for CPU work."""

    def __init__(
        self, *, name: str, session_cookie: str, sessions: SessionStore, client: ServerClient, compute: Compute
    ) -> None:
        self.name, self.session_cookie, self.sessions, self.client = name, session_cookie, sessions, client
        self.compute = compute
        self.stateful = True

    async def run(self, endpoint: Endpoint, call: Call, *, ends_session: bool = False) -> ServerReply:
        """Call a handler; whatever it raises becomes the answer."""
        opened: Session | None = None
        try:
            if self.stateful and call.session is None:
                opened = call.session = self.sessions.open(call.cookies.get(self.session_cookie))
                opened.users += 1
            value = await endpoint(call)
            status = 200 if call.response is None else call.response.status_code
        except Exception as error:
            value = self.failed(error, cause=endpoint.cause)
        except BaseException:
            if opened is not None and opened.is_new:  # cancelled before the client received the token
                self.sessions.release(opened.token)
            raise
        finally:
            if opened is not None:
                opened.users -= 1
        headers: Mapping[str, str] = {}
        if isinstance(value, ServerReply):
            headers = {name: text for name, text in value.headers.items() if name.lower() in _PASSED_ON_HEADERS}
            status, value = value.status, value.value
        answer = ServerReply(self.name, status, value, cookies_set_by(call), headers)
        if opened is not None and ends_session and status < 400:
            self.sessions.release(opened.token)
        elif opened is not None:  # with every reply: a client may keep only the cookies of the last one
            answer.cookies[self.session_cookie] = opened.token
            opened.is_new = False
        return answer

    def failed(self, error: Exception, *, cause: Cause = "internal") -> ServerReply:
        """The answer that stands for an error."""
        return ServerReply(self.name, *failure_of(error, server=self.name, key=self.session_cookie, cause=cause))

    async def send(
        self, answer: ServerReply, receive: Receive, send: Send, *, deadline: Deadline | None = None
    ) -> None:
        """Send an answer, or its events as they come."""
        if isinstance(answer.value, EventStream):
            await self._send_events(answer, answer.value, receive, send, deadline)
        else:
            await send_answer(answer, send, session_cookie=self.session_cookie)

    async def _send_events(
        self, answer: ServerReply, stream: EventStream, receive: Receive, send: Send, deadline: Deadline | None
    ) -> None:
        """The status is out by the first event, so what fails later is told as one more event."""
        headers = [*_headers_of(answer, EVENT_STREAM, self.session_cookie), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        try:
            async with (
                timeout(None if deadline is None else deadline.left_s(), what=f"{self.name}'s stream"),
                cancel_on_disconnect(receive),
                aclosing(stream.events) as events,
            ):
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            told = {"type": "error", "error": {"message": str(self.failed(error).value)}}
            await send({"type": "http.response.body", "body": event(told, name="error"), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class ServerApp:
    """One server of a worker: its endpoints, and the FastAPI app of its own if it brings one."""

    def __init__(
        self,
        core: ServerCore,
        endpoints: Iterable[Endpoint],
        *,
        foreign: Any = None,
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
        token: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.core, self.name, self._lifespan = core, core.name, lifespan
        self.foreign, self.token, self.max_body_bytes = foreign, token, max_body_bytes
        self.endpoints = {endpoint.path: endpoint for endpoint in endpoints}
        core.stateful = foreign is not None or any(endpoint.needs_session for endpoint in self.endpoints.values())
        self._ours = self.endpoints if foreign is None else _ours_among(foreign)
        self._any_tool = self.endpoints.get(ANY_TOOL) if foreign is None else None  # FastAPI routes by pattern itself
        self.watched: list[Handler] = []

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """What must be entered before the first request: the server and a FastAPI app may hold things open."""
        foreign = nullcontext() if self.foreign is None else self.foreign.router.lifespan_context(self.foreign)
        async with self._lifespan(), foreign:
            yield

    def watch_for(self, handlers: Handlers) -> None:
        """Enter all that answers here on the event loop."""
        ours = [(endpoint.path, endpoint.function) for endpoint in self.endpoints.values()]
        routes = () if self.foreign is None else self.foreign.routes
        theirs = [(route.path, route.endpoint) for route in routes if hasattr(route, "endpoint")]
        found = (register_handler(handlers, self.name + path, function) for path, function in (*ours, *theirs))
        self.watched = [handler for handler in found if handler is not None]

    def blocked(self) -> dict[str, dict[str, float]]:
        """The handlers that held up the event loop: how often, and for how long in all."""
        return {
            handler.name: {"times": handler.times, "seconds": round(handler.seconds, 3)}
            for handler in self.watched
            if handler.times
        }

    def release(self, token: str) -> None:
        self.core.sessions.release(token)

    async def direct(
        self, method: str, path: str, body: Any, cookies: Mapping[str, str], *, ends_session: bool = False
    ) -> ServerReply:
        """Answer a peer of the same worker."""
        endpoint = self._ours.get(path, self._any_tool) if method == "POST" else None
        call = Call(path, body, cookies, self.core.client, self.core.compute, given_away=ends_session)
        if endpoint is not None:
            answer = await self.core.run(endpoint, call, ends_session=ends_session)
            if isinstance(answer.value, EventStream):
                answer.value = await answer.value.joined()
            return answer
        if self.foreign is not None:
            return await self._run_foreign(method, call, ends_session=ends_session)
        return self._not_found(method, path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if self.foreign is not None:
                await self.foreign(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._admit(headers)
            deadline = Deadline.after(float(headers[_DEADLINE])) if _DEADLINE in headers else None
            with track_retries() as retry_stats:
                async with timeout(
                    None if deadline is None else deadline.left_s(), what=f"{self.name}{scope['path']}"
                ):
                    answer = await self._route(scope, receive, send, headers)
            if answer is not None:
                if retry_stats.retries or retry_stats.throttled:
                    answer.headers = {**answer.headers, TALLY_HEADER: retry_stats.as_header()}
                await self.core.send(answer, receive, send, deadline=deadline)
        except Exception as error:
            await self.core.send(self.core.failed(error), receive, send)

    async def _route(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[bytes, bytes]
    ) -> ServerReply | None:
        """The answer still to be sent; none when it has been, or when nobody waits for it any more."""
        method, path = scope["method"], scope["path"]
        if path == "/health" and method == "GET":
            told = {"status": "ok", "server": self.name}
            return ServerReply(self.name, 200, {**told, "blocked": blocked} if (blocked := self.blocked()) else told)
        cookies = cookies_in(headers.get(b"cookie", b""))
        if path == "/session" and method == "DELETE":
            self.release(cookies.get(self.core.session_cookie, ""))
            return ServerReply(self.name, 200, {})
        limited = _limited(receive, self.max_body_bytes)
        endpoint = self._ours.get(path, self._any_tool) if method == "POST" else None
        if endpoint is not None:
            call = Call(path, await read_body(limited), cookies, self.core.client, self.core.compute, scope=scope)
            async with cancel_on_disconnect(receive):
                return await self.core.run(endpoint, call, ends_session=_END in headers)
        elif self.foreign is not None:
            await self.foreign(scope, limited, send)
        else:
            return self._not_found(method, path)
        return None

    def _admit(self, headers: Mapping[bytes, bytes]) -> None:
        if not is_admitted(headers, self.token):
            raise RefusedError(
                401,
                f"'{self.name}' listens beyond this machine and asks for the run's token, in the header "
                f"'{TOKEN_HEADER}', in 'x-api-key', or as 'Authorization: Bearer'. "
                f"Found {'another' if _token_in(headers) else 'none'}.",
            )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.max_body_bytes:
            raise _too_large(self.max_body_bytes, length.decode("latin-1"))

    def _not_found(self, method: str, path: str) -> ServerReply:
        is_known = path in self.endpoints and method != "POST"
        status, detail = (405, "Method Not Allowed") if is_known else (404, "Not Found")
        return ServerReply(self.name, status, {"detail": detail})

    async def _run_foreign(self, method: str, call: Call, *, ends_session: bool) -> ServerReply:
        """Run the FastAPI app in this process: its routing and its middleware, but no socket."""
        scope = direct_scope(call, method=method)
        if ends_session:
            scope["headers"].append((_END, b"1"))
        body = b"" if call.body is None else encode(call.body, exclude_unset=True)
        requests: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        started: dict[str, Any] = {"status": 500, "headers": []}
        parts: list[bytes] = []

        async def receive() -> MutableMapping[str, Any]:
            return requests.pop() if requests else await asyncio.Future()

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        try:
            await self.foreign(scope, receive, send)
        except Exception as error:
            return self.core.failed(error)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in started["headers"]}
        return ServerReply(self.name, started["status"], b"".join(parts), set_cookies(started["headers"]), headers)


class EndpointRoute:
    """One of our endpoints as a route of a FastAPI app, for classes that add routes of their own beside it."""

    def __init__(self, core: ServerCore, endpoint: Endpoint) -> None:
        self._core, self.endpoint = core, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        core, body = self._core, await read_body(receive)
        cookies = cookies_in(dict(scope["headers"]).get(b"cookie", b""))
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
            return _END in headers and 0 < status < 400

        async def send_with_cookie(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if session is not None and not ends_session():
                    line = f"{core.session_cookie}={session.token}; {_SESSION_COOKIE}"
                    message["headers"] = [*message.get("headers", ()), (b"set-cookie", line.encode())]
                    session.is_new = False
            await send(message)

        try:
            session = core.sessions.open(cookies_in(headers.get(b"cookie", b"")).get(core.session_cookie))
            session.users += 1
            scope["session"], scope[SESSION_IN_SCOPE] = session.data, session
            await self._app(scope, receive, send_with_cookie)
        except Exception as error:
            if status:
                raise
            await core.send(core.failed(error), receive, send_with_cookie)
        finally:
            if session is not None:
                session.users -= 1
                if ends_session() or session.is_new:
                    core.sessions.release(session.token)


def _ours_among(foreign: Any) -> dict[str, Endpoint]:
    """The endpoints that may be called without going through the FastAPI app: ours, first at their path, and with no
    middleware before them but our own."""
    if any(item.cls is not SessionMiddleware for item in foreign.user_middleware):
        return {}
    first: dict[str, Any] = {}
    for route in foreign.routes:
        first.setdefault(getattr(route, "path", ""), getattr(route, "app", None))
    return {path: route.endpoint for path, route in first.items() if isinstance(route, EndpointRoute)}


def is_admitted(headers: Mapping[bytes, bytes], token: str | None) -> bool:
    """Whether a caller shows the run's token, if that is asked for."""
    return token is None or hmac.compare_digest(_token_in(headers), token.encode())


def _token_in(headers: Mapping[bytes, bytes]) -> bytes:
    bearer = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
    return headers.get(_TOKEN) or headers.get(b"x-api-key") or bearer


def cookies_in(header: bytes) -> dict[str, str]:
    """The cookies of a `Cookie` header."""
    pairs = (part.partition("=") for part in header.decode("latin-1").split(";") if part)
    return {name.strip(): value.strip() for name, _, value in pairs}


async def read_body(receive: Receive) -> bytes:
    """All of a request's body."""
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusedError(400, "The client went away before its body was complete.")
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError as error:
        raise RefusedError(408, f"The body did not arrive within {BODY_TIMEOUT_S:g} s.") from error


def _limited(receive: Receive, limit: int) -> Receive:
    taken = 0

    async def receive_counted() -> MutableMapping[str, Any]:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise _too_large(limit, f"{taken} and more")
        return message

    return receive_counted


def _too_large(limit: int, found: str) -> RefusedError:
    return RefusedError(413, f"The body has {found} bytes; at most {limit} are taken (config key: max_body_bytes).")


async def send_answer(answer: ServerReply, send: Send, *, session_cookie: str = "") -> None:
    """Send an answer that is there."""
    is_text = isinstance(answer.value, bytes) and answer.value[:1] not in (b"{", b"[", b'"')
    kind = "text/plain; charset=utf-8" if is_text else "application/json"
    body = answer.content()
    headers = [*_headers_of(answer, kind, session_cookie), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _headers_of(answer: ServerReply, content_type: str, session_cookie: str) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", content_type.encode())]
    headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    for name, value in answer.cookies.items():
        attributes = _SESSION_COOKIE if name == session_cookie else "path=/"
        headers.append((b"set-cookie", f"{name}={value}; {attributes}".encode()))
    return headers
