"""Pages for tests of browser environments. Without Chromium these tests are skipped."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from nemo_gym import ServerReply
from nemo_gym.base_resources_server import BaseSeedSessionRequest, BaseVerifyRequest, Score
from nemo_gym.browser import BrowserResourcesServer, BrowserSession, Site
from nemo_gym.browser.process import find_chromium
from nemo_gym.errors import RolloutError
from nemo_gym.testing import BrowserLikeClient, client_for, example_row, says


def _is_installed() -> bool:
    try:
        find_chromium()
    except RolloutError:
        return False
    return True


needs_chromium = pytest.mark.skipif(not _is_installed(), reason="Chromium is not installed: apt install chromium")


class PageSeedRequest(BaseSeedSessionRequest):
    pages: dict[str, str]
    """HTML by path; `-> URL` redirects, `!` is a defect of the site."""


class Pages(Site):
    def __init__(self, pages: dict[str, str]) -> None:
        super().__init__("http://site.test/", Starlette(routes=[Route("/{path:path}", self.answer)]))
        self.pages, self.requested = pages, list[str]()

    async def answer(self, request: Request) -> Response:
        self.requested.append(request.url.path)
        page = self.pages.get(request.url.path, "nothing")
        if page == "!":
            raise ValueError("a defect")
        return RedirectResponse(page[3:]) if page.startswith("-> ") else HTMLResponse(page)


class PageResourcesServer(BrowserResourcesServer):
    """Scores 1 for each page called `/win` that was requested."""

    async def seed_session(self, body: PageSeedRequest, browser: BrowserSession) -> None:
        browser.site = Pages(body.pages)

    async def verify(self, body: BaseVerifyRequest, browser: BrowserSession) -> Score:
        return Score(float(browser.site.requested.count("/win")), requested=browser.site.requested)


class Player:
    """A session of an environment, as a model sees it."""

    def __init__(self, client: BrowserLikeClient, row: dict[str, Any]) -> None:
        self.client, self.row = client.another(), row
        self.seen, self.reply = "", ServerReply("none", 0, b"")

    async def call(self, tool: str, **arguments: Any) -> ServerReply:
        return await self.client.post(f"/{tool}", json=arguments)

    async def do(self, tool: str, **arguments: Any) -> str:
        """Call a tool, and return what it says; its error, too."""
        self.reply = await self.call(tool, **arguments)
        self.seen = self.reply.text
        return self.seen

    async def until(self, text: str) -> str:
        """Look until a text is there."""
        for _ in range(100):
            if text in await self.do("look"):
                return self.seen
            assert self.reply.status == 200, self.seen
            await asyncio.sleep(0.1)
        raise AssertionError(f"{text!r} did not appear in:\n{self.seen}")

    @property
    def cause(self) -> str:
        """The cause of the last failure."""
        assert self.reply.status >= 400, self.reply.text
        return str(orjson.loads(self.reply.content())["error"]["cause"])

    def refs(self, text: str) -> list[str]:
        """The references of the elements whose line in the last observation has this text."""
        lines = [line for line in self.seen.splitlines() if text in line and "[ref=" in line]
        return [line.partition("[ref=")[2].partition("]")[0] for line in lines]

    def ref(self, text: str) -> str:
        """The reference of the first of them."""
        found = self.refs(text)
        assert found, f"{text!r} is not in:\n{self.seen}"
        return found[0]

    def text(self, name: str) -> str:
        """The text of the first element whose line has this name."""
        line = next(line for line in self.seen.splitlines() if name in line)
        return line.partition("]: ")[2]

    async def positions(self, tag: str) -> dict[str, tuple[int, int]]:
        """The positions of the elements of a kind in the DOM, by their texts."""
        found = re.findall(
            rf'<{tag} .*?at=(-?\d+),(-?\d+) .*?>\n *"(.*)"$', await self.do("look", kind="dom"), re.MULTILINE
        )
        return {text: (int(x), int(y)) for x, y, text in found}

    async def click(self, name: str) -> str:
        return await self.do("click", ref=self.ref(name))

    async def score(self) -> dict[str, Any]:
        """Have the rollout scored, which ends it."""
        reply = await self.client.post("/verify", json={**self.row, "response": says("Done.")})
        assert reply.status == 200, reply.text
        await self.end()
        return dict(orjson.loads(reply.content()))

    async def end(self) -> None:
        await self.client.request("DELETE", "/session")


@asynccontextmanager
async def page_server(**config: Any) -> AsyncIterator[BrowserLikeClient]:
    async with client_for(PageResourcesServer, **config) as client:
        yield client


async def player(client: BrowserLikeClient, html: str = "", **pages: str) -> Player:
    """Open a page of this HTML; more pages by their names."""
    row = {**example_row("Act."), "pages": {"/": html, **{f"/{name}": page for name, page in pages.items()}}}
    found = Player(client, row)
    assert (await found.client.post("/seed_session", json=row)).status == 200
    await found.do("look")
    return found


def browser_processes() -> list[psutil.Process]:
    """The processes of Chromium below this one."""
    return [each for each in psutil.Process().children(recursive=True) if "chrom" in _name(each)]


def main_processes() -> list[psutil.Process]:
    """The first process of each Chromium."""
    return [
        each
        for each in browser_processes()
        if "--remote-debugging-pipe" in _command(each) and "--type=" not in _command(each)
    ]


def renderers() -> list[psutil.Process]:
    return [each for each in browser_processes() if "--type=renderer" in _command(each)]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


async def gone(processes: list[psutil.Process]) -> bool:
    """True if they all end soon."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=20)
    return not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
