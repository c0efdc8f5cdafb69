"""The files of a collection: the output a user names, the files beside it, and how they are written and read again.
Every name is made here. A record reported as written is on disk, whole."""

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import logging
import os
import shlex
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from nemo_gym.common.forks import close_in_forks
from nemo_gym.common.words import count_of, json_type
from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.errors import ConfigError, SetupError
from nemo_gym.errors import StorageError as StorageError
from nemo_gym.llm_api.stored_tokens import read_record
from nemo_gym.rollouts.types import (
    REPEAT_INDEX_KEY_NAME,
    ROW_HASH_KEY_NAME,
    Outcome,
    Row,
    RowKey,
    parse_row_key,
)

logger = logging.getLogger(__name__)

SPECIAL_FOLDERS = (Path("/dev"), Path("/proc"))


def sibling_path(output: str | Path, word: str, suffix: str) -> Path:
    """The file beside an output that has `word` in its name. Outputs that differ only in their suffix share none."""
    output = Path(output)
    if output.suffix == ".jsonl":
        return output.with_name(f"{output.stem}_{word}{suffix}")
    return output.with_name(f"{output.name}.{word}{suffix}")


failures_path = failures_path_for = partial(sibling_path, word="failures", suffix=".jsonl")
manifest_path = partial(sibling_path, word="manifest", suffix=".json")
"""The input and configuration that the rollouts were made with."""
metrics_path = partial(sibling_path, word="metrics", suffix=".json")
plots_path = partial(sibling_path, word="plots", suffix=".svg")
aggregate_metrics_path = partial(sibling_path, word="aggregate_metrics", suffix=".json")
"""The metrics that environments compute themselves."""
materialized_inputs_path = partial(sibling_path, word="materialized_inputs", suffix=".jsonl")
"""The rows as they were sent."""
collated_inputs_path = partial(sibling_path, word="collated_inputs", suffix=".jsonl")
"""The rows of several datasets, or rows with skills."""
routed_inputs_path = partial(sibling_path, word="routed_inputs", suffix=".jsonl")
"""Rows with the servers that play them."""
journal_path = partial(sibling_path, word="journal", suffix=".jsonl")
"""The replies of models, to resume inside a rollout."""
export_path = partial(sibling_path, word="export", suffix=".json")
"""Counts of the records that an export used and dropped."""


def scored_path(failures: Path) -> Path | None:
    """The output that a file of failures belongs to, if its name is that of one."""
    name = failures.name.removesuffix("_failures.jsonl")
    return None if name == failures.name else failures.with_name(f"{name}.jsonl")


def all_paths(output: Path) -> tuple[Path, ...]:
    """Everything that a collection writes."""
    metrics = metrics_path(output), aggregate_metrics_path(output)
    inputs = manifest_path(output), materialized_inputs_path(output)
    return output, failures_path(output), journal_path(output), *inputs, *metrics


def check_paths(output: Path, *, dataset: Path) -> None:
    """Refuse to write into the dataset, or into anything but regular files: records are read again on a resume."""
    if any(output.absolute().is_relative_to(folder) for folder in SPECIAL_FOLDERS):
        raise ConfigError(f"{output} is not a regular file. Choose another output_jsonl_fpath.")
    for path in all_paths(output):
        if path.exists() and not path.is_file():
            what = "a directory" if path.is_dir() else "not a regular file"
            raise ConfigError(f"{path}, which is to be written, is {what}. Choose another output_jsonl_fpath.")
        if path.exists() and path.samefile(dataset):
            raise ConfigError(f"{path}, which is to be written, is the dataset. Choose another output_jsonl_fpath.")
        if path != output and manifest_path(path).exists():
            raise ConfigError(
                f"{path}, which is to be written, is the output of another collection. Choose another "
                "output_jsonl_fpath."
            )


