"""The time left for what is being done. Whoever starts a rollout sets it, every hop inherits what remains of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from nemo_gym.errors import RolloutError

HEADER = "nemo-gym-time-left-s"


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant by the monotonic clock after which nobody waits for the result."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        return max(0.0, self.at - time.monotonic())


_current: ContextVar[Deadline | None] = ContextVar("nemo_gym_deadline", default=None)


def current_deadline() -> Deadline | None:
    """The deadline that the running task works under, if any."""
    return _current.get()


def time_for(step_s: float) -> float:
    """How long a step that usually may take `step_s` may take now."""
    deadline = _current.get()
    return step_s if deadline is None else min(step_s, deadline.left_s())


@contextmanager
def under(seconds: float | None) -> Iterator[None]:
    """Give the code inside at most `seconds`, and never more than it had. Tells, but does not interrupt."""
    if seconds is None:
        yield
        return
    outer, inner = _current.get(), Deadline.after(seconds)
    mark = _current.set(inner if outer is None or inner.at < outer.at else outer)
    try:
        yield
    finally:
        _current.reset(mark)


@contextmanager
def afresh(seconds: float) -> Iterator[None]:
    """Give the code inside `seconds`, however little is left: for tidying up when the time is over."""
    mark = _current.set(Deadline.after(seconds))
    try:
        yield
    finally:
        _current.reset(mark)


@asynccontextmanager
async def within(seconds: float | None, *, what: str) -> AsyncIterator[None]:
    """As `under`, and interrupt the code inside when its time is up."""
    with under(seconds):
        deadline = _current.get()
        if deadline is None:
            yield
            return
        allowed_s = deadline.left_s()
        try:
            async with asyncio.timeout(allowed_s) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise RolloutError("timeout", f"{what} did not finish within {allowed_s:.3g} s.") from error
