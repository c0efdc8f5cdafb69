"""Tokens of rollouts in Arrow or Parquet files: one row for each segment, compressed with zstd.

`+tokens_output` of a collection appends to an Arrow stream, a batch at a time. A batch is on disk before the lines of
its rollouts are in the JSONL output, which then holds text only; what a kill left incomplete is dropped by the next
run. A rollout that was made again has later rows, which count."""

import contextlib
import fcntl
import logging
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import orjson
from msgspec.structs import replace

from nemo_gym.common.forks import close_in_forks
from nemo_gym.common.paths import find
from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.errors import ConfigError, MissingExtraError, StorageError
from nemo_gym.llm_api.base import POLICY_VERSION_FIELD, TOKEN_FIELDS, VERSION_RUNS_FIELD, JsonObject
from nemo_gym.llm_api.stored_tokens import PROMPT_NAME, TokenItem, read_record
from nemo_gym.llm_api.tokens import LOG_PROBS, PROMPT, SAMPLED, TokenArray, TokenTraceError
from nemo_gym.participants import POLICY, policy_records
from nemo_gym.rollouts.resume import read_manifest
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME, Outcome
from nemo_gym.training.samples import reward_of
from nemo_gym.training.token_traces import ModelCall, PolicyVersion, Segment, trace_of

logger = logging.getLogger(__name__)

ARROW, PARQUET = ".arrow", ".parquet"
ROWS_AT_ONCE = 64
"""Rows in a batch of an export: long rollouts take megabytes each."""


class RolloutKey(NamedTuple):
    """Which rollout a segment is of."""

    task_index: int | None
    repeat_index: int | None
    row_hash: str | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        return cls(*(record.get(name) for name in (TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME)))


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A row of a token file."""

    key: RolloutKey
    policy: str
    index: int
    """Which segment of the policy, from 0."""
    segment: Segment
    reward: float
    advantage: float | None = None


def segments_of(record: Mapping[str, Any], key: RolloutKey | None = None) -> list[StoredSegment]:
    """The segments of every policy of a scored record, without advantages."""
    return [
        StoredSegment(key or RolloutKey.of(record), policy, index, segment, reward_of(part))
        for policy, part in policy_records(dict(record)).items()
        for index, segment in enumerate(trace_of(part).segments)
    ]


def _arrow() -> Any:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("An Arrow or Parquet file of tokens", "tokens") from error
    return pyarrow


def _schema(pa: Any) -> Any:
    call = pa.struct(
        [
            ("item", pa.int32()),
            ("start", pa.int32()),
            ("end", pa.int32()),
            ("version", pa.string()),
            ("role", pa.string()),
        ]
    )
    span = pa.struct([("start", pa.int32()), ("end", pa.int32()), ("version", pa.string())])
    return pa.schema(
        [
            (TASK_INDEX_FIELD, pa.int64()),
            (REPEAT_INDEX_KEY_NAME, pa.int64()),
            (ROW_HASH_KEY_NAME, pa.string()),
            ("policy", pa.string()),
            ("segment", pa.int32()),
            ("reward", pa.float64()),
            ("advantage", pa.float64()),
            ("prompt_length", pa.int32()),
            ("ids", pa.list_(pa.int32())),
            ("loss_mask", pa.list_(pa.bool_())),
            ("log_probs", pa.list_(pa.float32())),
            ("version_spans", pa.list_(span)),
            ("calls", pa.list_(call)),
        ]
    )


KEY_FIELDS = (TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME)


def _batch(rows: Sequence[StoredSegment]) -> Any:
    """The rows as a record batch. Versions are JSON texts: 3 and "3" are two."""
    pa = _arrow()
    flat = [row.segment.flatten() for row in rows]
    offsets = pa.array([0, *accumulate(len(tokens.ids) for tokens in flat)], pa.int32())

    def lists(values: Iterable[Sequence[Any]], kind: Any) -> Any:
        return pa.ListArray.from_arrays(offsets, pa.concat_arrays([pa.array(each, kind) for each in values]))

    spans = [[{**span._asdict(), "version": _text(span.version)} for span in tokens.version_spans] for tokens in flat]
    columns = [
        *([getattr(row.key, name) for row in rows] for name in RolloutKey._fields),
        [row.policy for row in rows],
        [row.index for row in rows],
        [row.reward for row in rows],
        [row.advantage for row in rows],
        [tokens.prompt_length for tokens in flat],
        lists((tokens.ids for tokens in flat), pa.int32()),
        lists(([*map(bool, tokens.loss_mask)] for tokens in flat), pa.bool_()),
        lists((tokens.log_probs for tokens in flat), pa.float32()),
        spans,
        [[_call_row(call) for call in row.segment.calls] for row in rows],
    ]
    schema = _schema(pa)
    pairs = zip(columns, schema, strict=True)
    arrays = [value if isinstance(value, pa.Array) else pa.array(value, field.type) for value, field in pairs]
    return pa.record_batch(arrays, schema=schema)


def _call_row(call: ModelCall) -> JsonObject:
    version = None if call.policy_version is None else _text(call.policy_version)
    return {
        "item": call.item,
        "start": len(call.prompt_ids),
        "end": call.length,
        "version": version,
        "role": call.role,
    }


def _text(version: PolicyVersion) -> str:
    return orjson.dumps(version).decode()


def _rows(batch: Any) -> Iterator[StoredSegment]:
    """The rows of a record batch."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    plain = {name: columns[name].to_pylist() for name in columns if name not in ("ids", "loss_mask", "log_probs")}
    for number in range(batch.num_rows):
        row = {name: values[number] for name, values in plain.items()}
        ids = TokenArray(_numbers("i", columns["ids"][number].values))
        values = TokenArray(_numbers("f", columns["log_probs"][number].values))
        calls = [_call(each, ids, values, row["version_spans"]) for each in row["calls"]]
        key = RolloutKey(*(row[name] for name in KEY_FIELDS))
        yield StoredSegment(key, row["policy"], row["segment"], Segment(calls), row["reward"], row["advantage"])