def archive_paths(output: Path) -> list[tuple[Path, Path]]:
    """The existing files of an earlier run, each with a name under which it can be kept."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S-%f")
    existing = (path for path in all_paths(output) if path.exists())
    return [(path, path.with_name(f"{path.stem}.{stamp}{path.suffix}")) for path in existing]


WriteOutcome = Callable[[Outcome], Awaitable[None]]

MAX_QUEUED = 4096
"""Outcomes that wait for the disk. With more, rollouts wait too."""
MAX_BATCH = 2048
"""Outcomes that are written at once: each is held several times over until it is on disk."""
BATCH_WAIT_S = 0.02
"""Seconds for which an outcome waits for others to be written with."""


class FileRole(NamedTuple):
    """Advice for a user about a file that cannot be written."""

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


class AppendOnlyFile:
    """A file to which one process at a time appends. Opening it does not change its content."""

    def __init__(self, path: Path, role: FileRole) -> None:
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
        try:
            self._end = self._complete_bytes()
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        os.close(self._fd)

    @property
    def is_empty(self) -> bool:
        return os.fstat(self._fd).st_size == 0

    @property
    def end(self) -> int:
        """Where the next content goes: after everything that is complete."""
        return self._end

    def repair(self) -> None:
        """Drop what a process that was killed while writing left incomplete."""
        partial = os.fstat(self._fd).st_size - self._end
        if partial > 0:
            logger.warning("%s ends in an incomplete record of %d bytes, which is dropped", self.path, partial)
            os.ftruncate(self._fd, self._end)

    def append(self, content: bytes, *, durable: bool = True) -> None:
        """Write this, all of it or nothing; if `durable`, down to the disk."""
        self.check_size()
        left, written = memoryview(content), 0
        try:
            while written < len(left):
                written += os.pwrite(self._fd, left[written:], self._end + written)
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

    def _complete_bytes(self) -> int:
        """Where the last complete part of the file ends."""
        raise NotImplementedError


class JsonlFile(AppendOnlyFile):
    """A file of complete lines."""

    def __init__(self, path: Path, role: FileRole = OUTPUT_ROLE) -> None:
        super().__init__(path, role)

    def lines(self) -> Iterator[bytes]:
        """The complete lines in the file."""
        left = self._end
        with self.path.open("rb") as file:
            while left > 0:
                line = file.readline()
                left -= len(line)
                yield line

    def add(self, lines: list[bytes], *, durable: bool = True) -> None:
        """Write these, all of them or none; if `durable`, down to the disk."""
        self.append(b"".join(lines), durable=durable)

    def _complete_bytes(self) -> int:
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
    """The rollouts that the output has already. Takes one bit per rollout while the dataset stays the same.

    After a change of the dataset rows are known by content: a row keeps the index that its records have, and a row
    without records never gets the index of another, so that an index means one row in all of the output.
    """

    def __init__(self, *, num_repeats: int, row_hashes: Sequence[int] = (), by_content: bool = False) -> None:
        """`row_hashes` are those of the dataset. The first record that is not of the row at its index shows that the
        dataset was another one, even if no manifest says so."""
        self._num_repeats, self._row_hashes = num_repeats, row_hashes
        self._by_content = by_content
        self._bits = bytearray()
        self._done: set[RowKey] = set()
        self._indices: defaultdict[str, dict[int, None]] = defaultdict(dict)
        """The indices of the rows in the output, by row hash: each of several equal rows has its own."""
        self.count = 0

    def add(self, row: RowKey) -> bool:
        """False if the rollout was added before."""
        if not self._by_content and not self._is_in_place(row):
            self._know_by_content()
        if self.contains(row):
            return False
        if self._has_bit(row):
            place, bit = divmod(row[0] * self._num_repeats + row[1], 8)
            if place >= len(self._bits):
                self._bits.extend(bytes(place + 1024 - len(self._bits)))
            self._bits[place] |= 1 << bit
        else:
            self._done.add(row)
        if self._by_content:
            self._indices[row[2]][row[0]] = None
        self.count += 1
        return True

    def numbering(self) -> "RowNumbering":
        """Return what gives the rows of the dataset their indices in the output."""
        return RowNumbering(self._indices)

    def contains(self, row: RowKey) -> bool:
        if not self._has_bit(row):
            return row in self._done
        place, bit = divmod(row[0] * self._num_repeats + row[1], 8)
        return place < len(self._bits) and bool(self._bits[place] >> bit & 1)

    def _has_bit(self, row: RowKey) -> bool:
        """False for repeats of an earlier run that had more of them, too."""
        return not self._by_content and row[1] < self._num_repeats

    def _is_in_place(self, row: RowKey) -> bool:
        return row[0] < len(self._row_hashes) and self._row_hashes[row[0]] == int(row[2], 16)

    def _know_by_content(self) -> None:
        """Turn the bits into keys. All rows so far were in place, so the dataset has their hashes."""
        for place, byte in enumerate(self._bits):
            for bit in range(8) if byte else ():
                if byte >> bit & 1:
                    task_index, repeat_index = divmod(place * 8 + bit, self._num_repeats)
                    self._done.add((task_index, repeat_index, f"{self._row_hashes[task_index]:016x}"))
        for task_index, _, row_hash in self._done:
            self._indices[row_hash][task_index] = None
        self._bits.clear()
        self._by_content = True


class TokenWriter(Protocol):
    """Writes tokens to a file of their own."""

    def split(self, outcomes: Sequence[Outcome]) -> list[bytes]:
        """Write the tokens of these scored rollouts, and return their lines without them."""

    def close(self) -> None: ...


class RolloutStore:
    """The output file and its `_failures` neighbour, with one writer for both."""

    def __init__(
        self, output: Path, *, on_written: Callable[[Outcome], None], tokens: TokenWriter | None = None
    ) -> None:
        self.output, self._tokens = output, tokens
        self._on_written = on_written
        self._scored = JsonlFile(output)
        self._failed: JsonlFile | None = None
        self._disk = ThreadPoolExecutor(1, "nemo-gym-disk")
        """The writer's own thread, since all threads for handlers may be blocked."""
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

    @contextlib.contextmanager
    def discarded_without_servers(self) -> Iterator[None]:
        """If the servers do not start, delete an output that has nothing yet."""
        try:
            yield
        except SetupError:
            self.discard_if_empty()
            raise

    @property
    def is_empty(self) -> bool:
        """True if the output has no byte."""
        return self._scored.is_empty

    def records(self) -> Iterator[tuple[int, RowKey, bytes]]:
        """The lines of the output: number, key and content."""
        for number, line in enumerate(self._scored.lines(), 1):
            key = parse_row_key(line)
            if key is None:
                raise self.not_a_record(number)
            yield number, key, line

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
            scored = [outcome for outcome in outcomes if outcome.error is None]
            lines = None if self._tokens else [outcome.line() for outcome in scored]
            failed = [outcome.line() for outcome in outcomes if outcome.error is not None]
            await asyncio.get_running_loop().run_in_executor(self._disk, self._write, scored, lines, failed)
            for outcome in outcomes:
                self._on_written(outcome)
        except Exception as error:
            self._error = error

    def _write(self, scored: list[Outcome], lines: list[bytes] | None, failed: list[bytes]) -> None:
        if lines is None and self._tokens is not None:
            lines = self._tokens.split(scored)
        if lines:
            self._scored.add(lines)
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

    def count(self, rows: Iterable[Row | Outcome]) -> Iterator[Row | Outcome]:
        """Pass rows through and count how many there are of each: fewer than repeats if some are done already."""
        for task_index, group in group_by_task(rows):
            self._sizes[task_index] = len(group)
            yield from group

    async def write(self, outcome: Outcome) -> None:
        task_index = outcome.row.task_index
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
        for outcome in sorted(self._groups.pop(task_index), key=lambda outcome: outcome.row.key):
            await self._write_one(outcome)


