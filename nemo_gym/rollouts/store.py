"""The output file and its failures. A record reported as written is on disk, whole."""

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from nemo_gym.common.forks import close_in_forks
from nemo_gym.errors import ConfigError
from nemo_gym.errors import StorageError as StorageError
from nemo_gym.rollouts.output_files import failures_path, manifest_path
from nemo_gym.rollouts.types import NoResult, Outcome, Row, RowId, Scored, parse_row_id

logger = logging.getLogger(__name__)

WriteOutcome = Callable[[Outcome], Awaitable[None]]

MAX_QUEUED = 4096
"""Outcomes that wait for the disk. With more, rollouts wait too."""
MAX_BATCH = 2048
"""Outcomes that are written at once: each is held several times over until it is on disk."""
BATCH_WAIT_S = 0.02
"""How long an outcome waits for others to be written with."""


class FileRole(NamedTuple):
    """What a user is advised to do about a file that cannot be written."""

    option: str
    """The parameter that says where the file is."""
    if_full: str
    if_moved: str
    if_truncated: str


OUTPUT_ROLE = FileRole(
    option="output_jsonl_fpath",
    if_full="All rollouts reported so far are in it; make room and run the same command again to make the rest.",
    if_moved="Put the file back and run the same command again, or its rollouts are made anew.",
    if_truncated="Run the same command again to make the rollouts that are missing now.",
)


class JsonlFile:
    """A file of complete lines to which one process at a time appends. Opening it does not change its content."""

    def __init__(self, path: Path, role: FileRole = OUTPUT_ROLE) -> None:
        self.path, self._role = path, role
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(f"Cannot write {path}: {error.strerror}. Choose another {role.option}.") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise ConfigError(
                f"Another process is writing {path}. Wait for it, or write to another {role.option}."
            ) from error
        close_in_forks(self._fd)  # a forked child would keep the lock
        self._end = self._end_of_lines()

    def close(self) -> None:
        os.close(self._fd)

    @property
    def is_empty(self) -> bool:
        return os.fstat(self._fd).st_size == 0

    @property
    def end(self) -> int:
        """Where the next line will be."""
        return self._end

    def lines(self) -> Iterator[bytes]:
        """The complete lines in the file."""
        left = self._end
        with self.path.open("rb") as file:
            while left > 0:
                line = file.readline()
                left -= len(line)
                yield line

    def repair(self) -> None:
        """Drop an incomplete last line, left by a process that was killed while writing."""
        partial = os.fstat(self._fd).st_size - self._end
        if partial > 0:
            logger.warning("%s ends in an incomplete line of %d bytes, which is dropped", self.path, partial)
            os.ftruncate(self._fd, self._end)

    def add(self, lines: list[bytes], *, durable: bool = True) -> None:
        """Write these, all of them or none; if `durable`, down to the disk."""
        self.check_size()
        text = memoryview(b"".join(lines))
        written = 0
        try:
            while written < len(text):
                written += os.pwrite(self._fd, text[written:], self._end + written)
            if durable:
                os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise StorageError(f"Cannot write {self.path}: {error.strerror}. {self._role.if_full}") from error
        self._end += written
        if not self._is_in_place():
            raise StorageError(f"{self.path} was moved or deleted while it was written. {self._role.if_moved}")

    def check_size(self) -> None:
        """Raise `StorageError` if another process changed the length of the file since the last write."""
        size = os.fstat(self._fd).st_size
        if size != self._end:
            raise StorageError(
                f"{self.path} has {size} bytes, expected {self._end}: another process changed it. "
                f"{self._role.if_truncated}"
            )

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _end_of_lines(self) -> int:
        end = os.fstat(self._fd).st_size
        while end > 0:
            step = min(65536, end)
            newline = os.pread(self._fd, step, end - step).rfind(b"\n")
            if newline >= 0:
                return end - step + newline + 1
            end -= step
        return 0


class RowNumbering:
    """Gives each row of a dataset the index that its records have in the output, or one that no record has."""

    def __init__(self, known: Mapping[str, Iterable[int]]) -> None:
        """`known` has the indices of each row hash in the output. None are known while the dataset stays the same."""
        self._known = {row_hash: dict.fromkeys(indices) for row_hash, indices in known.items()}
        self._taken = {index for indices in known.values() for index in indices}
        self._others = itertools.count()

    def task_index(self, row_hash: str, index: int) -> int:
        """The index of the row at a place of the dataset. Ask once for each row, in their order."""
        if known := self._known.get(row_hash):
            found = index if index in known else next(iter(known))
            del known[found]
            return found
        if not self._known:
            return index
        while index in self._taken:
            index = next(self._others)
        self._taken.add(index)
        return index