def _numbers(kind: str, values: Any) -> "array[Any]":
    """The numbers of an Arrow array, which may be a part of a longer one."""
    size, data = array(kind).itemsize, values.buffers()[1]
    found = array(kind)
    if data is not None:
        found.frombytes(data[values.offset * size : (values.offset + len(values)) * size])
    return found


def _call(row: JsonObject, ids: TokenArray[int], values: TokenArray[float], spans: list[JsonObject]) -> ModelCall:
    start, end = row["start"], row["end"]
    own = [span for span in spans if start <= span["start"] < end]
    runs = [(orjson.loads(span["version"]), span["end"] - span["start"]) for span in own] if len(own) > 1 else ()
    version = None if row["version"] is None else orjson.loads(row["version"])
    return ModelCall(ids[:start], ids[start:end], values[start:end], version, row["item"], runs, row["role"])


class TokenWriter:
    """Appends segments to an Arrow stream. Opening it drops what a kill left incomplete. One process at a time."""

    def __init__(self, path: Path) -> None:
        pa = _arrow()
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(f"Cannot write {path}: {error.strerror}. Choose another tokens_output.") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            close_in_forks(self._fd)  # a forked child would keep the lock
            self._end = _complete_bytes(pa, path)
            os.ftruncate(self._fd, self._end)
        except BlockingIOError as error:
            os.close(self._fd)
            raise ConfigError(f"Another process is writing {path}. Choose another tokens_output.") from error
        except ConfigError:
            os.close(self._fd)
            raise

    def close(self) -> None:
        os.close(self._fd)

    def add(self, rows: Sequence[StoredSegment]) -> None:
        """Write these, all of them or none, down to the disk."""
        if not rows:
            return
        written, data = 0, memoryview(_encoded(rows, with_schema=self._end == 0))
        try:
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self._end + written)
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise StorageError(f"Cannot write {self.path}: {error.strerror}.") from error
        self._end += written

    def split(self, outcomes: Sequence[Outcome]) -> list[bytes]:
        """Write the tokens of scored rollouts, and return their lines without them. A rollout whose tokens are not
        valid keeps them in its line."""
        rows: list[StoredSegment] = []
        lines: list[bytes] = []
        for outcome in outcomes:
            if PROMPT_NAME not in outcome.record:
                lines.append(outcome.line())
                continue
            record = read_record(outcome.record)
            row = outcome.row
            try:
                rows += segments_of(record, RolloutKey(row.task_index, row.repeat_index, row.row_hash))
            except TokenTraceError as error:
                logger.warning("row %d keeps its tokens in the output: %s", row.task_index, error)
                lines.append(outcome.line())
                continue
            lines.append(replace(outcome, record=orjson.dumps(_without_tokens(record))).line())
        self.add(rows)
        return lines


