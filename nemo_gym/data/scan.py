"""Check and measure a whole file: part by part, on several cores, in constant memory.

Parts depend on the file alone and are merged in order, so the result is the same on any number of cores.
"""

import asyncio
import importlib.util
import logging
import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import orjson

from nemo_gym.common.interrupts import interrupts
from nemo_gym.common.statistics import Moments
from nemo_gym.compute.pool import Compute, ComputeError
from nemo_gym.data.digests import DigestSet, Spill, digest, packed, sketch
from nemo_gym.data.row_check import AGENT_REF_KEY, BadRowError, EnvironmentCode, RowCheck, row_validator
from nemo_gym.errors import ConfigError, MissingExtraError
from nemo_gym.llm_api.base import JsonObject

if TYPE_CHECKING:
    from nemo_gym.server.seed import SlowCheck

COUNT, AVERAGE, MINIMUM, MAXIMUM = "Total # non-null values", "Average", "Min", "Max"
DEVIATION = "Standard deviation"

EXAMPLES = "Number of examples"
TOOLS = "Number of tools"
WORDS = "Json-dumped number of words (proxy for token count)"
TURNS = "Number of turns"
TEMPERATURE = "Temperature"
TOKENS = "Input length in OpenAI tokens"
UNIQUE_PARAMS = "Number of unique create params"
UNIQUE_USER_MESSAGES = "Number of unique user messages"

ALWAYS_WRITTEN = (TOOLS, WORDS, TURNS, TEMPERATURE)
"""Statistics that are written even if no row has a value."""
SAMPLING_PARAMETERS = {"top_p": "Top p", "max_output_tokens": "Max output tokens", "top_logprobs": "Top logprobs"}
"""Sampling parameters of a row besides the temperature, each with its name as a statistic."""
BUILT_IN = frozenset((EXAMPLES, *ALWAYS_WRITTEN, TOKENS, UNIQUE_PARAMS, UNIQUE_USER_MESSAGES))


class AvgMinMax(Moments):
    """Statistics of numbers, in the format of the metrics files beside datasets."""

    def aggregate(self) -> Mapping[str, float]:
        """Return the rounded statistics as they are written. All are 0 without numbers."""
        mean, least, most = (self.mean, self.min, self.max) if self.total else (0.0, 0.0, 0.0)
        found = {AVERAGE: mean, MINIMUM: least, MAXIMUM: most, DEVIATION: self.deviation()}
        rounded = {name: round(float(value), 2 if abs(value) >= 1 else 3) for name, value in found.items()}
        return {COUNT: self.total, **rounded}


logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_FIELDS = 1000
"""Maximum number of row fields with statistics. It bounds files whose keys are data."""
OFFSET_BYTES = 8

_NOT_FIELDS = frozenset(("response", AGENT_REF_KEY))
_MEASURED = {"tools": TOOLS, "temperature": TEMPERATURE, **SAMPLING_PARAMETERS}
_SPACES = re.compile(rb" +")


class ChunkTask(NamedTuple):
    """A part of a file, and the options for scanning it."""

    path: str
    start: int
    end: int
    max_row_bytes: int
    count_tokens: bool = False
    find_near_duplicates: bool = False
    environment: EnvironmentCode | None = None
    failed_checks: "Mapping[SlowCheck, str] | None" = None
    """The failed slow checks of the environment, with their reasons."""


Packed = dict[int, bytes]


@dataclass(slots=True)
class ChunkStatistics:
    """The statistics of a part, ready to be merged."""

    rows: int = 0
    """Lines that are not blank, including bad rows."""
    bad: dict[str, list[int]] = field(default_factory=dict)
    """Indices of bad rows in this part, from 0, by reason."""
    is_plain: bool = True
    """True if every line is one row without surrounding spaces and without an agent."""
    numbers: dict[str, AvgMinMax] = field(default_factory=dict)
    """Built-in statistics by name."""
    field_numbers: dict[str, AvgMinMax] = field(default_factory=dict)
    field_texts: dict[str, int] = field(default_factory=dict)
    """Number of texts of each field."""
    field_digests: dict[str, Packed] = field(default_factory=dict)
    params: Packed = field(default_factory=dict)
    """The digest of each row's parameters, and the offset of the row."""
    user_messages: Packed = field(default_factory=dict)
    near: Packed = field(default_factory=dict)
    """The keys that nearly equal prompts share, and the offset of the row."""


def examine(task: ChunkTask) -> ChunkStatistics:
    """Check and measure every row of a part."""
    observer = _Observer(task)
    with open(task.path, "rb") as file:
        for start, line in lines_of(file, task.start, task.end, max_row_bytes=task.max_row_bytes):
            observer.observe(start, line)
    return observer.statistics()


