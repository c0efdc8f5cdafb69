"""Writes the repeats of a row together."""

import itertools
from collections.abc import Iterable, Iterator

from nemo_gym.rollouts.store import WriteOutcome
from nemo_gym.rollouts.types import NoResult, Outcome, Row


class GroupedWriter:
    """Buffers the outcomes of a row until all of its rollouts have ended."""

    def __init__(self, write: WriteOutcome) -> None:
        self._write_one = write
        self._sizes: dict[int, int] = {}
        self._groups: dict[int, list[Outcome]] = {}

    def count(self, rows: Iterable[Row | NoResult]) -> Iterator[Row | NoResult]:
        """Pass rows through and count how many there are of each: fewer than repeats if some are done already."""
        for task_index, repeats in itertools.groupby(rows, key=lambda row: row.id.task_index):
            group = list(repeats)
            self._sizes[task_index] = len(group)
            yield from group

    async def write(self, outcome: Outcome) -> None:
        task_index = outcome.id.task_index
        group = self._groups.setdefault(task_index, [])
        group.append(outcome)
        if len(group) == self._sizes[task_index]:
            del self._sizes[task_index]
            await self._flush(task_index)

    async def close(self) -> None:
        """Write incomplete groups too, when the job ends early."""
        for task_index in list(self._groups):
            await self._flush(task_index)

    async def _flush(self, task_index: int) -> None:
        for outcome in sorted(self._groups.pop(task_index), key=lambda outcome: outcome.id):
            await self._write_one(outcome)
