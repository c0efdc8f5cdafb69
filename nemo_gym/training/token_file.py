"""Tokens of rollouts in Arrow or Parquet files: one row for each segment, compressed with zstd.

`+tokens_output` of a collection appends to an Arrow stream, a batch at a time. A batch is on disk before the lines of
its rollouts are in the JSONL output, which then holds text only; what a kill left incomplete is dropped by the next
run. Each record says which bytes and rows of which file are its own, with a digest: tokens of another attempt or run
are never taken for them."""

import contextlib
import logging
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, groupby, islice
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, Self

import orjson
from msgspec.structs import replace

from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.errors import ConfigError, MissingExtraError
from nemo_gym.llm_api.base import POLICY_VERSION_FIELD, TOKEN_FIELDS, VERSION_RUNS_FIELD, JsonObject
from nemo_gym.llm_api.stored_tokens import PROMPT_NAME, TokenItem, read_record
from nemo_gym.llm_api.tokens import LOG_PROBS, PROMPT, SAMPLED, TokenArray, TokenTraceError
from nemo_gym.participants import POLICY, policy_records
from nemo_gym.rollouts.store import AppendOnlyFile, FileRole
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME, TOKENS_KEY_NAME, Outcome
from nemo_gym.training.samples import reward_of
from nemo_gym.training.token_traces import MALFORMED, ModelCall, PolicyVersion, Segment, trace_of

logger = logging.getLogger(__name__)

ARROW, PARQUET = ".arrow", ".parquet"
ROWS_AT_ONCE = ROLLOUTS_AT_ONCE = 64
"""Of an export and of a collection, in a batch: long rollouts take megabytes each."""


class RolloutKey(NamedTuple):
    """Which rollout a segment is of."""

    task_index: int | None
    repeat_index: int | None
    row_hash: str | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        key = cls(*(record.get(name) for name in (TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME)))
        if not {*map(type, key[:2])} <= {int, NoneType} or not isinstance(key.row_hash, str | None):
            raise TokenTraceError(f"a record names its rollout {tuple(key)!r:.100}; expected two numbers and a hash")
        return key


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
    runs = [*_version_runs(start, end, spans)]
    version = None if row["version"] is None else orjson.loads(row["version"])
    return ModelCall(
        ids[:start],
        ids[start:end],
        values[start:end],
        version,
        row["item"],
        runs if len(runs) > 1 else (),
        row["role"],
    )


def _version_runs(start: int, end: int, spans: list[JsonObject]) -> Iterator[tuple[PolicyVersion, int]]:
    """The versions of the tokens of a call. Those in no span have none."""
    for span in (each for each in spans if start <= each["start"] < end):
        if span["start"] > start:
            yield None, span["start"] - start
        yield orjson.loads(span["version"]), span["end"] - span["start"]
        start = span["end"]
    if start < end:
        yield None, end - start


_ROLE = FileRole(
    option="tokens_output",
    if_full="Rollouts whose tokens are not in it are not in the output; make room and run the same command again.",
    if_moved="Put the file back and run the same command again.",
    if_truncated="Run the same command again to write to its end.",
)


class TokenWriter(AppendOnlyFile):
    """Appends segments to an Arrow stream. Opening it drops what a kill left incomplete."""

    def __init__(self, path: Path, output: Path) -> None:
        super().__init__(path, _ROLE)
        self.repair()
        self._name = os.path.relpath(path, output.parent)

    def split(self, outcomes: Sequence[Outcome]) -> list[bytes]:
        """Write the tokens of scored rollouts, and return their lines without them. A rollout whose tokens are not
        valid keeps them in its line."""
        lines = {at: outcome.line() for at, outcome in enumerate(outcomes) if PROMPT_NAME not in outcome.record}
        batches, remaining = list[bytes](), (at for at in range(len(outcomes)) if at not in lines)
        while some := [*islice(remaining, ROLLOUTS_AT_ONCE)]:
            texts, rows = {}, list[StoredSegment]()
            for at in some:
                record, row = read_record(outcomes[at].record), outcomes[at].row
                try:
                    own = segments_of(record, RolloutKey(row.task_index, row.repeat_index, row.row_hash))
                except TokenTraceError as error:
                    logger.warning("row %d keeps its tokens in the output: %s", row.task_index, error)
                    lines[at] = outcomes[at].line()
                    continue
                texts[at] = _without_tokens(record), (len(rows), len(rows) + len(own))
                rows += own
            if not rows:
                continue
            schema = _schema_bytes() if self.end == 0 and not batches else b""
            batch = _encoded_batch(rows)
            place = {
                "file": self._name,
                "offset": self.end + sum(map(len, batches)) + len(schema),
                "size": len(batch),
                "digest": _digest(batch),
            }
            batches.append(schema + batch)
            for at, (text, own_rows) in texts.items():
                record = {**text, TOKENS_KEY_NAME: {**place, "rows": own_rows}}
                lines[at] = replace(outcomes[at], record=orjson.dumps(record)).line()
        if batches:
            self.append(b"".join(batches))
        return [lines[at] for at in range(len(outcomes))]

    def _complete_bytes(self) -> int:
        """Where the last complete batch ends. ConfigError for a file that is no stream of tokens."""
        pa, schema = _arrow(), _schema_bytes()
        with self.path.open("rb") as file:
            start = file.read(len(schema))
        if len(start) < len(schema) and schema.startswith(start):
            return 0
        try:
            with pa.OSFile(str(self.path)) as source:
                columns = pa.ipc.open_stream(source).schema
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"{self.path} is not an Arrow stream. Choose another tokens_output.") from error
        if columns != _schema(pa):
            raise ConfigError(f"{self.path} is an Arrow stream with other columns. Choose another tokens_output.")
        end = 0
        with pa.OSFile(str(self.path)) as source, contextlib.suppress(pa.ArrowInvalid, EOFError, OSError):
            while True:
                pa.ipc.read_message(source)
                end = source.tell()
        return end