def slow_checks(task: ChunkTask) -> "set[SlowCheck]":
    """Return the slow checks of the rows of a part."""
    check = RowCheck(task.environment)
    with open(task.path, "rb") as file:
        lines = lines_of(file, task.start, task.end, max_row_bytes=task.max_row_bytes)
        found = (check.slow_check(line.strip()) for _, line in lines if line is not None)
        return {each for each in found if each is not None}


class _Observer:
    """Collects the statistics of one part."""

    def __init__(self, task: ChunkTask) -> None:
        self._task, self._found = task, ChunkStatistics()
        self._read = RowCheck(task.environment, task.failed_checks).read
        self._count_tokens: Callable[[JsonObject], int] | None = token_counter() if task.count_tokens else None
        self._numbers: dict[str, list[float]] = defaultdict(list)
        self._field_numbers: dict[str, list[float]] = {}
        self._field_texts: dict[str, list[str]] = {}
        self._words, self._turns = self._numbers[WORDS], self._numbers[TURNS]
        self._params: list[bytes] = []
        self._user_messages: list[bytes] = []
        self._near: list[bytes] = []

    def observe(self, start: int, line: bytes | None) -> None:
        if line is None:
            self._refuse(f"longer than {self._task.max_row_bytes} bytes")
            return
        if not line.endswith(b"}"):
            if not line:
                return
            self._found.is_plain = False
            line = line.strip()
            if not line:
                return
        try:
            fields, params, compact, separators = self._read(line)
        except BadRowError as error:
            self._refuse(str(error))
            return
        self._found.rows += 1
        self._words.append(1 + separators + _space_runs(compact))
        self._observe_params(params, compact, start.to_bytes(OFFSET_BYTES, "big"))
        for name, value in fields.items():
            if name in _NOT_FIELDS:
                self._found.is_plain = self._found.is_plain and name != AGENT_REF_KEY
            elif type(value) is str and (texts := self._field_texts.get(name)) is not None:
                texts.append(value)
            else:
                self._observe_field(name, value)

    def _refuse(self, reason: str) -> None:
        self._found.bad.setdefault(reason, []).append(self._found.rows)
        self._found.rows += 1
        self._found.is_plain = False

    def _observe_params(self, params: JsonObject, compact: bytes, place: bytes) -> None:
        self._params.append(digest(compact) + place)
        messages = user_messages(params["input"])
        if messages:
            self._turns.append(len(messages))
            self._user_messages += map(digest, messages)
        if self._count_tokens is not None:
            self._numbers[TOKENS].append(self._count_tokens(params))
        if self._task.find_near_duplicates:
            self._near += [key + place for key in sketch(b"\n".join(messages))]
        for name, value in params.items():
            if name in _MEASURED and value is not None:
                number = len(value) if name == "tools" else value if type(value) is float else float(value)
                if isfinite(number):
                    self._numbers[_MEASURED[name]].append(number)

    def _observe_field(self, name: str, value: Any) -> None:
        kind = type(value)
        if kind is str:
            self._texts_of(name).append(value)
        elif kind is int or kind is float or kind is bool:
            if isfinite(value):
                self._numbers_of(name).append(value)
        elif kind is list:
            for element in value:
                if type(element) is not list:
                    self._observe_field(name, element)

    def _texts_of(self, name: str) -> list[str]:
        found = self._field_texts.get(name)
        return self._new_list(self._field_texts, name) if found is None else found

    def _numbers_of(self, name: str) -> list[float]:
        found = self._field_numbers.get(name)
        return self._new_list(self._field_numbers, name) if found is None else found

    def _new_list(self, fields: dict[str, list[Any]], name: str) -> list[Any]:
        return fields.setdefault(name, []) if len(fields) < MAX_FIELDS else []

    def statistics(self) -> ChunkStatistics:
        found = self._found
        found.numbers = {name: AvgMinMax.of(values) for name, values in self._numbers.items() if values}
        found.field_numbers = {name: AvgMinMax.of(values) for name, values in self._field_numbers.items()}
        found.field_texts = {name: len(texts) for name, texts in self._field_texts.items()}
        found.field_digests = {
            name: packed([digest(text.encode()) for text in set(texts)]) for name, texts in self._field_texts.items()
        }
        found.params, found.near = packed(self._params), packed(self._near)
        found.user_messages = packed(self._user_messages)
        return found


def user_messages(asked: Any) -> list[bytes]:
    """Return the user messages in the `input` of a row."""
    if type(asked) is str:
        return [asked.encode()]
    contents = [item.get("content") for item in asked if item.get("role") == "user"]
    return [content.encode() if type(content) is str else orjson.dumps(content) for content in contents]