def group_by_task(rows: Iterable[Row | Outcome]) -> Iterator[tuple[int, list[Row | Outcome]]]:
    """Group consecutive repeats of the same row."""
    for task_index, repeats in itertools.groupby(rows, key=_task_index):
        yield task_index, list(repeats)


def _task_index(found: Row | Outcome) -> int:
    return found.row.task_index if isinstance(found, Outcome) else found.task_index


SHOWN_RANGES = 5


class RepeatedLines:
    """Numbers of the lines that repeat a rollout of an earlier line."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int) -> None:
        self._numbers.add(number)

    def warn(self, path: Path) -> None:
        """Log how many there are, and how to remove them."""
        if not self._numbers:
            return
        ranges = _ranges(sorted(self._numbers))
        which = "the first of them" if len(ranges) > SHOWN_RANGES else "them"
        command = f"sed -i '{';'.join(f'{one}d' for one in ranges[:SHOWN_RANGES])}' {shlex.quote(str(path))}"
        lines = count_of(len(self._numbers), "line")
        logger.warning(
            "%s of %s repeat rollouts of earlier lines and do not count. To remove %s: %s",
            *(lines, path, which, command),
        )


def _ranges(numbers: list[int]) -> list[str]:
    """Sorted line numbers as `sed` takes them: `3`, `5,8`."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda one: one[1] - one[0])]
    return [f"{run[0]},{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]


class SeenRollouts:
    """Recognizes rollouts that were read already, by their row, repeat and response: outputs of several runs in one
    file have other responses. Takes about 100 bytes for each."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def is_repeated(self, record: Mapping[str, Any]) -> bool:
        """True if the record's rollout was asked for before. Never for a failure, or a record without identity."""
        identity = [record.get(name) for name in (TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME)]
        if None in identity or "reward" not in record:
            return False
        content = orjson.dumps([*identity, record.get("response")], default=_tokens_digest)
        digest = hashlib.blake2b(content, digest_size=12).digest()
        if digest in self._digests:
            return True
        self._digests.add(digest)
        return False


def _tokens_digest(numbers: Any) -> str:
    return hashlib.blake2b(bytes(numbers), digest_size=12).hexdigest()


class StoredRolloutsError(ConfigError):
    """A file of rollouts, or the dataset given with it, does not hold what the job needs."""


class StoredLine(NamedTuple):
    """One record, and where it is."""

    offset: int
    place: str
    """The file and the line, for messages."""
    record: dict[str, Any]
    number: int = 0
    """The number of the line, from 1."""


def read_records(path: Path) -> Iterator[StoredLine]:
    """Yield the records of a JSONL file. Half a line at its end is skipped: a run may still be writing it."""
    offset = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{path}, line {number}"
            try:
                record = read_record(line) if line.strip() else None
            except ValueError as error:
                if line.endswith(b"\n"):
                    raise StoredRolloutsError(f"{place} is not JSON: {error}.") from error
                logger.warning("%s is half a record and passed over", place)
                return
            if isinstance(record, dict):
                yield StoredLine(offset, place, record, number)
            elif record is not None:
                raise StoredRolloutsError(f"{place} is {json_type(record)}, expected a JSON object.")
            offset += len(line)


def read_rollouts(path: Path, *, warn: bool = True) -> Iterator[StoredLine]:
    """Yield the records of a JSONL file, each rollout once. Lines that repeat one are skipped, with a warning."""
    seen, repeated = SeenRollouts(), RepeatedLines()
    for stored in read_records(path):
        if seen.is_repeated(stored.record):
            repeated.add(stored.number)
        else:
            yield stored
    if warn:
        repeated.warn(path)