def _schema_bytes() -> bytes:
    """The start of a stream."""
    return bytes(_schema(_arrow()).serialize())


def _encoded_batch(rows: Sequence[StoredSegment]) -> bytes:
    """A batch as it is appended to a stream."""
    pa, sink = _arrow(), _arrow().BufferOutputStream()
    writer = pa.ipc.new_stream(sink, _schema(pa), options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer.write_batch(_batch(rows))
    end = sink.tell()  # closing the writer would add a mark of the end
    return bytes(memoryview(sink.getvalue())[len(_schema_bytes()) : end])


def _digest(batch: bytes) -> str:
    return blake2b(batch, digest_size=8).hexdigest()


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


def _batches(path: Path) -> Iterator[Any]:
    pa = _arrow()
    try:
        if path.suffix == PARQUET:
            with pa.parquet.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=ROWS_AT_ONCE)
            return
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as batches:
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


def token_restorer(output: Path) -> Callable[[JsonObject], JsonObject]:
    """The function that puts tokens back into the records of an output. A record says where its tokens are."""
    batch_at = lru_cache(maxsize=2)(_stored_batch)

    def rows_at(place: Any) -> list[StoredSegment]:
        try:
            start, end = place["rows"]
            batch = batch_at(output.parent / place["file"], place["offset"], place["size"], place["digest"])
            return [*_rows(batch.slice(start, end - start))]
        except (OSError, *MALFORMED) as error:
            reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            raise TokenTraceError(f"the tokens of a rollout are not where its record says ({reason})") from error

    def restored(record: JsonObject) -> JsonObject:
        place = record.get(TOKENS_KEY_NAME)
        if place is None:
            return record
        rows = rows_at(place)

        def with_tokens(policy: str, items: list[Any]) -> list[Any]:
            by_item = {call.item: call for row in rows if row.policy == policy for call in row.segment.calls}
            if by_item.keys() - {*range(len(items))}:
                raise TokenTraceError(f"the record has {len(items)} output items of {policy}, its tokens are of more")
            return [_item(item, by_item[at]) if at in by_item else item for at, item in enumerate(items)]

        try:
            return _with_output(record, with_tokens)
        except TokenTraceError:
            raise
        except MALFORMED as error:
            raise TokenTraceError(f"the record has no valid `response.output` ({error!r})") from error

    return restored


def moved_place(place: JsonObject, before: Path, after: Path) -> JsonObject:
    """Where the tokens of a record are, for an output in another folder."""
    return {**place, "file": os.path.relpath(before / place["file"], after)}


def _stored_batch(path: Path, offset: int, size: int, digest: str) -> Any:
    """The record batch at a place. TokenTraceError if the file is not the one that was written."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(min(size, path.stat().st_size))
    if _digest(data) != digest:
        raise TokenTraceError(f"{path} has other content there; it is another file, or damaged")
    pa = _arrow()
    return pa.ipc.read_record_batch(pa.py_buffer(data), _schema(pa))


def _item(item: JsonObject, call: ModelCall) -> TokenItem:
    fields: JsonObject = {PROMPT: call.prompt_ids, SAMPLED: call.sampled_ids, LOG_PROBS: call.log_probs}
    fields |= {} if call.policy_version is None else {POLICY_VERSION_FIELD: call.policy_version}
    return TokenItem({**item, **fields, **({VERSION_RUNS_FIELD: call.version_runs} if call.version_runs else {})})
