"""Deadlines. Whoever starts a rollout sets one, and every step inside it inherits the time that is left."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from nemo_gym.errors import RolloutError

TIME_LEFT_HEADER = "nemo-gym-time-left-s"
TIMER_RESOLUTION_S = 0.002
"""The event loop rounds timers to milliseconds, so one may run a little early."""


class Deadline:
    """An instant by the monotonic clock after which nobody waits for the result."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return Deadline(time.monotonic() + seconds)

    def left_s(self) -> float:
        return max(0.0, self.at - time.monotonic())


_current: ContextVar[Deadline | None] = ContextVar("nemo_gym_deadline", default=None)


def current_deadline() -> Deadline | None:
    """The deadline that the running task works under, if any."""
    return _current.get()


def time_left(step_s: float) -> float:
    """How long a step with a limit of `step_s` may take now."""
    deadline = _current.get()
    return step_s if deadline is None else min(step_s, deadline.left_s())


@contextmanager
def fresh_deadline(seconds: float) -> Iterator[None]:
    """Set a deadline for the code inside, whatever is left of another one, without interrupting it: for cleanup after
    the time has run out."""
    token = _current.set(Deadline.after(seconds))
    try:
        yield
    finally:
        _current.reset(token)


class _TaskTimer:
    """Cancels one task at the earliest of its nested timeouts.

    The timer of the event loop is only set for an earlier time than it has, and left alone otherwise: when it runs too
    early, it is set again. So the steps of a rollout, each with a timeout, share one timer.
    """

    __slots__ = ("_armed_at", "_handle", "_timeouts", "task")

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self.task = task
        self._timeouts: list[timeout] = []
        self._armed_at = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def add(self, entered: "timeout", *, now: float) -> None:
        self._timeouts.append(entered)
        if entered.at < self._armed_at:
            self._arm(entered.at, now=now)

    def remove(self, left: "timeout") -> None:
        self._timeouts.remove(left)
        if not self._timeouts and self._handle is not None:
            self._handle.cancel()
            self._handle, self._armed_at = None, math.inf

    def _arm(self, at: float, *, now: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_at = at
        self._handle = self.task.get_loop().call_later(max(0.0, at - now), self._run)

    def _run(self) -> None:
        now = time.monotonic()
        self._armed_at, self._handle = math.inf, None
        for entered in reversed(self._timeouts):  # the innermost ends first
            if entered.at > now + TIMER_RESOLUTION_S:
                self._arm(entered.at, now=now)
                return
            if not entered.is_expired:
                entered.is_expired = True
                self.task.cancel()


class timeout(Deadline):  # noqa: N801 - a context manager, named as asyncio.timeout
    """Limit the code inside to `seconds`, or to what is left of an earlier deadline, and interrupt it then.

    Does nothing if the running task is interrupted no later anyway. `error` makes the exception from the limit as
    text; by default it is a RolloutError about `what`. Use it with `with` or `async with`.
    """

    __slots__ = ("_cancelling", "_entered_at", "_error", "_timer", "_token", "_what", "is_expired")

    def __init__(
        self, seconds: float | None, *, what: str = "", error: Callable[[str], Exception] | None = None
    ) -> None:
        self._entered_at = time.monotonic()
        self.at = math.inf if seconds is None else self._entered_at + seconds
        self._what, self._error = what, error
        self._timer: _TaskTimer | None = None
        self.is_expired = False

    def __enter__(self) -> None:
        outer, task = _current.get(), asyncio.current_task()
        timer = outer._timer if isinstance(outer, timeout) else None
        is_own = timer is not None and timer.task is task
        if outer is not None and outer.at <= self.at:
            if is_own:
                return
            self.at = outer.at
        if task is None or self.at == math.inf:
            return
        self._timer = timer if is_own and timer is not None else _TaskTimer(task)
        self._cancelling = task.cancelling()
        self._token: Token[Deadline | None] = _current.set(self)
        self._timer.add(self, now=self._entered_at)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        timer = self._timer
        if timer is None:
            return
        timer.remove(self)
        _current.reset(self._token)
        if self.is_expired and timer.task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            limit = f"{round(max(0.0, self.at - self._entered_at), 2):g} s"
            if self._error is not None:
                raise self._error(limit) from error
            raise RolloutError("timeout", f"{self._what} did not finish within {limit}.") from error

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
