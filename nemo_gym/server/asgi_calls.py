"""Call an ASGI app in this process, without a socket."""

import asyncio
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nemo_gym.server.asgi import App, Scope


class AsgiReply(NamedTuple):
    """What an ASGI app has sent."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


async def call_asgi(app: "App", scope: "Scope", body: bytes) -> AsgiReply:
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
    return AsgiReply(started["status"], list(started["headers"]), b"".join(parts))
