"""Dispatch of rows that lost their worker. One of them may be what kills workers, and it must not take others with it.

Workers also die for reasons that have nothing to do with rows, with thousands in flight, so the first time all go out
again at once. The more workers a row has lost, the fewer go out together, until it is alone among those that lost as
many: if a worker dies again, it is most likely of this row, and only this row is given up.
"""

import asyncio
from collections.abc import Awaitable, Callable

from nemo_gym.rollouts.types import Outcome

WORKER_LOST = "worker_lost"
"""The code of an attempt whose worker died. It is made again, whatever `max_attempts` is."""
IN_FLIGHT_AFTER = {2: 16, 3: 1}
"""How many rows that lost so many workers are in flight at once. With 16, a thousand innocent rows take as long as 63
one after the other, and a row that kills workers takes at most 15 of them to where they go one by one."""
MAX_WORKERS_LOST = max(IN_FLIGHT_AFTER) + 1
"""A row that lost this many workers, the last one while it was alone, gets no further attempt."""


class LostRows:
    """Limits how many rows that lost workers are in flight. One for all rows of a collection or a trainer."""

    def __init__(self) -> None:
        self._places = {lost: asyncio.Semaphore(number) for lost, number in IN_FLIGHT_AFTER.items()}

    def dispatch(self, make_attempt: Callable[[], Awaitable[Outcome]], *, lost: int) -> Awaitable[Outcome]:
        """Make an attempt at a row that has lost so many workers, when it is its turn."""
        return make_attempt() if lost not in self._places else self._in_turn(make_attempt, self._places[lost])

    async def _in_turn(self, make_attempt: Callable[[], Awaitable[Outcome]], places: asyncio.Semaphore) -> Outcome:
        async with places:
            return await make_attempt()