def _space_runs(compact: bytes) -> int:
    """Count runs of spaces in compact JSON, which has none outside of strings."""
    if compact.rfind(b"  ") < 0:
        return compact.count(b" ")
    return len(_SPACES.findall(compact))


BLOCK_BYTES = 256 * 2**10
"""Small enough to stay in the processor's cache while its lines are read."""


def lines_of(
    file: IO[bytes], start: int, end: int, *, max_row_bytes: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, bytes | None]]:
    """Yield the offset and the text of each line between two offsets of a file, without line breaks.

    The text of a line longer than `max_row_bytes` is None. Such a line is never in memory as a whole.
    """
    file.seek(start)
    begun: list[bytes] = []
    length = 0
    while start + length < end and (block := file.read(min(block_bytes, end - start - length))):
        *lines, rest = block.split(b"\n")
        for end_of_line in lines:
            length += len(end_of_line)
            line = b"".join((*begun, end_of_line)) if begun else end_of_line
            begun = []
            yield start, line if length <= max_row_bytes else None
            start += length + 1
            length = 0
        length += len(rest)
        if length <= max_row_bytes:
            begun.append(rest)
        else:
            begun = []
    if length:
        yield start, b"".join(begun) if length <= max_row_bytes else None


CHUNK_BYTES = 4 * 2**20
CHUNKS_AHEAD = 2
"""Parts queued per process, so that none waits while an earlier part is merged."""
MAX_ROW_BYTES = 64 * 2**20
"""Default upper bound for the length of a row. A row with a few images has some megabytes."""
MAX_REASONS = 50
"""Upper bound for distinct reasons why rows of a file are bad."""
OTHER_REASONS = "other reasons"
_CHUNK_TIMEOUT_S = 3600.0


