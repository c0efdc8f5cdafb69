"""Retries of rows whose process died: the worker that made their rollouts, or an isolated server that they called. One
of them may be what kills processes, and it must not take others with it.

Processes also die for reasons that have nothing to do with rows, with thousands in flight, so the first time all go
out again at once. The more processes a row has lost, the fewer go out together, until it is alone among those that
lost as many. Only then is it charged for a death, and not if a process without it has died in the meantime. With each
of them that ends well, one more goes out together, so that after an outage thousands of innocent rows need not go one
by one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from nemo_gym.errors import ProcessLostError, RolloutError
from nemo_gym.rollouts.types import Outcome

WORKER_LOST = "worker_lost"
"""The code of an attempt whose worker died."""
WORKER_BLOCKED = "worker_blocked"
"""The code of an attempt whose worker was killed because another rollout is known to have blocked it."""
LOST_CODES = frozenset((WORKER_LOST, WORKER_BLOCKED, ProcessLostError.CODE))
"""The codes of attempts whose process died. They are made again, whatever `max_attempts` is."""
FEW_AFTER, FEW = 2, 16
"""How many rows that lost two processes are in flight at once. A thousand innocent rows take as long as 63 one after
the other, and a row that kills processes takes at most 15 of them to where they begin with one."""
ALONE_AFTER = 3
MAX_CHARGED = 3
"""Maximum number of deaths that a row is charged for. Then it gets no further attempt."""
MAX_LOST_ALONE = 8
"""Maximum number of processes that a row may lose while it is alone, charged or not: otherwise two rows that kill
processes would excuse each other for ever."""
MAX_LOST = 100
"""Maximum number of processes that a row may lose in all."""
MAX_REMEMBERED = 4096


@dataclass(slots=True)
class RowLosses:
    """The losses of one row."""

    row: str = ""
    """The hash of the row, the same for all its repeats, which may all kill processes. Empty if not known."""
    lost: int = 0
    lost_alone: int = 0
    charged: int = 0
    is_alone: bool = True
    """True if no other row that lost as many was in flight during its last attempt."""
    last: int = 0
    """The number of its last loss."""
    started: int = 0
    """The number of losses when its last attempt began."""


class _Loss(NamedTuple):
    number: int
    started: int
    process: str | None
    row: str


class ProcessLosses:
    """Decides which rows that lost processes get another attempt. One for all rows of a collection or a trainer.

    A state machine without I/O, whose time is the number of losses so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._recent: deque[_Loss] = deque(maxlen=MAX_REMEMBERED)

    def lose(self, losses: RowLosses, process: str | None) -> bool:
        """Count a process that died with an attempt at a row. Returns whether the row gets another attempt."""
        if losses.lost >= ALONE_AFTER and losses.is_alone:
            losses.lost_alone += 1
            losses.charged += not self._others_died(losses, process)
        self.count += 1
        losses.lost, losses.last = losses.lost + 1, self.count
        self._recent.append(_Loss(self.count, losses.started, process, losses.row))
        return losses.charged < MAX_CHARGED and losses.lost_alone < MAX_LOST_ALONE and losses.lost < MAX_LOST

    def _others_died(self, losses: RowLosses, process: str | None) -> bool:
        """True if, since the row's last loss, a process died that certainly did not have it: with a rollout that began
        after that loss, and either before this attempt began or in another process."""
        return any(
            loss.started >= losses.last
            and (loss.number <= losses.started or loss.process != process)
            and (not loss.row or loss.row != losses.row)
            for loss in self._recent
        )


class Suspects:
    """Limits how many rows that lost many processes are in flight: one at first, one more with each that ends well,
    and one again after a loss."""

    def __init__(self) -> None:
        self._limit = 1
        self._in_flight: dict[int, RowLosses] = {}
        self._waiting: deque[tuple[asyncio.Future[None], RowLosses]] = deque()

    async def run(self, make_attempt: Callable[[], Awaitable[Outcome]], losses: RowLosses) -> Outcome:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, losses))
        try:
            self._start_waiting()
            await turn
            outcome = await make_attempt()
            is_lost = outcome.error is not None and outcome.error.code in LOST_CODES
            self._limit = 1 if is_lost else self._limit + 1
            return outcome
        finally:
            turn.cancel()
            self._in_flight.pop(id(losses), None)
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._in_flight) < self._limit:
            turn, losses = self._waiting.popleft()
            if turn.done():  # its rollout was cancelled
                continue
            turn.set_result(None)
            self._in_flight[id(losses)] = losses
            for each in self._in_flight.values():
                each.is_alone = len(self._in_flight) == 1


class LostRows:
    """Limits how many rows that lost processes are in flight."""

    def __init__(self) -> None:
        self.losses = ProcessLosses()
        self._few = asyncio.Semaphore(FEW)
        self._suspects = Suspects()

    def may_retry(self, losses: RowLosses, error: RolloutError) -> bool:
        """Count an attempt whose process died. Returns whether the row gets another one."""
        return error.code == WORKER_BLOCKED or self.losses.lose(losses, error.server)

    def dispatch(self, make_attempt: Callable[[], Awaitable[Outcome]], losses: RowLosses) -> Awaitable[Outcome]:
        """Make an attempt at a row, when it is its turn."""

        def start() -> Awaitable[Outcome]:
            losses.started = self.losses.count
            return make_attempt()

        if losses.lost < FEW_AFTER:
            return start()
        return self._suspects.run(start, losses) if losses.lost >= ALONE_AFTER else self._one_of_few(start)

    async def _one_of_few(self, start: Callable[[], Awaitable[Outcome]]) -> Outcome:
        async with self._few:
            return await start()