def _encoded(rows: Sequence[StoredSegment], *, with_schema: bool) -> bytes:
    """A batch as it is appended to a stream. Only the first has the schema before it."""
    pa = _arrow()
    batch = _batch(rows)
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer.write_batch(batch)
    end = sink.tell()  # closing the writer would add a mark of the end
    data = sink.getvalue()
    start = 0 if with_schema else _schema_bytes(pa, data)
    return bytes(memoryview(data)[start:end])


def _schema_bytes(pa: Any, stream: Any) -> int:
    with pa.BufferReader(stream) as source:
        pa.ipc.read_message(source)
        size: int = source.tell()
    return size


def _complete_bytes(pa: Any, path: Path) -> int:
    """Where the last complete batch ends. ConfigError for a file that is no stream of tokens."""
    if path.stat().st_size == 0:
        return 0
    try:
        with pa.OSFile(str(path)) as source:
            found = pa.ipc.open_stream(source).schema
    except pa.ArrowInvalid as error:
        if path.stat().st_size < _SCHEMA_BYTES:
            return 0
        raise ConfigError(f"{path} is not an Arrow stream. Choose another tokens_output.") from error
    if found != _schema(pa):
        raise ConfigError(f"{path} is an Arrow stream with other columns. Choose another tokens_output.")
    return _message_offsets(pa, path)[-1]


def _message_offsets(pa: Any, path: Path) -> list[int]:
    """Where the schema and each complete batch of a stream end."""
    offsets = []
    with pa.OSFile(str(path)) as source, contextlib.suppress(pa.ArrowInvalid, EOFError, OSError):
        while True:
            pa.ipc.read_message(source)
            offsets.append(source.tell())
    return offsets


_SCHEMA_BYTES = 4096
"""More than the schema takes: a shorter file may be one that a kill left with half of it."""


def _without_tokens(record: JsonObject) -> JsonObject:
    """The record without what a token file holds of it."""
    fields = (*TOKEN_FIELDS, POLICY_VERSION_FIELD, VERSION_RUNS_FIELD)
    return _with_output(
        record,
        lambda _policy, output: [{name: item[name] for name in item if name not in fields} for item in output],
    )


def _with_output(record: JsonObject, change: Callable[[str, list[Any]], list[Any]]) -> JsonObject:
    """The record with the output of every policy changed."""
    response = record["response"]
    main, others = response.get("participant") or POLICY, response.get("participants")
    changed = {**response, "output": change(main, response["output"])}
    if others:
        changed["participants"] = {
            name: {**side, "response": {**side["response"], "output": change(name, side["response"]["output"])}}
            if side["is_trainable"]
            else side
            for name, side in others.items()
        }
    return {**record, "response": changed}