class Run(Protocol):
    """Calls a function with a part of a file, here or in another process."""

    def __call__(self, function: Callable[[ChunkTask], T], task: ChunkTask, /) -> Coroutine[Any, Any, T]: ...


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of a scan."""

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
    """Index of its first row in the file."""
    environment: EnvironmentCode | None = None
    """The environment whose rules the rows must follow, besides the request schema."""


@dataclass(slots=True)
class TextStatistics:
    """The texts of one field: their digests and their number."""

    digests: DigestSet
    total: int = 0


@dataclass(slots=True)
class FileStatistics:
    """The statistics of a dataset after a scan."""

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
    field_texts: dict[str, TextStatistics] = field(default_factory=dict)

    @classmethod
    def empty(cls, extent: Extent, spill: Spill) -> "FileStatistics":
        located = {"extra_bytes": OFFSET_BYTES}
        return cls(extent, spill.new_set(**located), spill.new_set(), spill.new_set(**located))

    @property
    def num_bad(self) -> int:
        return sum(map(len, self.bad.values()))

    def merge(self, chunk: ChunkStatistics, spill: Spill) -> None:
        """Add the statistics of the next part."""
        for reason, places in chunk.bad.items():
            known = reason if reason in self.bad or len(self.bad) < MAX_REASONS else OTHER_REASONS
            self.bad.setdefault(known, []).extend(self.extent.first_row + self.rows + place for place in places)
        self.rows += chunk.rows
        self.is_plain = self.is_plain and chunk.is_plain
        _merge_numbers(self.numbers, chunk.numbers)
        _merge_numbers(self.field_numbers, chunk.field_numbers)
        for name, total in chunk.field_texts.items():
            if name not in self.field_texts:
                self.field_texts[name] = TextStatistics(spill.new_set())
            self.field_texts[name].total += total
            self.field_texts[name].digests.add(chunk.field_digests[name])
        self.params.add(chunk.params)
        self.user_messages.add(chunk.user_messages)
        self.near.add(chunk.near)


def _merge_numbers(known: dict[str, AvgMinMax], found: dict[str, AvgMinMax]) -> None:
    for name, statistics in found.items():
        known.setdefault(name, AvgMinMax()).add(statistics)


async def scan(
    extents: Iterable[Extent], options: ScanOptions, spill: Spill, *, on_progress: Callable[[int], None] | None = None
) -> list[FileStatistics]:
    """Return the statistics of each dataset. `on_progress` is called with the number of bytes of each part."""
    found = [FileStatistics.empty(extent, spill) for extent in extents]
    begun: deque[tuple[FileStatistics, ChunkTask, asyncio.Task[ChunkStatistics]]] = deque()

    async def merge_next() -> None:
        statistics, task, running = begun.popleft()
        statistics.merge(await running, spill)
        if on_progress is not None:
            on_progress(task.end - task.start)

    async with AsyncExitStack() as stack:
        run = await _runner(stack, found, options)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        failed = [await _failed_checks(each.extent, options, run) for each in found]
        for each, checks in zip(found, failed, strict=True):
            for task in _tasks(each.extent, options, checks):
                begun.append((each, task, group.create_task(run(examine, task))))
                if len(begun) >= CHUNKS_AHEAD * options.num_processes:
                    await merge_next()
        while begun:
            await merge_next()
    return found


async def _runner(stack: AsyncExitStack, found: list[FileStatistics], options: ScanOptions) -> Run:
    """Return a function that runs a part in another process or, for little data, in this one."""
    size = sum(each.extent.end - each.extent.start for each in found)
    if options.num_processes == 1 or size <= options.chunk_bytes:
        return _run_here
    compute = await stack.enter_async_context(Compute(workers=options.num_processes))

    async def run(function: Callable[[ChunkTask], T], task: ChunkTask) -> T:
        return await compute.run(function, task, timeout_s=_CHUNK_TIMEOUT_S)

    return run


async def _run_here(function: Callable[[ChunkTask], T], task: ChunkTask) -> T:
    await asyncio.sleep(0)  # so that an interrupt is handled between parts
    with interrupts.stopping_with(None):  # the environment's code may block
        return function(task)


async def _failed_checks(extent: Extent, options: ScanOptions, run: Run) -> "dict[SlowCheck, str]":
    """Run the slow checks of a dataset, each once, and return the failed ones with their reasons."""
    from nemo_gym.server.seed import SlowChecks

    if extent.environment is None or not row_validator(extent.environment).has_slow_check:
        return {}
    failed: dict[SlowCheck, str] = {}
    unavailable: dict[str, int] = {}
    outcomes = SlowChecks()
    async with Compute(workers=options.num_processes) as compute:

        async def run_check(check: "SlowCheck") -> None:
            try:
                if reason := await outcomes.reason(check, compute):
                    failed[check] = reason
            except (ImportError, ComputeError) as error:
                unavailable[str(error)] = unavailable.get(str(error), 0) + 1

        for task in _tasks(extent, options):
            async with asyncio.TaskGroup() as group:
                for check in await run(slow_checks, task):
                    group.create_task(run_check(check))
    for error, count in unavailable.items():
        logger.warning("%d checks of rows by '%s' could not be run: %s", count, extent.environment.name, error)
    return failed


def _tasks(
    extent: Extent, options: ScanOptions, failed_checks: "Mapping[SlowCheck, str] | None" = None
) -> Iterator[ChunkTask]:
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
                failed_checks,
            )
            start = end


def _end_of_line(file: IO[bytes], position: int) -> int:
    while part := file.readline(2**20):
        position += len(part)
        if part.endswith(b"\n"):
            break
    return position


def extent_of(path: Path, start_idx: int | None = None, end_idx: int | None = None) -> Extent:
    """Return the byte range of the rows from `start_idx` up to `end_idx`. Blank lines do not count."""
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


EXTRA = "data"
MAX_KNOWN_TOOLS = 1000
"""Tool lists with a cached token count. It bounds memory."""


def can_count_tokens() -> bool:
    """True if the tokenizer is installed."""
    return importlib.util.find_spec("rs_bpe") is not None


@cache
def token_counter() -> Callable[[JsonObject], int]:
    """Return a function that counts the tokens of a row's parameters: instructions, input, and tools as JSON."""
    try:
        from rs_bpe.bpe import openai  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingExtraError("Counting OpenAI tokens", EXTRA) from error
    count: Callable[[str], int] = openai.o200k_base().count
    seen_tools: dict[bytes, int] = {}

    def count_tools(tools: Any) -> int:
        """Count with a cache, since rows of a dataset mostly offer the same tools."""
        text = orjson.dumps(tools)
        if text not in seen_tools:
            if len(seen_tools) >= MAX_KNOWN_TOOLS:
                seen_tools.clear()
            seen_tools[text] = count(text.decode())
        return seen_tools[text]

    def count_tokens(params: JsonObject) -> int:
        total = sum(map(count, _texts(params)))
        return total + count_tools(params["tools"]) if params.get("tools") else total

    return count_tokens


def _texts(params: JsonObject) -> Iterator[str]:
    if params.get("instructions"):
        yield params["instructions"]
    asked = params["input"]
    if isinstance(asked, str):
        yield asked
        return
    for item in asked:
        content = item.get("content")
        yield content if isinstance(content, str) else orjson.dumps(item).decode()
