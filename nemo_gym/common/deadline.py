"""Deadlines and leases.

Whoever starts a rollout sets its deadline, and every step inside it inherits the time that is left. While the code of
one rollout blocks the event loop, the others cannot go on, so their deadlines move by that time. A lease, by which a
process judges that another one is late, uses a clock that stands still while this process does.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from nemo_gym.errors import RolloutError

TIME_LEFT_HEADER = "nemo-gym-time-left-s"
OUTCOME_GRACE_S = 60.0
"""How long a collector waits for the outcome of a rollout after its time is over. A busy worker may be late, and code
that is cancelled may have something to close. Whatever happens there, every row has an outcome."""
FAR_S = 30.0
"""A limit of at least this much is kept to the second, so that it needs no timer of its own."""
TICK_S = 0.5
LATE_S = 1.0
"""A loop that is late by more was blocked, and not only busy."""
MAX_EXTENSION = 3.0
"""By how many times its length a limit is extended at most: also tasks of the same rollout may block the loop."""


class Deadline:
    """An instant by the monotonic clock after which nobody waits for the result."""

    __slots__ = ("at",)
    _task: "asyncio.Task[Any] | None" = None
    """The task that is interrupted then; None if nothing is."""

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
    """Return how many seconds a step with a limit of `step_s` may take now."""
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


Report = Callable[["asyncio.Task[Any]", str], None]
"""Called with a task that ignores its cancellation, and what took too long."""


class TimerWheel:
    """The far timeouts of one event loop, by the second in which they expire. A step with a limit of minutes, which
    nearly every step has, costs an entry in a dict and no timer. Those of one second expire in the order in which they
    were entered."""

    def __init__(self) -> None:
        self.slots: dict[int, dict[timeout, None]] = {}
        self.near: dict[timeout, None] = {}
        """Timeouts that expire so soon that each has a timer."""
        self._is_ticking, self._tick_at = False, 0.0
        self.reports: dict[Report, float] = {}
        """The callback for a task that ignores its cancellation, and how many seconds later it is called."""

    def add_slot(self, second: int) -> "dict[timeout, None]":
        """Make the slot of the timeouts that expire in that second."""
        if not self._is_ticking:
            self._is_ticking = True
            self._tick_soon(time.monotonic())
        slot: dict[timeout, None] = {}
        self.slots[second] = slot
        return slot

    def extend(self, seconds: float, blocking: "asyncio.Task[Any] | None") -> None:
        """Move all timeouts, except those of the task that has blocked the loop."""
        far, self.slots = [each for slot in self.slots.values() for each in slot], {}
        for each in (*far, *self.near):
            if each._task is not blocking:
                each.extend(seconds)
        for each in far:
            each._slot = slot = self.slots.setdefault(int(each.at) + 1, {})
            slot[each] = None

    def _tick_soon(self, now: float) -> None:
        self._tick_at = now + TICK_S
        asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._tick_at > LATE_S:  # the watchdog has still to move the timeouts
            self._tick_soon(now)
            return
        for second in [second for second, slot in self.slots.items() if second <= now or not slot]:
            for entered in [*self.slots.pop(second)]:
                entered.expire()
        self._is_ticking = bool(self.slots)
        if self._is_ticking:
            self._tick_soon(now)


_wheels: WeakKeyDictionary[asyncio.AbstractEventLoop, TimerWheel] = WeakKeyDictionary()


class timeout(Deadline):  # noqa: N801 - a context manager, named as asyncio.timeout
    """Limit the code inside to `seconds`, or to what is left of an earlier deadline, and interrupt it then.

    Does nothing if the running task is interrupted no later anyway. `error` makes the exception from the limit as
    text; by default it is a RolloutError about `what`. Use it with `with` or `async with`.
    """

    __slots__ = (
        *("_cancelling", "_entered_at", "_error", "_is_expired", "_latest", "_slot", "_task", "_timer", "_token"),
        *("_what", "_wheel"),
    )

    def __init__(
        self, seconds: float | None, *, what: str = "", error: Callable[[str], Exception] | None = None
    ) -> None:
        self._entered_at = now = time.monotonic()
        self.at = math.inf if seconds is None else now + seconds
        self._what, self._error = what, error
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> None:
        outer, task = _current.get(), asyncio.current_task()
        is_own = outer is not None and outer._task is task
        if outer is not None and outer.at <= self.at:
            if is_own:
                return
            self.at = outer.at
        if task is None or self.at == math.inf:
            return
        self._task, self._is_expired, self._cancelling = task, False, task.cancelling()
        self._token: Token[Deadline | None] = _current.set(self)
        self._wheel: TimerWheel = outer._wheel if is_own else _wheel_of(task.get_loop())  # type: ignore[union-attr]
        left_s = max(0.0, self.at - self._entered_at)
        self._latest = self.at + left_s * MAX_EXTENSION
        self._timer: asyncio.TimerHandle | None = None
        if left_s < FAR_S:
            self._slot, self._timer = self._wheel.near, task.get_loop().call_later(left_s, self._expire_near)
        else:
            second = int(self.at) + 1
            slot = self._wheel.slots.get(second)
            self._slot = self._wheel.add_slot(second) if slot is None else slot
        self._slot[self] = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        task = self._task
        if task is None:
            return
        _current.reset(self._token)
        if self._is_expired:
            self._task = None
            if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise self._expired(error) from error
            return
        if self._timer is not None:
            self._timer.cancel()
        self._slot.pop(self, None)

    def extend(self, seconds: float) -> None:
        """Allow the code inside more time, within bounds."""
        self.at = min(self.at + seconds, self._latest)

    def _expire_near(self) -> None:
        now, loop = time.monotonic(), asyncio.get_running_loop()
        if now - self.at > LATE_S:  # the watchdog has still to move it
            self._timer = loop.call_later(TICK_S, self._expire_moved)
        else:
            self._expire_moved()

    def _expire_moved(self) -> None:
        left_s = self.at - time.monotonic()
        if left_s > 0:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._expire_near)
        else:
            self.expire()

    def expire(self) -> None:
        """Interrupt the code inside."""
        self._is_expired = True
        self._slot.pop(self, None)
        if self._task is not None:
            self._task.cancel()
            for report, after_s in self._wheel.reports.items():
                self._task.get_loop().call_later(after_s, self._report_if_inside, report, after_s)

    def _report_if_inside(self, report: Report, after_s: float) -> None:
        if self._task is not None and not self._task.done():
            report(self._task, f"{self._what} did not finish within {self._limit()} and {after_s:g} s of grace.")

    def _expired(self, interrupted: BaseException | None) -> Exception:
        limit = self._limit()
        if self._error is not None:
            return self._error(limit)
        expired = RolloutError("timeout", f"{self._what} did not finish within {limit}.")
        expired.response = getattr(interrupted, "response", None)
        return expired

    def _limit(self) -> str:
        seconds = max(0.0, self.at - self._entered_at)
        return f"{seconds:.2g} s" if seconds < 0.1 else f"{round(seconds, 2):g} s"

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


@contextmanager
def reporting_ignored_cancellations(report: Report, *, after_s: float) -> Iterator[None]:
    """Call `report` with every task of the running loop that is still in a `timeout` `after_s` after it expired."""
    wheel = _wheel_of(asyncio.get_running_loop())
    wheel.reports[report] = after_s
    try:
        yield
    finally:
        del wheel.reports[report]


def extend_deadlines(seconds: float, *, blocking: "asyncio.Task[Any] | None") -> None:
    """Move the deadlines of the running loop by the time in which a task has blocked it, except its own."""
    if seconds > LATE_S:
        _wheel_of(asyncio.get_running_loop()).extend(seconds, blocking)


def is_interrupted_by(deadline: Deadline | None, *, at: float) -> bool:
    """True if the deadline is a `timeout` that interrupts the running task at this time or earlier."""
    return deadline is not None and deadline.at <= at and deadline._task is asyncio.current_task()


def _wheel_of(loop: asyncio.AbstractEventLoop) -> TimerWheel:
    wheel = _wheels.get(loop)
    if wheel is None:
        wheel = _wheels[loop] = TimerWheel()
    return wheel


WALL_TIME_FACTOR, MIN_WALL_TIMEOUT_S = 10, 60.0


def wall_limit_s(cpu_s: float) -> float:
    """The limit on wall-clock time that goes with one on CPU time: ten times as much, at least 60 s. Generous, since
    each process is slower on a machine with more processes than cores."""
    return max(WALL_TIME_FACTOR * cpu_s, MIN_WALL_TIMEOUT_S)


MAX_GAP_S = 2.0
"""How much the clock advances at most from one tick to the next. A busy event loop is late by less."""


class LeaseClock:
    """A clock that is ticked regularly, and does not count the time in which it was not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ticked_at, self._time = clock(), 0.0

    def now(self) -> float:
        return self._time + min(self._clock() - self._ticked_at, MAX_GAP_S)

    def tick(self) -> None:
        self._time, self._ticked_at = self.now(), self._clock()


_clocks: WeakKeyDictionary[asyncio.AbstractEventLoop, LeaseClock] = WeakKeyDictionary()


def lease_time() -> float:
    """The time by the clock of the running event loop, which ticks from the first call on."""
    loop = asyncio.get_running_loop()
    clock = _clocks.get(loop)
    if clock is None:
        clock = _clocks[loop] = LeaseClock()
        loop.call_later(TICK_S, _tick, loop, clock)
    return clock.now()


def _tick(loop: asyncio.AbstractEventLoop, clock: LeaseClock) -> None:
    clock.tick()
    loop.call_later(TICK_S, _tick, loop, clock)
