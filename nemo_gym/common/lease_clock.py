"""The clock for leases, and for all else by which a process judges that another one is late.

A process that was stopped itself, such as by SIGSTOP, or whose event loop was blocked, has heard of nobody in that
time. So this clock stands still meanwhile, and every lease lasts longer by as much. It is `time.monotonic` without the
gaps in which the event loop did not run. While a machine is suspended, `time.monotonic` stands still by itself.
"""

import asyncio
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

TICK_S = 0.5
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
