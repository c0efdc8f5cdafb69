"""Finds a handler that blocks the event loop, and logs its name and the line it is at. A thread watches the loop;
handlers that do not block it pay nothing."""

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from nemo_gym.common.logging import RateLimitedLog

rate_limited = RateLimitedLog(logging.getLogger(__name__))

CHECK_EVERY_S = 0.25
SUSPECT_AFTER_S = 0.1
BLOCKED_AFTER_S = 0.5
"""Longer than a garbage collection among thousands of rollouts, and far too long for all of them to wait."""


@dataclass(slots=True)
class Handler:
    """A function that runs on the event loop, how often it blocked it, and for how long in total."""

    name: str
    times: int = 0
    seconds: float = 0.0


Handlers = dict[CodeType, Handler]
"""Two servers of one class share their code, and so their entry."""


def register_handler(handlers: Handlers, name: str, function: Callable[..., Any]) -> Handler | None:
    """Add a function, if its frames can be recognized."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    if code in handlers:
        handlers[code].name += f" or {name}"
    return handlers.setdefault(code, Handler(name))


class BlockingMonitor:
    """Schedules a callback on the running loop again and again. If it does not run in time, the handler whose frame is
    on the loop's stack at two moments blocks the loop; a loop that is only busy has another frame each time."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers
        self._responded, self._stopped = threading.Event(), threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="nemo-gym-blocking-monitor", daemon=True)

    def __enter__(self) -> None:
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._watcher.start()

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._responded.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._stopped.wait(CHECK_EVERY_S):
            self._responded.clear()
            if self._stopped.is_set():  # `__exit__` may have set both just before
                return
            since = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._responded.set)
            except RuntimeError:  # the loop is closed
                return
            if not self._responded.wait(SUSPECT_AFTER_S):
                self._find_blocking_handler(since)

    def _find_blocking_handler(self, since: float) -> None:
        before = list(self._loop_frames())
        while not self._responded.wait(BLOCKED_AFTER_S - SUSPECT_AFTER_S):
            now = list(self._loop_frames())
            innermost = next((frame for frame in now if frame.f_code in self.handlers), None)
            if innermost is not None and any(innermost is earlier for earlier in before):
                self._report(self.handlers[innermost.f_code], now[0], since)
            before = now  # a handler that was called since then may be the one that blocks

    def _loop_frames(self) -> Iterator[FrameType]:
        """The stack of the loop's thread, innermost frame first."""
        frame = sys._current_frames().get(self._loop_thread)
        while frame is not None:
            yield frame
            frame = frame.f_back

    def _report(self, handler: Handler, innermost: FrameType, since: float) -> None:
        place = f"{innermost.f_code.co_filename}:{innermost.f_lineno} ({innermost.f_code.co_name})"
        handler.times += 1
        rate_limited.warning(
            handler.name,
            "%s blocks the event loop, and with it every other rollout, for %.1f s now, at %s. Run such work with "
            "nemo_gym.compute.pool, or make the handler a plain `def`, which runs in a thread.",
            handler.name,
            time.monotonic() - since,
            place,
        )
        self._responded.wait()
        handler.seconds += time.monotonic() - since
