"""The page of one rollout: actions with time limits, what is to be seen after them, and whose fault a lost page is."""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from nemo_gym.browser.site import Site
from nemo_gym.common.words import shorten
from nemo_gym.episodes import import_extra
from nemo_gym.errors import RolloutError, ToolError
from nemo_gym.llm_api.responses import NeMoGymResponseContent, NeMoGymResponseInputText, image_part

if TYPE_CHECKING:
    from playwright.async_api import Browser, Dialog, Locator, Page

    from nemo_gym.browser.process import BrowserProcess, PageOptions

Observation = Literal["accessibility", "dom", "screenshot"]
Action = Callable[["Page"], Awaitable[object]]
Seen = str | list[NeMoGymResponseContent]

ACTIONABLE_S = 3.0
"""How long an action waits for its element to become visible, still, enabled and uncovered."""
SNAPSHOT_S = 5.0
"""A frame that cannot be read, such as one whose address is refused, is left out after this time."""
PROBE_S = 3.0
OPEN_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 60.0
CRASH_STATUS_S = 2.0
KILLED = "killed"
MAX_CHARS = 30_000
"""Of one observation."""
MAX_NOTICES = 5
MAX_ERROR_CHARS = 300
REF = re.compile(r"(?:f[0-9]{1,6})?e[0-9]{1,9}")
COPY, CUT, PASTE = "copy", "cut", "paste"
SHORTCUTS = {
    **{f"{modifier}+{key}": COPY for modifier in ("control", "meta", "controlormeta") for key in ("c", "keyc")},
    **{f"{modifier}+{key}": CUT for modifier in ("control", "meta", "controlormeta") for key in ("x", "keyx")},
    **{f"{modifier}+{key}": PASTE for modifier in ("control", "meta", "controlormeta") for key in ("v", "keyv")},
    "control+insert": COPY,
    "shift+delete": CUT,
    "shift+insert": PASTE,
}
SELECTED = """() => {
  const element = document.activeElement;
  const isField = element && typeof element.selectionStart === 'number';
  return isField ? element.value.slice(element.selectionStart, element.selectionEnd) : String(getSelection());
}"""
SETTLE = """() => new Promise(done => {
  requestAnimationFrame(() => setTimeout(done, 0));
  setTimeout(done, 100);
})"""
"""Lets the page draw what the action has changed; a page that is not in front draws nothing."""
DOM = """limit => {
  const skipped = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD']);
  const quoted = text => JSON.stringify(String(text).replace(/\\s+/g, ' ').trim().slice(0, 500));
  const lines = [];
  let size = 0;
  const write = (depth, line) => { size += line.length; lines.push('  '.repeat(Math.min(depth, 30)) + line); };
  const visit = (node, depth) => {
    if (size > limit) return;
    if (node.nodeType === Node.TEXT_NODE) {
      if (node.data.trim()) write(depth, quoted(node.data));
      return;
    }
    if (node.nodeType !== Node.ELEMENT_NODE || skipped.has(node.tagName)) return;
    const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    const isHidden = style.display === 'none' || style.visibility === 'hidden';
    if (isHidden && style.display === 'none') return;
    const words = [node.tagName.toLowerCase()];
    for (const {name, value} of node.attributes)
      if (name !== 'style' && name.length < 60) words.push(`${name}=${quoted(value)}`);
    if (typeof node.value === 'string' && node.value !== (node.getAttribute('value') || ''))
      words.push(`current-value=${quoted(node.value)}`);
    if (node.checked) words.push('is-checked');
    if (node === document.activeElement && node !== document.body) words.push('is-focused');
    if (box.width && box.height && !isHidden)
      words.push(`at=${Math.round(box.x + box.width / 2)},${Math.round(box.y + box.height / 2)}`,
                 `size=${Math.round(box.width)}x${Math.round(box.height)}`);
    write(depth, `<${words.join(' ')}>`);
    for (const child of node.childNodes) visit(child, depth + 1);
  };
  if (document.body) visit(document.body, 0);
  return lines.join('\\n');
}"""


class PageLostError(ToolError):
    """The page is gone because of what it did after an action of the model, who sees this text. It is scored."""


