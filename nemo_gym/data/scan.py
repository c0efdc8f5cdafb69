"""Check and measure a whole file: part by part, on several cores, in constant memory.

Where a part ends depends on the file alone, and parts are merged in their order, so the result is the same on any
number of cores.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from nemo_gym.compute.pool import Compute
from nemo_gym.data.chunk import OFFSET_BYTES, ChunkFigures, ChunkTask, examine
from nemo_gym.data.digests import DigestSet, Spill
from nemo_gym.data.lines import lines_of
from nemo_gym.data.numbers import AvgMinMax
from nemo_gym.data.row_check import EnvironmentCode
from nemo_gym.errors import ConfigError

CHUNK_BYTES = 4 * 2**20
CHUNKS_AHEAD = 2
"""For each process, so that none waits for the merging of an earlier part."""
MAX_ROW_BYTES = 64 * 2**20
"""Default upper bound for the length of a row. A row with a few images has some megabytes."""
MAX_REASONS = 50
"""Upper bound for distinct reasons why rows of a file are bad."""
OTHER_REASONS = "other reasons"
_CHUNK_TIMEOUT_S = 3600.0

Run = Callable[[ChunkTask], Coroutine[Any, Any, ChunkFigures]]


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What to find out, and how."""

    num_processes: int = 1
    count_tokens: bool = False
    find_near_duplicates: bool = False
    max_row_bytes: int = MAX_ROW_BYTES
    chunk_bytes: int = CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a file that a dataset uses."""

    path: Path
    start: int
    end: int
    first_row: int = 0
    """The index of its first row in the file."""
    environment: EnvironmentCode | None = None
    """Whose rules the rows have to obey, besides the schema of requests."""


@dataclass(slots=True)
class TextFigures:
    """The texts of one field."""

    digests: DigestSet
    total: int = 0


@dataclass(slots=True)
class FileFigures:
    """What is known of a dataset after a scan."""

    extent: Extent
    params: DigestSet
    user_messages: DigestSet
    near: DigestSet
    rows: int = 0
    bad: dict[str, list[int]] = field(default_factory=dict)
    """The indices of bad rows in the file, by reason."""
    is_plain: bool = True
    numbers: dict[str, AvgMinMax] = field(default_factory=dict)
    field_numbers: dict[str, AvgMinMax] = field(default_factory=dict)
    field_texts: dict[str, TextFigures] = field(default_factory=dict)

    @classmethod
    def empty(cls, extent: Extent, spill: Spill) -> "FileFigures":
        located = {"extra_bytes": OFFSET_BYTES}
        return cls(extent, spill.new_set(**located), spill.new_set(), spill.new_set(**located))

    @property
    def num_bad(self) -> int:
        return sum(map(len, self.bad.values()))

    def merge(self, chunk: ChunkFigures, spill: Spill) -> None:
        """Add what was found in the next part."""
        for reason, places in chunk.bad.items():
            known = reason if reason in self.bad or len(self.bad) < MAX_REASONS else OTHER_REASONS
            self.bad.setdefault(known, []).extend(self.extent.first_row + self.rows + place for place in places)
        self.rows += chunk.rows
        self.is_plain = self.is_plain and chunk.is_plain
        _merge_numbers(self.numbers, chunk.numbers)
        _merge_numbers(self.field_numbers, chunk.field_numbers)
        for name, total in chunk.field_texts.items():
            if name not in self.field_texts:
                self.field_texts[name] = TextFigures(spill.new_set())
            self.field_texts[name].total += total
            self.field_texts[name].digests.add(chunk.field_digests[name])
        self.params.add(chunk.params)
        self.user_messages.add(chunk.user_messages)
        self.near.add(chunk.near)


def _merge_numbers(known: dict[str, AvgMinMax], found: dict[str, AvgMinMax]) -> None:
    for name, figures in found.items():
        known.setdefault(name, AvgMinMax()).add(figures)


async def scan(
    extents: Iterable[Extent], options: ScanOptions, spill: Spill, *, on_progress: Callable[[int], None] | None = None
) -> list[FileFigures]:
    """The figures of each dataset. `on_progress` hears how many bytes were examined."""
    found = [FileFigures.empty(extent, spill) for extent in extents]
    begun: deque[tuple[FileFigures, ChunkTask, asyncio.Task[ChunkFigures]]] = deque()

    async def merge_next() -> None:
        figures, task, running = begun.popleft()
        figures.merge(await running, spill)
        if on_progress is not None:
            on_progress(task.end - task.start)

    async with AsyncExitStack() as stack:
        run = await _runner(stack, found, options)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for figures, task in ((each, task) for each in found for task in _tasks(each.extent, options)):
            begun.append((figures, task, group.create_task(run(task))))
            if len(begun) >= CHUNKS_AHEAD * options.num_processes:
                await merge_next()
        while begun:
            await merge_next()
    return found


async def _runner(stack: AsyncExitStack, found: list[FileFigures], options: ScanOptions) -> Run:
    """What examines a part: other processes if there is enough to do for them, else this one."""
    size = sum(each.extent.end - each.extent.start for each in found)
    if options.num_processes == 1 or size <= options.chunk_bytes:
        return _examine_here
    compute = await stack.enter_async_context(Compute(workers=options.num_processes))

    async def run(task: ChunkTask) -> ChunkFigures:
        return await compute.run(examine, task, timeout_s=_CHUNK_TIMEOUT_S)

    return run


async def _examine_here(task: ChunkTask) -> ChunkFigures:
    await asyncio.sleep(0)  # an interrupt is noticed between parts
    return examine(task)


def _tasks(extent: Extent, options: ScanOptions) -> Iterator[ChunkTask]:
    with extent.path.open("rb") as file:
        start = extent.start
        while start < extent.end:
            end = extent.end
            if start + options.chunk_bytes < extent.end:
                file.seek(start + options.chunk_bytes)
                end = min(extent.end, _end_of_line(file, start + options.chunk_bytes))
            yield ChunkTask(
                str(extent.path),
                start,
                end,
                options.max_row_bytes,
                options.count_tokens,
                options.find_near_duplicates,
                extent.environment,
            )
            start = end


def _end_of_line(file: IO[bytes], position: int) -> int:
    while part := file.readline(2**20):
        position += len(part)
        if part.endswith(b"\n"):
            break
    return position


def extent_of(path: Path, start_idx: int | None = None, end_idx: int | None = None) -> Extent:
    """Which bytes of a file hold the rows from `start_idx` up to `end_idx`. Blank lines do not count."""
    size = os.path.getsize(path)
    if start_idx is None and end_idx is None:
        return Extent(path, 0, size)
    first, last, start, row = start_idx or 0, end_idx, size, 0
    with path.open("rb") as file:
        for place, line in lines_of(file, 0, size, max_row_bytes=MAX_ROW_BYTES):
            if line is not None and not line.strip():
                continue
            if row == first:
                start = place
            if row == last:
                return Extent(path, start, place, first)
            row += 1
    if row <= first:
        raise ConfigError(f"start_idx is {first}, but {path} has only {row} rows.")
    return Extent(path, start, size, first)
