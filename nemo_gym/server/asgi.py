"""ASGI in and out: read a request's body, notice that its client has gone, send a reply;
or call an app in this process, without a socket."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nemo_gym.client.reply import content_type_of
from nemo_gym.client.server_client import ServerReply
from nemo_gym.errors import OverloadedError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_TIMEOUT_S = 120.0
"""Time limit for receiving the body of a request."""
WATCH_AFTER_S = 0.2
"""Seconds after which a request is watched for a disconnect: most are done sooner."""
FORWARDED = b"nemo-gym-forwarded"
"""The header of a request that another worker forwarded."""
SESSION_COOKIE_ATTRIBUTES = "path=/; Max-Age=1209600; httponly; samesite=lax"


class RefusedError(Exception):
    """A request that is refused before any handler sees it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@dataclass(slots=True)
class UnreadBodies:
    """Counts the bytes of all request bodies that a server is receiving."""

    server: str
    max_bytes: int
    num_bytes: int = 0

    def add(self, size: int) -> None:
        self.num_bytes += size
        if self.num_bytes > self.max_bytes:
            limit = f"more than {self.max_bytes} bytes (max_unread_bytes)"
            raise OverloadedError(f"The bodies that '{self.server}' is receiving have {limit}.", server=self.server)


async def read_body(receive: Receive, unread: UnreadBodies | None = None) -> bytes:
    """All of a request's body, unless the server is receiving too much at once."""
    unread = unread or UnreadBodies("", sys.maxsize)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusedError(400, "The client disconnected before its body was complete.")
                part: bytes = message.get("body", b"")
                if not parts and not message.get("more_body"):
                    return part
                parts.append(part)
                size += len(part)
                unread.add(len(part))
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError as error:
        raise RefusedError(408, f"The body did not arrive within {BODY_TIMEOUT_S:g} s.") from error
    finally:
        unread.num_bytes -= size


def limit_body(receive: Receive, max_bytes: int) -> Receive:
    """Return `receive` with a limit: it raises after more than `max_bytes`."""
    received = 0

    async def receive_limited() -> MutableMapping[str, Any]:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise body_too_large(max_bytes, f"more than {max_bytes}")
        return message

    return receive_limited


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the code inside when the client disconnects, then leave the block quietly. Nothing else may `receive`
    by the time the watch starts, so read the body first."""
    loop, worker = asyncio.get_running_loop(), asyncio.current_task()
    watcher: asyncio.Task[None] | None = None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        if worker is not None:
            worker.cancel()

    def start() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    timer = loop.call_later(WATCH_AFTER_S, start)
    try:
        yield
    except asyncio.CancelledError:
        if not gone or worker is None or worker.uncancel() > 0:
            raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


def body_too_large(max_bytes: int, found: str) -> RefusedError:
    return RefusedError(413, f"The body has {found} bytes, expected at most {max_bytes} (max_body_bytes).")


async def send_reply(reply: ServerReply, send: Send, *, session_cookie: str = "") -> None:
    """Send a reply whose value is complete."""
    content_type = content_type_of(reply.value)
    body = reply.content()
    headers = reply_headers(reply, content_type, session_cookie)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def reply_headers(reply: ServerReply, content_type: str, session_cookie: str) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", content_type.encode())]
    headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    for name, value in reply.cookies.items():
        attributes = SESSION_COOKIE_ATTRIBUTES if name == session_cookie else "path=/"
        headers.append((b"set-cookie", f"{name}={value}; {attributes}".encode()))
    return headers


async def call_asgi(app: App, scope: Scope, body: bytes, *, server: str = "") -> ServerReply:
    """Run an ASGI app on a request and collect its reply. The client never disconnects."""
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

    await app(scope, receive, send)
    return ServerReply(server, started["status"], b"".join(parts), headers=list(started["headers"]))
