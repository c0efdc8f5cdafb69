"""What to do about a rollout that takes much longer than the others: start it a second time, or give it up."""

import asyncio
import bisect
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal

from nemo_gym.rollouts.types import NoResult, Outcome, Row, Scored, raw_json_or_text

Run = Callable[[Row], Awaitable[Outcome]]
Action = Literal["hedge", "give_up"]

MEMORY = 1000
"""How many of the latest durations the percentile is taken of."""
ENOUGH = 20
"""So many are needed before anything counts as late."""
LOOK_EVERY_S = 1.0


class DurationPercentiles:
    """The durations of the latest rollouts, in order."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        self._latest.append(seconds)
        bisect.insort(self._sorted, seconds)
        if len(self._latest) > MEMORY:
            self._sorted.pop(bisect.bisect_left(self._sorted, self._latest.popleft()))

    def percentile(self, percent: float) -> float | None:
        """The duration that so many percent stay below, once enough are known."""
        if len(self._sorted) < ENOUGH:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(len(self._sorted) * percent / 100))]


def with_straggler_policy(run: Run, *, pace: DurationPercentiles, percentile: float, action: Action) -> Run:
    """`run`, but a rollout past the percentile of the others is hedged or given up."""

    async def run_watched(row: Row) -> Outcome:
        started_at, started = time.time(), time.monotonic()
        first = asyncio.ensure_future(run(row))
        try:
            if await _in_time(first, pace, percentile):
                outcome = await first
            elif action == "hedge":
                outcome = await _first_scored([first, asyncio.ensure_future(run(row))])
            else:
                message, seconds = f"it took longer than {percentile:g} % of the others.", time.monotonic() - started
                outcome = NoResult(
                    row.id,
                    "timeout",
                    f"Given up: {message}",
                    started_at=started_at,
                    seconds=seconds,
                    row=raw_json_or_text(row.body),
                )
                pace.add(seconds)  # else those that stay would be ever faster, and ever more given up
        finally:
            first.cancel()
        if isinstance(outcome, Scored):
            pace.add(outcome.seconds)
        return outcome

    return run_watched


async def _in_time(task: "asyncio.Future[Outcome]", pace: DurationPercentiles, percentile: float) -> bool:
    """Wait for the task as long as it is not late. What is late changes as others finish."""
    started = asyncio.get_running_loop().time()
    while not task.done():
        limit = pace.percentile(percentile)
        left = LOOK_EVERY_S if limit is None else limit - (asyncio.get_running_loop().time() - started)
        if left <= 0:
            return False
        await asyncio.wait({task}, timeout=min(left, LOOK_EVERY_S))
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
