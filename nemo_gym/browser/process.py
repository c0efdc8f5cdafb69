"""One Chromium process with its playwright driver, and the pages that it holds: one context for each rollout."""

import asyncio
import contextlib
import functools
import logging
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_gym.browser.page import SessionPage
from nemo_gym.browser.site import Site, refuse
from nemo_gym.episodes import import_extra
from nemo_gym.errors import RolloutError
from nemo_gym.sandbox.bubblewrap import bubblewrap_path
from nemo_gym.sandbox.contract import MIB, SandboxUnavailableError
from nemo_gym.server.uvicorn_runner import LimitedProtocol, serving

if TYPE_CHECKING:
    from playwright.async_api import Browser, CDPSession

logger = logging.getLogger(__name__)

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
MAC_PATH = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
LAUNCH_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 10.0
ALIVE_TIMEOUT_S = 20.0
HEAP_MB = 256
"""Of the JavaScript heap of a page. Everything else counts against the memory of its process."""
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc",
    "/opt",
    "/nix",
    "/snap",
    "/var/cache/fontconfig",
)
"""The folders of this machine that Chromium can read."""
TEMP = "/tmp"  # noqa: S108 - of its own namespace
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": TEMP, "LANG": "C.UTF-8", "TZ": "UTC"}
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"),
    # Without namespaces, these alone keep the browser off the network.
    *("--proxy-server=http://127.0.0.1:1", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
    *("--force-webrtc-ip-handling-policy=disable_non_proxied_udp", "--dns-prefetch-disable"),
    f"--js-flags=--max-old-space-size={HEAP_MB}",
)


class PageOptions(NamedTuple):
    """How the pages of an environment look, and their limits."""

    width: int
    height: int
    action_timeout_s: float
    memory_mb: int
    executable_path: str | None


def find_chromium(executable_path: str | None = None) -> str:
    """Return the path of an installed Chromium or Chrome."""
    candidates = [executable_path] if executable_path else [*NAMES, MAC_PATH]
    found = next(filter(None, map(shutil.which, candidates)), None)
    if found is None:
        looked = executable_path or f"{', '.join(NAMES)} on the PATH"
        raise RolloutError(
            "environment",
            f"No browser was found: looked for {looked}. Install Chromium (Debian, Ubuntu: apt install chromium), "
            "or set `executable_path` of the environment to an installed Chromium or Chrome.",
            retryable=False,
        )
    return found


class ProxyProtocol(LimitedProtocol):
    """A connection of the browser to the proxy of a page. Tunnels, which HTTPS and WebSockets need, are refused."""

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"CONNECT "):
            self.transport.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()
        else:
            super().data_received(data)


