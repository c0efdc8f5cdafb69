"""Stragglers: rollouts that take much longer than the others are hedged with a second run, or given up."""

import asyncio
import bisect
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal

from nemo_gym.rollouts.types import NoResult, Outcome, Row, Scored

Run = Callable[[Row], Awaitable[Outcome]]
Action = Literal["hedge", "give_up"]

MAX_DURATIONS = 1000
"""The percentile is that of the latest rollouts."""
MIN_DURATIONS = 20
"""With fewer no rollout is a straggler."""
CHECK_EVERY_S = 1.0


class DurationPercentiles:
    """The durations of the latest rollouts, sorted."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._added = 0

    def add(self, seconds: float) -> None:
        """Infinity is the duration of a rollout that was given up."""
        self._added += 1
        self._latest.append(seconds)
        bisect.insort(self._sorted, seconds)
        if len(self._latest) > MAX_DURATIONS:
            self._sorted.pop(bisect.bisect_left(self._sorted, self._latest.popleft()))

    def percentile(self, percent: float, *, in_flight: int = 0) -> float | None:
        """The duration below which this percentage of rollouts stays; None while too few are known: the first of
        those in flight to finish are the fastest."""
        if self._added < max(MIN_DURATIONS, in_flight * percent / 100):
            return None
        return self._sorted[min(len(self._sorted) - 1, int(len(self._sorted) * percent / 100))]


def with_straggler_policy(run: Run, *, durations: DurationPercentiles, percentile: float, action: Action) -> Run:
    """`run`, but a rollout past the percentile of the others is hedged or given up. It counts with the time from its
    start, or as infinite: otherwise the limit would stay too low, and most rollouts would become stragglers."""
    in_flight = 0

    def limit_s() -> float | None:
        return durations.percentile(percentile, in_flight=in_flight)

    async def run_watched(row: Row) -> Outcome:
        nonlocal in_flight
        started = time.monotonic()
        first = _in_place_of_this_task(run(row))
        in_flight += 1
        try:
            if await _finishes_in_time(first, limit_s):
                outcome = await first
            elif action == "hedge":
                outcome = await _first_scored([first, _in_place_of_this_task(run(row))])
            else:
                durations.add(math.inf)
                message = f"Given up: it took longer than {percentile:g} % of the others."
                return NoResult.of(row, "timeout", message, seconds=time.monotonic() - started)
        finally:
            in_flight -= 1
            first.cancel()
        if isinstance(outcome, Scored):
            durations.add(time.monotonic() - started)
        return outcome

    return run_watched


def _in_place_of_this_task(running: Awaitable[Outcome]) -> "asyncio.Future[Outcome]":
    """Run it in a task that has the name of this one, by which its rollout is found."""
    task, this = asyncio.ensure_future(running), asyncio.current_task()
    if isinstance(task, asyncio.Task) and this is not None:
        task.set_name(this.get_name())
    return task


async def _finishes_in_time(task: "asyncio.Future[Outcome]", limit_s: Callable[[], float | None]) -> bool:
    """Wait for the task until it is a straggler. The limit moves as others finish."""
    started = time.monotonic()
    while not task.done():
        limit = limit_s()
        left = CHECK_EVERY_S if limit is None else limit - (time.monotonic() - started)
        if left <= 0:
            return False
        await asyncio.wait({task}, timeout=min(left, CHECK_EVERY_S))
    return True


async def _first_scored(tasks: "list[asyncio.Future[Outcome]]") -> Outcome:
    """The first that scored, or else the last to fail."""
    try:
        for finished in asyncio.as_completed(tasks):
            outcome = await finished
            if isinstance(outcome, Scored):
                break
        return outcome
    finally:
        for task in tasks:
            task.cancel()