class CompletedIndex:
    """Which rollouts are in the output already. Takes one bit per rollout while the dataset stays the same.

    After a change of the dataset rows are known by content: a row keeps the index that its records have, and a row
    without records never gets the index of another, so that an index means one row in all of the output.
    """

    def __init__(self, *, num_repeats: int, by_content: bool) -> None:
        self._num_repeats, self._by_content = num_repeats, by_content
        self._bits = bytearray()
        self._done: set[RowId] = set()
        self._indices: defaultdict[str, dict[int, None]] = defaultdict(dict)
        """By row hash: equal rows have one each."""
        self.count = 0

    def add(self, row: RowId) -> bool:
        """False if the rollout was added before."""
        if self.contains(row):
            return False
        if self._has_bit(row):
            place, bit = divmod(row.task_index * self._num_repeats + row.repeat_index, 8)
            if place >= len(self._bits):
                self._bits.extend(bytes(place + 1024 - len(self._bits)))
            self._bits[place] |= 1 << bit
        else:
            self._done.add(row)
        if self._by_content:
            self._indices[row.row_hash][row.task_index] = None
        self.count += 1
        return True

    def numbering(self) -> "RowNumbering":
        """What gives the rows of the dataset their indices in the output."""
        return RowNumbering(self._indices)

    def _has_bit(self, row: RowId) -> bool:
        """False for repeats of an earlier run that had more of them, too."""
        return not self._by_content and row.repeat_index < self._num_repeats

    def contains(self, row: RowId) -> bool:
        if not self._has_bit(row):
            return row in self._done
        place, bit = divmod(row.task_index * self._num_repeats + row.repeat_index, 8)
        return place < len(self._bits) and bool(self._bits[place] >> bit & 1)


class RolloutStore:
    """The output file and its `_failures` neighbour, with one writer for both."""

    def __init__(self, output: Path, *, on_written: Callable[[Outcome], None]) -> None:
        self.output = output
        self._on_written = on_written
        self._scored = JsonlFile(output)
        self._failed: JsonlFile | None = None
        self._disk = ThreadPoolExecutor(1, "nemo-gym-disk")
        """A separate thread, since those for handlers may all be blocked."""
        self._queued: list[Outcome] = []
        self._wake, self._has_room = asyncio.Event(), asyncio.Event()
        self._is_closing = False
        self._error: Exception | None = None

    def close(self) -> None:
        self._disk.shutdown()
        self._scored.close()
        if self._failed is not None:
            self._failed.close()

    def discard_if_empty(self) -> None:
        """Delete the output and its manifest if nothing was written."""
        if self.is_empty:
            self.output.unlink(missing_ok=True)
            manifest_path(self.output).unlink(missing_ok=True)

    @property
    def is_empty(self) -> bool:
        """True if the output has no byte."""
        return self._scored.is_empty

    def records(self) -> Iterator[bytes]:
        """The lines of the output."""
        return self._scored.lines()

    def ids(self) -> Iterator[RowId]:
        """The ids of the rollouts in the output."""
        for number, line in enumerate(self.records(), 1):
            row = parse_row_id(line)
            if row is None:
                raise self.not_a_record(number)
            yield row

    def not_a_record(self, number: int) -> ConfigError:
        """The error for an output with a line that this command did not write."""
        return ConfigError(
            f"{self.output}, line {number} does not say which row it belongs to, so it was not written by this "
            "command. Choose another output_jsonl_fpath, or move the file away."
        )

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[WriteOutcome]:
        """Yields the function that queues an outcome. When the block ends, for whatever reason, all are on disk."""
        self._scored.repair()
        writer = asyncio.create_task(self._write_batches())
        try:
            yield self._queue_outcome
        finally:
            self._is_closing = True
            self._wake.set()
            await writer
        if self._error is not None:
            raise self._error
        self._scored.check_size()

    async def _queue_outcome(self, outcome: Outcome) -> None:
        if self._error is not None:
            raise self._error
        if not self._queued:
            self._wake.set()
        self._queued.append(outcome)
        if len(self._queued) >= MAX_QUEUED:
            self._has_room.clear()
            await self._has_room.wait()

    async def _write_batches(self) -> None:
        """Write what has queued up, a batch at a time. After an error nothing more is written, but the queue is still
        drained, so that no rollout waits for ever."""
        while self._queued or not self._is_closing:
            await self._wake.wait()
            if not self._is_closing and len(self._queued) < MAX_BATCH:
                await asyncio.sleep(BATCH_WAIT_S)
            outcomes, self._queued = self._queued[:MAX_BATCH], self._queued[MAX_BATCH:]
            if not self._queued:
                self._wake.clear()
            if len(self._queued) < MAX_QUEUED:
                self._has_room.set()
            if self._error is None and outcomes:
                await self._write_batch(outcomes)

    async def _write_batch(self, outcomes: list[Outcome]) -> None:
        """Lines are made here, and written by another thread, which so needs next to no Python to run."""
        try:
            scored = [outcome.line() for outcome in outcomes if isinstance(outcome, Scored)]
            failed = [outcome.line() for outcome in outcomes if not isinstance(outcome, Scored)]
            await asyncio.get_running_loop().run_in_executor(self._disk, self._write, scored, failed)
            for outcome in outcomes:
                self._on_written(outcome)
        except Exception as error:
            self._error = error

    def _write(self, scored: list[bytes], failed: list[bytes]) -> None:
        if scored:
            self._scored.add(scored)
        if failed:
            if self._failed is None:
                self._failed = JsonlFile(failures_path(self.output))
                self._failed.repair()
            self._failed.add(failed)


class GroupedWriter:
    """Writes the repeats of a row together: their outcomes are held until all of its rollouts have ended."""

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