class SessionPage:
    """A page in a context of its own. One action at a time."""

    def __init__(self, process: "BrowserProcess", site: Site, port: int, options: "PageOptions") -> None:
        self._process, self.site, self._port, self._options = process, site, port, options
        self._playwright = import_extra("playwright.async_api", extra="browser")
        self._turn = asyncio.Lock()
        self._notices: list[str] = []
        self._context: Any = None
        self._page: Any = None
        self._target = ""
        self._has_crashed = False
        self.crash_status: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set by the browser: `killed` if a signal from outside ended the process of the page, else what it did."""
        self._lost: str | None = None
        """Why the page is gone, if it is."""
        self._is_closed = False
        self._clipboard = ""
        """The clipboard of this rollout. Chromium's own is shared by all its pages."""
        self._has_acted = False

    async def open(self, browser: "Browser") -> None:
        """Load the first page of the site."""
        size: Any = {"width": self._options.width, "height": self._options.height}
        with self._failures():
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                self._context = await browser.new_context(
                    proxy={"server": f"http://127.0.0.1:{self._port}"},
                    viewport=size,
                    accept_downloads=False,
                    service_workers="block",
                    locale="en-US",
                    timezone_id="UTC",
                )
                self._context.set_default_timeout(ACTIONABLE_S * 1000)
                self._context.set_default_navigation_timeout(OPEN_TIMEOUT_S * 1000)
                self._page = page = await self._context.new_page()
                cdp = await self._context.new_cdp_session(page)
                self._target = (await cdp.send("Target.getTargetInfo"))["targetInfo"]["targetId"]
                await cdp.detach()
                self._process.targets[self._target] = self
                self._context.on("page", self._on_popup)
                page.on("dialog", self._on_dialog)
                page.on("download", lambda download: self._notice(f"The download of {download.url} was refused."))
                page.on("crash", self._on_crash)
                await page.goto(self.site.url)
                await self.site.opened(page)
        self._check_site()

    async def act(self, action: Action) -> None:
        """Make an action of the model, and let the page react."""
        async with self._turn:
            self._check_open()
            self._has_acted = True
            async with self._limited():
                try:
                    await action(self._page)
                except self._playwright.TimeoutError:
                    await self._probe()
                    raise
                await self._settle()
            self._check_site()

    async def see(self, kinds: list[Observation]) -> Seen:
        """Return what is to be seen now: a text or, if a screenshot is among the kinds, a text and an image."""
        async with self._turn:
            self._check_open()
            async with self._limited():
                texts = [
                    f"URL: {shorten(self._page.url, 500)}",
                    f"Title: {await self._title()}",
                    *self._take_notices(),
                ]
                if "accessibility" in kinds:
                    boxes = "screenshot" in kinds
                    texts.append(
                        _cut(await self._page.aria_snapshot(mode="ai", boxes=boxes, timeout=SNAPSHOT_S * 1000))
                    )
                if "dom" in kinds:
                    texts.append(_cut(str(await self._page.evaluate(DOM, MAX_CHARS))))
                text = "\n".join(texts)
                if "screenshot" not in kinds:
                    return text
                image = image_part(await self._page.screenshot(caret="initial", timeout=0))
                return [NeMoGymResponseInputText(text=text), image]

    async def run(self, look: Callable[["Page"], Awaitable[Any]]) -> Any:
        """Read something from the page for the environment, within the time limit of an action."""
        async with self._turn:
            self._check_open()
            async with self._limited():
                return await look(self._page)

    @property
    def is_lost(self) -> bool:
        """True if the page is gone."""
        return self._lost is not None or self._is_closed

    async def element(self, ref: str) -> "Locator":
        """The element with a reference from the last accessibility tree."""
        if not REF.fullmatch(ref):
            raise ToolError(
                f"{shorten(ref, 40)!r} is not a reference; expected one from the last observation, such as e5."
            )
        found: Locator = self._page.locator(f"aria-ref={ref}")
        if not await found.count():
            raise ToolError(f"There is no element {ref} now. Take a reference from the last observation.")
        return found

    async def press(self, keys: str) -> None:
        """Press a key or a combination. Copying and pasting use the clipboard of this rollout."""
        shortcut = SHORTCUTS.get(keys.replace(" ", "").lower())
        keyboard = self._page.keyboard
        if shortcut is None:
            await keyboard.press(keys)
        elif shortcut == PASTE:
            await keyboard.insert_text(self._clipboard)
        else:
            self._clipboard = str(await self._page.evaluate(SELECTED))[:MAX_CHARS]
            if shortcut == CUT and self._clipboard:
                await keyboard.press("Delete")

    async def close(self) -> None:
        """End the page and free its port."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._context is not None and self._process.is_alive:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._context.close()
        except (TimeoutError, self._playwright.Error):
            self._process.is_broken = True
        finally:
            self._process.targets.pop(self._target, None)
            self._process.release(self._port)

    # What can go wrong

    @contextlib.asynccontextmanager
    async def _limited(self) -> Any:
        """Limit an action, and say what its failure means."""
        with self._failures():
            try:
                async with asyncio.timeout(self._options.action_timeout_s):
                    yield
            except TimeoutError:
                await self._lose_stuck_page()
            except self._playwright.Error as error:
                if self._has_crashed or self._page.is_closed() or not self._process.is_alive:
                    await self._lose_crashed_page()
                raise ToolError(_first_line(error)) from error

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Failures that are not the model's."""
        try:
            yield
        except TimeoutError as error:
            raise RolloutError("environment", "The browser did not open the page in time.") from error
        except self._playwright.Error as error:
            raise RolloutError("environment", f"The browser failed: {_first_line(error)}") from error

    async def _probe(self) -> None:
        """Raise TimeoutError if the page does not respond at all."""
        async with asyncio.timeout(PROBE_S):
            await self._page.evaluate("0")

    async def _settle(self) -> None:
        for _ in range(2):
            try:
                await self._page.wait_for_load_state("load")
                await self._page.evaluate(SETTLE)
                return
            except self._playwright.TimeoutError:
                return
            except self._playwright.Error:
                if self._has_crashed or self._page.is_closed():
                    raise
        # the page went elsewhere while it was waited for, twice

    async def _lose_stuck_page(self) -> None:
        if not await self._process.is_responsive():
            self._process.is_broken = True
            raise RolloutError("environment", "The browser does not respond.")
        await self._lose(f"did not respond within {self._options.action_timeout_s:g} s", is_own_fault=True)

    async def _lose_crashed_page(self) -> None:
        if not self._process.is_alive:
            raise RolloutError("environment", "The browser ended.")
        if not self._has_crashed:
            await self._lose("closed itself", is_own_fault=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CRASH_STATUS_S):
                await asyncio.shield(self.crash_status)
        is_known = self.crash_status.done()
        await self._lose("crashed", is_own_fault=is_known and self.crash_status.result() != KILLED)

    async def _lose(self, reason: str, *, is_own_fault: bool) -> None:
        """Give the page up. What a page does after an action is the model's doing, and scored; what is done to it, or
        what it does by itself, is no result."""
        self._lost = f"The page {reason}. The episode is over."
        await self.close()
        if not (is_own_fault and self._has_acted):
            raise RolloutError("environment", f"The page {reason}.")
        raise PageLostError(self._lost)

    def _check_open(self) -> None:
        if self._lost is not None:
            raise PageLostError(self._lost)
        if self._is_closed or not self._process.is_alive:
            raise RolloutError("environment", "The browser ended.")

    def _check_site(self) -> None:
        if self.site.failure is not None:
            raise RolloutError("environment", f"The site raised {self.site.failure}")

    # What pages do by themselves

    def _on_crash(self, _page: "Page") -> None:
        self._has_crashed = True

    def _notice(self, text: str) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices.append(shorten(text, MAX_ERROR_CHARS))

    def _take_notices(self) -> list[str]:
        taken, self._notices = self._notices, []
        return taken

    async def _title(self) -> str:
        return json.dumps(shorten(await self._page.title(), 200), ensure_ascii=False)

    async def _on_dialog(self, dialog: "Dialog") -> None:
        """Answer at once: a dialog blocks its page. A prompt is left without an answer."""
        is_accepted = dialog.type != "prompt"
        self._notice(
            f"The page showed: {dialog.message!r} ({dialog.type}, {'accepted' if is_accepted else 'dismissed'})."
        )
        with contextlib.suppress(self._playwright.Error):
            await (dialog.accept() if is_accepted else dialog.dismiss())

    async def _on_popup(self, popup: "Page") -> None:
        """A rollout has one page."""
        with contextlib.suppress(self._playwright.Error):
            self._notice(f"The page opened a window at {popup.url}, which was closed.")
            await popup.close()
            await self._page.bring_to_front()  # what is not in front draws nothing


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n[cut: the page is longer]"


def _first_line(error: Exception) -> str:
    """What playwright says, without its log of attempts but for what is in the way."""
    lines = str(error).splitlines() or [type(error).__name__]
    covers = next((line.strip(" -") for line in lines if "intercepts pointer events" in line), None)
    return shorten(f"{lines[0]} {covers}" if covers else lines[0], MAX_ERROR_CHARS)
