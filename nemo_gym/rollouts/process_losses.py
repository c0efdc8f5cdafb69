"""Retries of rows whose process died: the worker that made their rollouts, or an isolated server that they called. One
of them may be what kills processes, and it must not take others with it.

Processes also die for reasons that have nothing to do with rows, with thousands in flight, so the first time all go
out again at once. The more processes a row has lost, the fewer go out together, until it is alone among those that
lost as many. Only then is it charged for a death, and not if a process without it has died in the meantime.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from nemo_gym.errors import ProcessLostError
from nemo_gym.rollouts.types import NoResult, Outcome

WORKER_LOST = "worker_lost"
"""The code of an attempt whose worker died."""
WORKER_BLOCKED = "worker_blocked"
"""The code of an attempt whose worker was killed because another rollout is known to have blocked it."""
LOST_CODES = frozenset((WORKER_LOST, WORKER_BLOCKED, ProcessLostError.CODE))
"""The codes of attempts whose process died. They are made again, whatever `max_attempts` is."""
IN_FLIGHT_AFTER = {2: 16, 3: 1}
"""How many rows that lost so many processes are in flight at once. With 16, a thousand innocent rows take as long as
63 one after the other, and a row that kills processes takes at most 15 of them to where they go one by one."""
ALONE_AFTER = max(IN_FLIGHT_AFTER)
MAX_CHARGED = 3
"""A row that was charged for so many deaths gets no further attempt."""
MAX_LOST_ALONE = 8
"""Nor one that lost this many processes while it was alone, charged or not: two rows that kill processes would excuse
each other for ever."""
MAX_REMEMBERED = 4096


@dataclass(slots=True)
class RowLosses:
    """What one row has lost."""

    row: str = ""
    """The same for all repeats of a row, which may all kill processes; empty if it is not known."""
    lost: int = 0
    charged: int = 0
    last: int = 0
    """The number of its last loss."""
    started: int = 0
    """How many losses there were when its last attempt began."""


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
        if losses.lost >= ALONE_AFTER and not self._others_died(losses, process):
            losses.charged += 1
        self.count += 1
        losses.lost, losses.last = losses.lost + 1, self.count
        self._recent.append(_Loss(self.count, losses.started, process, losses.row))
        return losses.charged < MAX_CHARGED and losses.lost < ALONE_AFTER + MAX_LOST_ALONE

    def _others_died(self, losses: RowLosses, process: str | None) -> bool:
        """True if, since the row's last loss, a process died that certainly did not have it: with a rollout that began
        after that loss, and either before this attempt began or in another process."""
        return any(
            loss.started >= losses.last
            and (loss.number <= losses.started or loss.process != process)
            and (not loss.row or loss.row != losses.row)
            for loss in self._recent
        )


class LostRows:
    """Limits how many rows that lost processes are in flight."""

    def __init__(self) -> None:
        self.losses = ProcessLosses()
        self._places = {lost: asyncio.Semaphore(number) for lost, number in IN_FLIGHT_AFTER.items()}

    def may_retry(self, losses: RowLosses, outcome: NoResult) -> bool:
        """Count an attempt whose process died. Returns whether the row gets another one."""
        return outcome.code == WORKER_BLOCKED or self.losses.lose(losses, outcome.server)

    def dispatch(self, make_attempt: Callable[[], Awaitable[Outcome]], losses: RowLosses) -> Awaitable[Outcome]:
        """Make an attempt at a row, when it is its turn."""
        places = self._places.get(min(losses.lost, ALONE_AFTER))
        if places is not None:
            return self._in_turn(make_attempt, losses, places)
        losses.started = self.losses.count
        return make_attempt()

    async def _in_turn(
        self, make_attempt: Callable[[], Awaitable[Outcome]], losses: RowLosses, places: asyncio.Semaphore
    ) -> Outcome:
        async with places:
            losses.started = self.losses.count
            return await make_attempt()
