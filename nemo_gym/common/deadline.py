"""The time left for what is being done. Whoever starts a rollout sets it, every hop inherits what remains of it."""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, NamedTuple

from nemo_gym.errors import RolloutError

TIME_LEFT_HEADER = "nemo-gym-time-left-s"


class Deadline(NamedTuple):
    """An instant by the monotonic clock after which nobody waits for the result."""

    at: float
    task: "asyncio.Task[Any] | None" = None
    """The task that is interrupted then, if one is."""

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        return max(0.0, self.at - time.monotonic())


_current: ContextVar[Deadline | None] = ContextVar("nemo_gym_deadline", default=None)


def current_deadline() -> Deadline | None:
    """The deadline that the running task works under, if any."""
    return _current.get()


def time_left(step_s: float) -> float:
    """How long a step that usually may take `step_s` may take now."""
    deadline = _current.get()
    return step_s if deadline is None else min(step_s, deadline.left_s())


@contextmanager
def limit_deadline(seconds: float | None) -> Iterator[None]:
    """Give the code inside at most `seconds`, and never more than it had. Tells, but does not interrupt."""
    mark = _current.set(_sooner(_current.get(), seconds))
    try:
        yield
    finally:
        _current.reset(mark)


@contextmanager
def fresh_deadline(seconds: float) -> Iterator[None]:
    """Give the code inside `seconds`, however little is left: for tidying up when the time is over."""
    mark = _current.set(Deadline.after(seconds))
    try:
        yield
    finally:
        _current.reset(mark)


class timeout:  # noqa: N801 - used as a word: `async with within(5, what="lunch")`
    """As `limit_deadline`, and interrupt the code inside when its time is up.

    Every hop goes through here, so it does what `asyncio.timeout` does with less around it, and sets no timer where
    the running task is interrupted no later anyway.
    """

    __slots__ = ("_allowed_s", "_cancelling", "_expired", "_mark", "_seconds", "_task", "_timer", "_what")

    def __init__(self, seconds: float | None, *, what: str) -> None:
        self._seconds, self._what = seconds, what
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        outer, task, now = _current.get(), asyncio.current_task(), time.monotonic()
        at = math.inf if self._seconds is None else now + self._seconds
        if outer is not None and outer.at <= at:
            if outer.task is task:
                return
            at = outer.at
        if task is None or at == math.inf:
            return
        self._allowed_s, self._expired = max(0.0, at - now), False
        self._task, self._cancelling = task, task.cancelling()
        self._mark: Token[Deadline | None] = _current.set(Deadline(at, task))
        self._timer = task.get_loop().call_later(self._allowed_s, self._expire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        _current.reset(self._mark)
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            limit = f"{round(self._allowed_s, 2):g} s"
            raise RolloutError("timeout", f"{self._what} did not finish within {limit}.") from error

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()


def _sooner(outer: Deadline | None, seconds: float | None) -> Deadline | None:
    if seconds is None:
        return outer
    inner = Deadline.after(seconds)
    return inner if outer is None or inner.at < outer.at else outer
