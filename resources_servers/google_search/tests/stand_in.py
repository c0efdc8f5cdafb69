"""A server that stands in for the search API and for the pages of the web."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

PARAGRAPH = (
    "The lighthouse at the northern cape was built in 1871 and has been kept by the same family ever since. Its lamp "
    "can be seen from a distance of thirty kilometres, and on clear nights even from the islands. "
)
ARTICLE = "<html><body><nav>Menu</nav><article><h1>The cape</h1><p>{}</p></article></body></html>"


@dataclass(slots=True)
class StandIn:
    """What was asked of it, and where it is."""

    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    visited: list[str] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def search(self, request: web.Request) -> web.StreamResponse:
        query = request.query["q"]
        self.asked.append(dict(request.query))
        if query == "drop":
            assert request.transport is not None
            request.transport.abort()
        if query == "wait":
            self.waiting.set()
            await self.released.wait()
        if query.isdigit():
            return web.Response(status=int(query), text=f"bad key {request.query['key']}", headers={"Location": "/x"})
        texts = {
            "not json": "<html>",
            "deep": "[" * 100_000,
            "large": "x" * (11 * 2**20),
            "echo": json.dumps({"url": str(request.url), "key": request.query["key"], "raw": request.raw_path}),
        }
        if query == "not unicode":
            return web.Response(body=b"\xff")
        return web.Response(text=texts.get(query, '{"items": [{"title": "Café", "link": "http://x"}]}'))

    async def page(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.visited.append(name)
        if name in ("loop", "away", "moved", "nowhere"):
            targets = {"loop": "/loop", "away": "file:///etc/passwd", "moved": "article", "nowhere": ""}
            return web.Response(status=302, headers={"Location": targets[name]})
        if name == "wait":
            self.waiting.set()
            await self.released.wait()
        pages = {
            "article": ARTICLE.format(PARAGRAPH * 5),
            "long": ARTICLE.format("</p><p>".join(f"{PARAGRAPH} {number}" for number in range(400))),
            "blank": "  ",
            "bare": "<html><body></body></html>",
            "deep": "<div>" * 50_000,
            "large": "x" * (11 * 2**20),
        }
        if name == "binary":
            return web.Response(body=bytes(range(256)) * 100, content_type="application/pdf")
        return web.Response(text=pages[name], content_type="text/html") if name in pages else web.Response(status=404)


@asynccontextmanager
async def stand_in() -> AsyncIterator[StandIn]:
    """Serve it on a free port."""
    server = StandIn()
    app = web.Application()
    app.add_routes([web.get("/customsearch", server.search), web.get("/{name}", server.page)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}"
        yield server
    finally:
        server.released.set()
        await runner.cleanup()