def write_tokens(path: Path, rows: Iterable[StoredSegment]) -> int:
    """Write segments to a new Arrow or Parquet file, as its name ends. Returns how many there were."""
    pa = _arrow()
    schema, count = _schema(pa), 0
    if path.suffix == PARQUET:
        writer = pa.parquet.ParquetWriter(path, schema, compression="zstd")
    else:
        writer = pa.ipc.new_stream(str(path), schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    with writer:
        remaining = iter(rows)
        while some := list(islice(remaining, ROWS_AT_ONCE)):
            writer.write_batch(_batch(some))
            count += len(some)
    return count


def read_tokens(path: Path) -> Iterator[StoredSegment]:
    """The segments in an Arrow or Parquet file, up to the last complete batch."""
    for batch in _batches(path):
        yield from _rows(batch)


def token_records(path: Path) -> Iterator[JsonObject]:
    """The rollouts of a token file as records that have tokens only, one for each policy."""
    for (key, policy), rows in groupby(read_tokens(path), key=lambda row: (row.key, row.policy)):
        segments = [*rows]
        calls = [call for row in segments for call in row.segment.calls]
        said: JsonObject = {"type": "message", "role": "assistant", "produced_by": policy}
        content = [{"type": "output_text", "text": "", "annotations": []}]
        output = [_item({**said, "content": content}, call) for call in sorted(calls, key=lambda call: call.item or 0)]
        names = (TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME)
        fields = {"reward": segments[0].reward, "policy": policy, "response": {"output": output}}
        yield {**dict(zip(names, key, strict=True)), **fields}


def _batches(path: Path, options: Any = None) -> Iterator[Any]:
    pa = _arrow()
    try:
        if path.suffix == PARQUET:
            with pa.parquet.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=ROWS_AT_ONCE)
            return
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source, options=options) as batches:
            while True:
                try:
                    yield batches.read_next_batch()
                except StopIteration:
                    return
                except (pa.ArrowInvalid, OSError):
                    logger.warning("%s ends in an incomplete batch, which is passed over", path)
                    return
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{path} is not a file of tokens: {error}") from error


class TokenFile:
    """Puts the tokens of an Arrow stream back into the records that they were taken from. Keeps about 200 bytes for
    each rollout in memory, and the batch that was read last."""

    def __init__(self, path: Path) -> None:
        self._path, self._pa = path, _arrow()
        self._places: dict[RolloutKey, int] = {}
        """The last batch with segments of a rollout: all of them are in one."""
        self._offsets = _message_offsets(self._pa, path)
        options = self._pa.ipc.IpcReadOptions(included_fields=list(range(len(KEY_FIELDS))))
        for number, batch in enumerate(_batches(path, options)):
            for key in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                self._places[RolloutKey(*key)] = number
        self._read: tuple[int, dict[RolloutKey, list[StoredSegment]]] = -1, {}

    def restored(self, record: JsonObject) -> JsonObject:
        """The record with its tokens, if the file has them."""
        rows = self._rows_of(RolloutKey.of(record))
        if not rows or not isinstance(record.get("response"), dict):
            return record

        def with_tokens(policy: str, output: list[Any]) -> list[Any]:
            by_item = {call.item: call for row in rows if row.policy == policy for call in row.segment.calls}
            return [_item(item, by_item[place]) if place in by_item else item for place, item in enumerate(output)]

        return _with_output(record, with_tokens)

    def _rows_of(self, key: RolloutKey) -> list[StoredSegment]:
        number = self._places.get(key)
        if number is None:
            return []
        if self._read[0] != number:
            found: dict[RolloutKey, list[StoredSegment]] = {}
            for row in _rows(self._batch(number)):
                found.setdefault(row.key, []).append(row)
            self._read = number, found
        return self._read[1][key]

    def _batch(self, number: int) -> Any:
        start, end = self._offsets[number : number + 2]
        with self._path.open("rb") as file:
            schema = file.read(self._offsets[0])
            file.seek(start)
            data = schema + file.read(end - start)
        return self._pa.ipc.open_stream(data).read_next_batch()


def token_restorer(output: Path) -> Callable[[JsonObject], JsonObject]:
    """The function that puts tokens back into the records of an output, if they were written to a file of their own:
    its manifest says where that is, relative to the output."""
    manifest = read_manifest(output)
    named = None if manifest is None else manifest.options.get("tokens_output")
    if not named:
        return lambda record: record
    path = find(str(output.parent / named), what="file of tokens")
    state = path.stat()
    return _token_file(path, state.st_mtime_ns, state.st_size).restored


@lru_cache(maxsize=2)
def _token_file(path: Path, _changed_at: int, _size: int) -> TokenFile:
    """The file, whose index is kept as long as it does not change."""
    return TokenFile(path)


def _item(item: JsonObject, call: ModelCall) -> TokenItem:
    fields: JsonObject = {PROMPT: call.prompt_ids, SAMPLED: call.sampled_ids, LOG_PROBS: call.log_probs}
    fields |= {} if call.policy_version is None else {POLICY_VERSION_FIELD: call.policy_version}
    return TokenItem({**item, **fields, **({VERSION_RUNS_FIELD: call.version_runs} if call.version_runs else {})})
