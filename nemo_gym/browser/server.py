"""The environment of a web site: tools that act in its page, and a pool of browsers, one context for each rollout."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseNextMessageRequest,
    BaseResourcesServerConfig,
    NextMessage,
    SessionState,
    SimpleResourcesServer,
    tool,
)
from nemo_gym.browser.page import Action, Observation, Seen, SessionPage
from nemo_gym.browser.process import BrowserProcess, PageOptions
from nemo_gym.browser.site import Site
from nemo_gym.common.exceptions import raise_first_error
from nemo_gym.errors import RolloutError, ToolError
from nemo_gym.llm_api.responses import NeMoGymResponseInputText

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

OPENING_AT_ONCE = 4
"""Opening a page takes a core for a moment. Many at once would make each other late."""
MAX_TEXT_CHARS = 10_000
"""Of what one action types."""
MAX_CLICKS = 3
MAX_SCROLL = 100_000
DRAG_STEPS = 10
"""Moves of the mouse in a drag: pages watch it on its way."""


class BrowserConfig(BaseResourcesServerConfig, extra="forbid"):
    """How pages look to the model, and limits."""

    observation: list[Observation] = Field(default=["accessibility"], min_length=1)
    """What each action returns: the `accessibility` tree with element references, the `dom` with positions, a
    `screenshot`, or several of them."""
    viewport_width: int = Field(default=1024, ge=100, le=4096)
    viewport_height: int = Field(default=768, ge=100, le=4096)
    max_actions: int = Field(default=50, ge=1)
    """How many actions a rollout may make."""
    action_timeout_s: float = Field(default=30.0, gt=0)
    """Time limit of one action. A page that does not respond within it is closed, and the rollout scored as it is."""
    max_pages: int = Field(default=32, ge=1)
    """How many rollouts have a page at once, in each worker. A page takes about 60 MB."""
    pages_per_browser: int = Field(default=16, ge=1, le=128)
    """How many of these pages share a Chromium. If it dies, they have no result."""
    reuse_browser: int = Field(default=200, ge=1)
    """After how many pages a Chromium is replaced."""
    page_memory_mb: int = Field(default=1024, ge=256)
    """Memory limit of each process of Chromium, so of each page."""
    executable_path: str | None = None
    """The Chromium or Chrome to use, if not the one on the PATH."""

    def page_options(self) -> PageOptions:
        return PageOptions(
            self.viewport_width,
            self.viewport_height,
            self.action_timeout_s,
            self.page_memory_mb,
            self.executable_path,
        )


class BrowserPool:
    """Starts browsers when pages are asked for, and replaces them after some use. Enter it before use."""

    def __init__(self, config: BrowserConfig) -> None:
        self._config = config
        self._room = asyncio.Semaphore(config.max_pages)
        self._choosing = asyncio.Lock()
        self._opening = asyncio.Semaphore(OPENING_AT_ONCE)
        self._browsers: list[BrowserProcess] = []
        self._tasks: asyncio.TaskGroup | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with raise_first_error():
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    yield
                finally:
                    await asyncio.gather(*(browser.close() for browser in self._browsers))
                    for task in self._closing:
                        task.cancel()  # its browser has ended and does not answer
        self._tasks = None

    async def open(self, site: Site) -> SessionPage:
        """Open the first page of a site. Waits while as many pages are open as there may be."""
        await self._room.acquire()
        try:
            async with self._choosing:
                browser = await self._browser()
                page = browser.place(site)
        except BaseException:
            self._room.release()
            raise
        try:
            async with self._opening:
                await page.open(browser.browser)
        except BaseException:
            self.close(page)
            raise
        return page

    async def _browser(self) -> BrowserProcess:
        """A browser that has room, started now if there is none."""
        await self._retire()
        found = next((each for each in self._browsers if each.has_room and not self._is_used_up(each)), None)
        if found is None:
            found = BrowserProcess(self._config.page_options(), self._config.pages_per_browser)
            await found.start()
            self._browsers.append(found)
        return found

    async def _retire(self) -> None:
        for browser in [each for each in self._browsers if not each.is_alive or self._is_used_up(each)]:
            if browser.is_empty or not browser.is_alive:
                self._browsers.remove(browser)
                await browser.close()

    def _is_used_up(self, browser: BrowserProcess) -> bool:
        return browser.pages_opened >= self._config.reuse_browser

    def close(self, page: SessionPage) -> None:
        """Close a page in the background."""
        if self._tasks is not None:
            with contextlib.suppress(RuntimeError):  # the pool is closing, and all browsers with it
                task = self._tasks.create_task(self._close(page))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def _close(self, page: SessionPage) -> None:
        try:
            await page.close()
        finally:
            self._room.release()
        async with self._choosing:
            await self._retire()


class BrowserSession(SessionState):
    """The browser of a rollout. Give it a `site` in `seed_session`; its page opens when the model first looks."""

    site: Any = None
    """A Site, or of your subclass of it."""
    page: Any = None
    pool: Any = None
    actions: int = 0
    """How many actions the model has made."""
    ended: str | None = None
    """Why the page takes no more actions, if it does not."""

    def close(self) -> None:
        if self.page is not None:
            self.pool.close(self.page)


class BrowserResourcesServer(SimpleResourcesServer):
    """Subclass, put a Site into the session in `seed_session`, and look at its state in `verify`.

    The model acts by element reference, by coordinates and by keys. It cannot run code in the page."""

    EXTRA: ClassVar[str | None] = "browser"
    given_history = "refuse"
    config: BrowserConfig

    _pool: BrowserPool = PrivateAttr()

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        self._pool = BrowserPool(self.config)
        return self._pool.running()

    def concurrency(self) -> int | None:
        return self.config.max_pages

    async def act(self, browser: BrowserSession, action: Action, *observation: Observation) -> Seen:
        """Make an action in the page, count it, and return what is to be seen then."""
        page = await self.page_of(browser)
        self._check_goes_on(browser)
        browser.actions += 1
        try:
            await page.act(action)
        finally:
            await self._look_for_end(browser, page)
        return await self.see(browser, *observation)

    async def see(self, browser: BrowserSession, *observation: Observation) -> Seen:
        """Return what is to be seen now, by default as the configuration says."""
        page = await self.page_of(browser)
        if browser.ended is not None:
            return browser.ended
        return await page.see(list(observation) or self.config.observation)

    async def page_of(self, browser: BrowserSession) -> SessionPage:
        """The page of a rollout, opened by the first call."""
        if browser.site is None:
            raise RolloutError("input", "The session has no site: call /seed_session first.")
        if browser.page is None:
            browser.pool = self._pool
            browser.page = await self._pool.open(browser.site)
        page: SessionPage = browser.page
        return page

    def _check_goes_on(self, browser: BrowserSession) -> None:
        if browser.ended is None and browser.actions >= self.config.max_actions:
            browser.ended = f"All {self.config.max_actions} actions are used up. The episode is over."
        if browser.ended is not None:
            raise ToolError(browser.ended)

    async def _look_for_end(self, browser: BrowserSession, page: SessionPage) -> None:
        if not page.is_lost:
            browser.ended = await page.run(browser.site.ended)

    async def next_message(self, body: BaseNextMessageRequest, browser: BrowserSession) -> NextMessage | None:
        """Open the conversation with the goal, if the page names one, and the first observation. It is over when the
        model says something in place of an action."""
        if body.turn:
            return None
        page = await self.page_of(browser)
        goal, seen = await page.run(browser.site.goal), await self.see(browser)
        opening = f"Goal: {goal}\n" if goal else ""
        if isinstance(seen, str):
            return NextMessage(content=opening + seen)
        return NextMessage(content=[NeMoGymResponseInputText(text=opening), *seen] if opening else seen)

    # Tools

    @tool
    async def look(self, browser: BrowserSession, kind: Observation | None = None) -> Seen:
        """Look at the page without acting: as `accessibility` tree with element references, as `dom` with positions,
        or as a `screenshot`."""
        return await self.see(browser, *([kind] if kind else []))

    @tool
    async def click(self, ref: str, browser: BrowserSession, clicks: int = 1) -> Seen:
        """Click an element. `ref` is its reference in the last observation, such as e5."""
        count = _clicks(clicks)
        return await self._on(browser, ref, lambda element: element.click(click_count=count))

    @tool
    async def fill(self, ref: str, text: str, browser: BrowserSession) -> Seen:
        """Replace the text of a field."""
        typed = _typed(text)
        return await self._on(browser, ref, lambda element: element.fill(typed))

    @tool
    async def select(self, ref: str, options: list[str], browser: BrowserSession) -> Seen:
        """Choose options of a list by their labels."""
        return await self._on(browser, ref, lambda element: element.select_option(label=options))

    @tool
    async def press(self, keys: str, browser: BrowserSession) -> Seen:
        """Press a key or a combination, such as Enter, ArrowDown, a or Control+a."""
        return await self.act(browser, lambda _: browser.page.press(keys))

    @tool
    async def type_text(self, text: str, browser: BrowserSession) -> Seen:
        """Type a text key by key into what has the focus."""
        typed = _typed(text)
        return await self.act(browser, lambda page: page.keyboard.type(typed))

    @tool
    async def drag(self, ref: str, to_ref: str, browser: BrowserSession) -> Seen:
        """Drag an element to another one."""

        async def drag(element: "Locator") -> None:
            await element.drag_to(await browser.page.element(to_ref), steps=DRAG_STEPS)

        return await self._on(browser, ref, drag)

    @tool
    async def scroll(self, browser: BrowserSession, down: int = 0, right: int = 0, ref: str | None = None) -> Seen:
        """Scroll by pixels, negative for up and left: over an element or, without `ref`, where the mouse is."""

        async def scroll(page: "Page") -> None:
            if ref is not None:
                await (await browser.page.element(ref)).hover()
            await page.mouse.wheel(_within(right, MAX_SCROLL), _within(down, MAX_SCROLL))

        return await self.act(browser, scroll)

    @tool
    async def click_at(self, x: float, y: float, browser: BrowserSession, clicks: int = 1) -> Seen:
        """Click at a position in pixels from the top left corner of the screenshot."""
        count, point = _clicks(clicks), self._point(x, y)
        return await self.act(browser, lambda page: page.mouse.click(*point, click_count=count))

    @tool
    async def move_to(self, x: float, y: float, browser: BrowserSession) -> Seen:
        """Move the mouse to a position, without a click."""
        point = self._point(x, y)
        return await self.act(browser, lambda page: page.mouse.move(*point))

    @tool
    async def drag_at(self, x: float, y: float, to_x: float, to_y: float, browser: BrowserSession) -> Seen:
        """Press the mouse at a position, and release it at another one."""

        start, end = self._point(x, y), self._point(to_x, to_y)

        async def drag(page: "Page") -> None:
            await page.mouse.move(*start)
            await page.mouse.down()
            await page.mouse.move(*end, steps=DRAG_STEPS)
            await page.mouse.up()

        return await self.act(browser, drag)

    async def _on(self, browser: BrowserSession, ref: str, action: Callable[["Locator"], Awaitable[object]]) -> Seen:
        """Make an action on the element with a reference."""

        async def act(_page: "Page") -> None:
            await action(await browser.page.element(ref))

        return await self.act(browser, act)

    def _point(self, x: float, y: float) -> tuple[float, float]:
        width, height = self.config.viewport_width, self.config.viewport_height
        if not (0 <= x <= width and 0 <= y <= height):
            raise ToolError(f"({x:g}, {y:g}) is outside of the page, which is {width} x {height}.")
        return x, y


def _typed(text: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        raise ToolError(f"The text has {len(text)} characters; at most {MAX_TEXT_CHARS} can be typed at once.")
    return text


def _clicks(clicks: int) -> int:
    if not 1 <= clicks <= MAX_CLICKS:
        raise ToolError(f"clicks is {clicks}; expected 1 to {MAX_CLICKS}.")
    return clicks


def _within(pixels: int, limit: int) -> int:
    return max(-limit, min(limit, pixels))