class BrowserProcess:
    """Chromium and the driver that controls it. Ends with this process, however that ends."""

    def __init__(self, options: PageOptions, max_pages: int) -> None:
        self._options, self._max_pages = options, max_pages
        self._opened = contextlib.AsyncExitStack()
        self._sites: dict[int, Any] = {}
        """What answers at each port: the site of the page that has it as its proxy."""
        self._free: list[int] = []
        self.targets: dict[str, SessionPage] = {}
        """The open pages by the names that Chromium has for them."""
        self.pages_opened = 0
        self.is_broken = False

    async def start(self) -> None:
        chromium = find_chromium(self._options.executable_path)
        # Importing it takes a while.
        playwright = await asyncio.to_thread(import_extra, "playwright.async_api", extra="browser")
        try:
            async with asyncio.timeout(LAUNCH_TIMEOUT_S):
                driver = await self._opened.enter_async_context(playwright.async_playwright())
                ports = await self._launch(driver, chromium)
        except (TimeoutError, OSError, playwright.Error) as error:
            await self.close()
            reason = str(error).strip().partition("\n")[0] or f"it did not start within {LAUNCH_TIMEOUT_S:g} s"
            raise RolloutError("environment", f"{chromium} cannot be started: {reason}") from error
        self._sites = {port.getsockname()[1]: refuse for port in ports}
        self._free = list(self._sites)
        await self._opened.enter_async_context(serving(self._sites, ports, protocol=ProxyProtocol))
        self._cdp: CDPSession = await self.browser.new_browser_cdp_session()
        self._cdp.on("Target.targetCrashed", self._on_crash)
        await self._cdp.send("Target.setDiscoverTargets", {"discover": True})

    async def _launch(self, driver: Any, chromium: str) -> list[socket.socket]:
        """Start Chromium in its namespaces, and return the ports that it can reach."""
        folder, ports = Path(tempfile.mkdtemp(prefix="nemo-gym-browser-")), list[socket.socket]()
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(folder / "ports"))
                listener.listen(1)
                listener.settimeout(LAUNCH_TIMEOUT_S)
                receiving = asyncio.create_task(asyncio.to_thread(_receive, listener, self._max_pages))
                try:
                    self.browser: Browser = await driver.chromium.launch(
                        executable_path=_launcher(folder, chromium, self._max_pages, self._options.memory_mb),
                        args=ARGUMENTS,
                        env=ENVIRONMENT,
                        ignore_default_args=["--disable-popup-blocking"],
                        handle_sigint=False,
                        handle_sigterm=False,
                        handle_sighup=False,
                        timeout=LAUNCH_TIMEOUT_S * 1000,
                    )
                finally:
                    with contextlib.suppress(OSError):
                        listener.shutdown(socket.SHUT_RDWR)  # nobody else is to connect, and nothing waits for it
                    with contextlib.suppress(OSError):
                        for port in await receiving:
                            self._opened.callback(port.close)
                            ports.append(port)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return ports

    @property
    def has_room(self) -> bool:
        return bool(self._free) and self.is_alive

    @property
    def is_alive(self) -> bool:
        return not self.is_broken and self.browser.is_connected()

    @property
    def is_empty(self) -> bool:
        return len(self._free) == len(self._sites)

    def place(self, site: Site) -> SessionPage:
        """Reserve a place for the page of a site, which is then to be opened and closed."""
        port = self._free.pop()
        self._sites[port] = site
        self.pages_opened += 1
        return SessionPage(self, site, port, self._options)

    def release(self, port: int) -> None:
        """Take back the port of a page that is closed."""
        self._sites[port] = refuse
        self._free.append(port)

    async def is_responsive(self) -> bool:
        """True if the browser itself answers, whatever its pages do."""
        try:
            async with asyncio.timeout(ALIVE_TIMEOUT_S):
                await self._cdp.send("Browser.getVersion")
        except Exception:
            return False
        return self.is_alive

    def _on_crash(self, event: dict[str, str]) -> None:
        """The process of a page has ended: tell it how."""
        page = self.targets.get(event["targetId"])
        if page is not None and not page.crash_status.done():
            page.crash_status.set_result(event["status"])

    async def close(self) -> None:
        """End Chromium and its driver."""
        self.is_broken = True
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._opened.aclose()


def _launcher(folder: Path, chromium: str, ports: int, memory_mb: int) -> Path:
    """Write the program that playwright starts as Chromium."""
    script = Path(__file__).with_name("confined.py")
    python = os.path.realpath(sys.executable)
    command = [python, "-I", "-S", str(script), str(folder / "ports"), str(ports), str(memory_mb * MIB), chromium]
    if namespaces := _namespaces():
        needed = (str(folder), str(script), python, sys.base_prefix, os.path.dirname(os.path.realpath(chromium)))
        command = [*namespaces, *(word for path in needed for word in ("--ro-bind", path, path)), "--", *command]
    launcher = folder / "chromium"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    launcher.chmod(0o700)
    return launcher


@functools.cache
def _namespaces() -> list[str]:
    """The command that gives Chromium namespaces of its own: no network, of this machine's files only programs, and
    processes that all end with the first. Empty where bubblewrap does not work."""
    try:
        command = [
            *(bubblewrap_path(), "--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc"),
            *("--dev", "/dev", "--proc", "/proc", "--tmpfs", TEMP),
            *(word for path in SYSTEM for word in ("--ro-bind-try", path, path)),
        ]
        subprocess.run([*command, "--", "/bin/true"], check=True, capture_output=True, timeout=LAUNCH_TIMEOUT_S)
    except (SandboxUnavailableError, OSError, subprocess.SubprocessError):
        logger.warning(
            "bubblewrap does not work here, so Chromium runs without namespaces of its own: its proxy settings alone "
            "keep it off the network, and it can read the files of this user."
        )
        return []
    return command


def _receive(listener: socket.socket, count: int) -> list[socket.socket]:
    """Receive the ports that the new process has opened."""
    connection, _ = listener.accept()
    with connection:
        _, fds, _, _ = socket.recv_fds(connection, 1, count)
    ports = [socket.socket(fileno=fd) for fd in fds]
    for port in ports:
        port.setblocking(False)
    return ports
