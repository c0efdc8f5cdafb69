"""A model endpoint on a real port that answers what a test tells it to, and remembers what it was asked."""

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(slots=True)
class StubEndpoint:
    """What it answers is `reply(request)`: a body for status 200, or a status, a body and perhaps headers."""

    reply: Callable[[Request], Any]
    url: str = ""
    requests: list[Request] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        raw = await request.read()
        asked = Request(request.path, dict(request.query), dict(request.headers), orjson.loads(raw) if raw else None)
        self.requests.append(asked)
        answer = self.reply(asked)
        if inspect.isawaitable(answer):
            answer = await answer
        status, body, headers = (*answer, {})[:3] if isinstance(answer, tuple) else (200, answer, {})
        text = body if isinstance(body, str) else orjson.dumps(body).decode()
        return web.Response(status=status, text=text, headers=headers, content_type="application/json")


@asynccontextmanager
async def stub_endpoint(reply: Callable[[Request], Any], *, port: int = 0) -> AsyncIterator[StubEndpoint]:
    """Serve an endpoint; `url` is its base URL, with /v1."""
    stub = StubEndpoint(reply)
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", stub.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        host, port = runner.addresses[0][:2]
        stub.url = f"http://{host}:{port}/v1"
        yield stub
    finally:
        await runner.cleanup()


def completion(message: dict[str, Any] | str = "Hi.", *, finish_reason: str | None = "stop", **more: Any) -> Any:
    """A chat completion with this message."""
    said = {"role": "assistant", "content": message} if isinstance(message, str) else message
    choice = {"index": 0, "finish_reason": finish_reason, "message": said}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    whole = {"id": "chatcmpl-1", "created": 1, "model": "m", "object": "chat.completion", "usage": usage}
    return {**whole, "choices": [choice], **more}
