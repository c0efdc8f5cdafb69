"""Notices a handler that holds up the event loop, and says which one and where. A thread looks on; handlers that do no
such thing pay nothing for it."""

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from nemo_gym.common.logging import RateLimitedLog

seldom = RateLimitedLog(logging.getLogger(__name__))

ASK_EVERY_S = 0.25
LOOK_AFTER_S = 0.1
BLOCKED_AFTER_S = 0.5
"""Longer than a search for garbage among thousands of rollouts, and far too long for them all to stand still."""


@dataclass(slots=True)
class Handler:
    """A function that answers on the loop, and how often and for how long it was found to hold it up."""

    name: str
    times: int = 0
    seconds: float = 0.0


Handlers = dict[CodeType, Handler]
"""Two servers of one class share their code, and so their entry."""


def register_handler(handlers: Handlers, name: str, function: Callable[..., Any]) -> Handler | None:
    """Enter a function, if it is one whose work can be told from others'."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    if code in handlers:
        handlers[code].name += f" or {name}"
    return handlers.setdefault(code, Handler(name))


@dataclass(slots=True)
class BlockingMonitor:
    """Asks the running loop again and again whether it still turns. When it does not answer, whoever is found at work
    twice in a row is the one: a loop that is merely busy is found with another one each time."""

    handlers: Handlers
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _loop_thread: int = field(init=False)
    _watcher: threading.Thread = field(init=False)
    _answered: threading.Event = field(init=False, default_factory=threading.Event)
    _ended: threading.Event = field(init=False, default_factory=threading.Event)

    def __enter__(self) -> None:
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._watcher = threading.Thread(target=self._watch, name="nemo-gym-loop-watch", daemon=True)
        self._watcher.start()

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._answered.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(ASK_EVERY_S):
            self._answered.clear()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:  # the loop is closed
                return
            if not self._answered.wait(LOOK_AFTER_S):
                self._look(asked)

    def _look(self, asked: float) -> None:
        before = list(self._at_work())
        if self._answered.wait(BLOCKED_AFTER_S - LOOK_AFTER_S):
            return
        now = list(self._at_work())
        lasting = (frame for frame in now if any(frame is earlier for earlier in before))
        culprit = next((self.handlers[frame.f_code] for frame in lasting if frame.f_code in self.handlers), None)
        if culprit is not None:
            self._tell(culprit, now[0], asked)

    def _at_work(self) -> Iterator[FrameType]:
        """What the loop's thread is doing, innermost first."""
        frame = sys._current_frames().get(self._loop_thread)
        while frame is not None:
            yield frame
            frame = frame.f_back

    def _tell(self, culprit: Handler, innermost: FrameType, asked: float) -> None:
        place = f"{innermost.f_code.co_filename}:{innermost.f_lineno} ({innermost.f_code.co_name})"
        culprit.times += 1
        seldom.warning(
            culprit.name,
            "%s holds up every other rollout: the event loop has stood still for %.1f s, at %s. Hand such work to "
            "nemo_gym.compute.pool, or make the handler a plain `def`, which runs in a thread.",
            culprit.name,
            time.monotonic() - asked,
            place,
        )
        self._answered.wait()
        culprit.seconds += time.monotonic() - asked
