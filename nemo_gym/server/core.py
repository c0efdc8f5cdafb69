"""Calls of a server's handlers: sessions, the client for other servers, error responses."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import Any

from nemo_gym.client.call_log import running_call
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.common import tracing
from nemo_gym.common.deadline import Deadline, time_left, timeout
from nemo_gym.common.exceptions import is_meant_for_task
from nemo_gym.compute.pool import Compute
from nemo_gym.errors import Cause
from nemo_gym.llm_api.stream_events import CONTENT_TYPE as EVENT_STREAM
from nemo_gym.llm_api.stream_events import EventStream, event
from nemo_gym.server.asgi import Receive, Send, cancel_on_disconnect, reply_headers, send_reply
from nemo_gym.server.endpoint import Call, Endpoint, cookies_set_by, read_response
from nemo_gym.server.error_responses import cause_of, failure_of, is_expected
from nemo_gym.server.session import Session, SessionStore

_FORWARDED_HEADERS = frozenset(("retry-after",))
"""Headers of a reply that a handler returns, or forwards from another server, which are meant for the caller."""


class ServerCore:
    """The name of a server, its sessions, its client for other servers, its pool for CPU-heavy work."""

    def __init__(
        self, *, name: str, session_cookie: str, sessions: SessionStore, client: ServerClient, compute: Compute
    ) -> None:
        self.name, self.session_cookie, self.sessions, self.client = name, session_cookie, sessions, client
        self.compute = compute
        self.is_stateful = True
        self.own_app: Any = None
        """An app that the server brings itself, if it does."""
        self.direct: Callable[[str, str, Any, Mapping[str, str]], Awaitable[ServerReply]] | None = None
        """Calls an endpoint of this server: method, path, body, cookies."""
        self.wrap_call: Callable[[Awaitable[Any]], Coroutine[Any, Any, Any]] | None = None
        """Wraps every call, for a profiler."""

    def run(self, endpoint: Endpoint, call: Call) -> Coroutine[Any, Any, ServerReply]:
        """Call a handler. An exception becomes an error response."""
        running = self._run(endpoint, call)
        if self.wrap_call is not None:
            running = self.wrap_call(running)
        if tracing.active is None:
            return running
        return tracing.traced(
            running,
            f"{self.name}{call.path}",
            kind="server",
            attributes={"nemo_gym.server": self.name, "url.path": call.path},
            headers=None if call.scope is None else call.scope["headers"],
            describe=partial(_describe, endpoint),
        )

    async def _run(self, endpoint: Endpoint, call: Call) -> ServerReply:
        opened: Session | None = None
        stats, failure = endpoint.stats, None
        stats.in_flight += 1
        call.server, call.endpoint, call.started = self.name, endpoint, monotonic()
        outer_call = running_call.set(call)
        try:
            if self.is_stateful and call.session is None and endpoint.opens_session:
                opened = call.session = self.sessions.open(call.cookies.get(self.session_cookie))
                opened.users += 1
            value = await endpoint(call)
            if call.interruption is not None:
                raise call.interruption
            if callable(value):
                value = await read_response(call, value)
            if endpoint.finish is not None:
                value = endpoint.finish(call.body, value)
            if type(value) is ServerReply and value.status >= 400:
                failure = cause_of(value, endpoint.cause)
            status = 200 if call.response is None else call.response.status_code
        except BaseException as raised:
            error = call.interruption or raised
            if is_meant_for_task(error):
                failure = "cancelled" if time_left(1.0) else "timeout"
                if opened is not None and opened.is_new:  # cancelled before the client received the token
                    self.sessions.release(opened.token)
                raise
            if call.raises_errors and not is_expected(error):
                raise
            value = endpoint.shape_error(self.failed(error, cause=endpoint.cause), error)
            failure = cause_of(value, endpoint.cause)
        finally:
            running_call.reset(outer_call)
            stats.end(call.started, failure)
            if opened is not None:
                opened.users -= 1
        headers: Mapping[str, str] = {}
        if type(value) is ServerReply:
            headers = value.headers_named(_FORWARDED_HEADERS)
            status, value = value.status, value.value
        if call.scope is None and type(value) is EventStream:  # a direct caller reads whole bodies
            value = await value.joined()
        has_cookies = call.jar or call.response is not None
        reply = ServerReply(self.name, status, value, cookies_set_by(call) if has_cookies else {}, headers)
        if opened is not None and call.ends_session and status < 400:
            self.sessions.release(opened.token)
        elif opened is not None:  # with every reply: a client may keep only the cookies of the last one
            reply.cookies[self.session_cookie] = opened.token
            opened.is_new = False
            if failure == "environment" and endpoint.cause == "tool":  # a client that goes on cannot get a score
                self.sessions.release(opened.token)
        return reply

    def failed(self, error: BaseException, *, cause: Cause = "internal") -> ServerReply:
        """The error response to an exception."""
        return failure_of(error, server=self.name, key=self.session_cookie, cause=cause)

    async def send(
        self, reply: ServerReply, receive: Receive, send: Send, *, deadline: Deadline | None = None
    ) -> None:
        """Send a reply, or its events as they come."""
        if isinstance(reply.value, EventStream):
            await self._send_events(reply, reply.value, receive, send, deadline)
        else:
            await send_reply(reply, send, session_cookie=self.session_cookie)

    async def _send_events(
        self, reply: ServerReply, stream: EventStream, receive: Receive, send: Send, deadline: Deadline | None
    ) -> None:
        """The status is sent before the first event, so a later failure is reported as one more event."""
        headers = [*reply_headers(reply, EVENT_STREAM, self.session_cookie), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        try:
            async with (
                timeout(None if deadline is None else deadline.left_s(), what=f"{self.name}'s stream"),
                cancel_on_disconnect(receive),
                aclosing(stream.events) as events,
            ):
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        except BaseException as error:
            if is_meant_for_task(error):
                raise
            failure = {"type": "error", "error": {"message": str(self.failed(error).value)}}
            await send({"type": "http.response.body", "body": event(failure, name="error"), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _describe(endpoint: Endpoint, reply: ServerReply) -> dict[str, Any]:
    """Return the attributes of a span: the reply's status and, of a failure, the cause."""
    status = {"http.response.status_code": reply.status}
    return status if reply.status < 400 else {**status, "error": cause_of(reply, endpoint.cause)}
