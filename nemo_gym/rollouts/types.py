"""The outcome of a rollout: a scored record, or no result and its cause."""

import hashlib
import json
import re
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec
import orjson

from nemo_gym.common.redaction import redact
from nemo_gym.config.keys import (
    AGENT_REF_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    ROW_FIELDS,
    TASK_INDEX_FIELD,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.errors import Cause, RolloutError

REPEAT_INDEX_KEY_NAME = "_repeat_index"
ROW_HASH_KEY_NAME = "_row_hash"
METADATA_FIELDS = frozenset(
    (
        *(TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME, ROW_FIELDS),
        *("_attempts", "_retries", "_seconds"),
    )
)
"""What the collector adds to a record."""
_NOT_COPIED = METADATA_FIELDS | {TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME}
_TASK_INDEX, _ROLLOUT_INDEX = f'"{TASK_INDEX_KEY_NAME}":%d,'.encode(), f'"{ROLLOUT_INDEX_KEY_NAME}":%d,'.encode()
_METADATA = (
    f'"{TASK_INDEX_FIELD}":%d,"{REPEAT_INDEX_KEY_NAME}":%d,"{ROW_HASH_KEY_NAME}":"%b",'
    '"_attempts":%d,"_retries":%d,"_seconds":%.6f}\n'
).encode()
_ROW_ID = re.compile(rb'"_task_index":(\d+),"_repeat_index":(\d+),"_row_hash":"([0-9a-f]{16})"')


ANSWER_FIELDS = ("extracted_answer", "parsed_option", "answer")
"""Where environments put what they read as the model's answer. The first one that a record has is its vote."""


class RowId(msgspec.Struct, frozen=True, order=True):
    """Which rollout: the index of the row in the dataset, the index of the repeat, and the hash of the row."""

    task_index: int
    repeat_index: int
    row_hash: str

    def metadata(self) -> dict[str, Any]:
        """The fields that identify a rollout in its record."""
        return {
            TASK_INDEX_FIELD: self.task_index,
            REPEAT_INDEX_KEY_NAME: self.repeat_index,
            ROW_HASH_KEY_NAME: self.row_hash,
        }


NO_DATASET = RowId(-1, 0, "")
"""Of a row that a trainer brings: it is sent as it is, and its record has nothing but the agent's reply."""


def task_index_of(record: Mapping[str, Any]) -> Any:
    """The index of a record's row, in either spelling; None if it has none."""
    index = record.get(TASK_INDEX_FIELD)
    return record.get(TASK_INDEX_KEY_NAME) if index is None else index


def rollout_key(record: Mapping[str, Any]) -> tuple[int, int]:
    """Return the indices of a record's row and repeat, in either spelling; 0 if it has none."""
    repeat = record.get(ROLLOUT_INDEX_KEY_NAME, record.get(REPEAT_INDEX_KEY_NAME))
    return task_index_of(record) or 0, repeat or 0


def agent_of(record: Mapping[str, Any]) -> str | None:
    """Return the name of the agent that a row or record refers to."""
    reference = record.get(AGENT_REF_KEY_NAME)
    return reference.get("name") if isinstance(reference, dict) else None


def hash_row(line: bytes) -> str:
    """The hash that identifies a row by its content."""
    return hashlib.sha256(line).hexdigest()[:16]


def parse_row_id(line: bytes) -> RowId | None:
    """The id in a stored record: the last one, if it quotes another record. It is near the end, so that a long record
    need not be searched."""
    found = [*_ROW_ID.finditer(line, max(0, len(line) - 400))] or [*_ROW_ID.finditer(line)]
    return RowId(int(found[-1][1]), int(found[-1][2]), found[-1][3].decode()) if found else None


def single_line_record(record: bytes, fields: Iterable[str]) -> bytes:
    """A JSON object with these fields on one line. Fields with the names of our metadata are dropped."""
    record = record.strip()
    if b"\n" not in record and b"\r" not in record and METADATA_FIELDS.isdisjoint(fields):
        return record
    kept = {name: value for name, value in json.loads(record).items() if name not in METADATA_FIELDS}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()


_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def add_row_fields(record: bytes, fields: Container[str], row: bytes) -> bytes:
    """The record with the fields of its row that it lacks, so that the expected answer is beside the given one. Raises
    RolloutError if they would make it unreadable."""
    try:
        given = _raw_fields(row)
        own: dict[str, Any] = {
            name: value for name, value in given.items() if name not in fields and name not in _NOT_COPIED
        }
        if not own:
            return record
        own[ROW_FIELDS] = [*own]
        added = msgspec.json.encode(own)
        orjson.loads(added)  # a number beyond the range of a double raises
    except ValueError as error:
        message = f"The row is not JSON that every reader understands: {error}. Expected finite numbers."
        raise RolloutError("input", message, retryable=False) from error
    return b"%b,%b" % (record[:-1], added[1:])


def wants_no_row_fields(reply: Mapping[str, Any]) -> bool:
    """True if an environment says that its records are to be without fields of their rows: with an empty list. Which
    fields are those of the row only the collector can tell."""
    return ROW_FIELDS in reply and reply[ROW_FIELDS] == []


def results_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record without its row's own fields. The reward is never one of them."""
    own = record.get(ROW_FIELDS)
    if not own:
        return record
    return {name: value for name, value in record.items() if name not in own or name == "reward"}


class RecordMetrics(msgspec.Struct, frozen=True):
    """The small part of a record that metrics need, so that the rest is neither kept nor decoded twice."""

    values: Mapping[str, Any] = {}
    """Its fields that are no objects or lists, without those of its row, and the model's answer."""
    tokens: Sequence[Any] = ()
    """Input, output, reasoning and total, as the endpoint counts them; empty if it does not."""
    is_cut_off: bool = False


def record_metrics(record: Mapping[str, Any]) -> RecordMetrics:
    """Return the metrics of a record."""
    values = {
        name: value
        for name, value in results_of(record).items()
        if name in ANSWER_FIELDS or not isinstance(value, dict | list)
    }
    response = record.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    return RecordMetrics(values, _tokens_in(usage) if isinstance(usage, dict) else (), is_cut_off(response))


def _tokens_in(usage: Mapping[str, Any]) -> tuple[Any, ...]:
    details = usage.get("output_tokens_details")
    reasoning = (details if isinstance(details, dict) else usage).get("reasoning_tokens")
    return usage.get("input_tokens"), usage.get("output_tokens"), reasoning, usage.get("total_tokens")


def is_cut_off(response: object) -> bool:
    """True if a token or step limit ended the rollout before the model was done."""
    if not isinstance(response, dict):
        return False
    was_cut = bool(response.get("incomplete_details")) or response.get("status") == "incomplete"
    return was_cut or response.get("ended_by") == "max_steps"


def raw_json_or_text(body: bytes) -> Any:
    """A row as it is if it is JSON, otherwise as text. JSON that can be read may be nested too deep to be encoded."""
    try:
        orjson.loads(body)
    except ValueError:
        return body.decode(errors="replace")[:2000]
    return orjson.Fragment(body)


class Row(msgspec.Struct, frozen=True):
    """One rollout to make."""

    id: RowId
    agent: str
    body: bytes
    """The row as JSON, as the agent gets it."""
    group: str = ""
    """Rollouts of one group go to one worker, while it lives."""


class Scored(msgspec.Struct):
    """A rollout with a finite reward."""

    id: RowId
    record: bytes
    """The agent's reply, a JSON object on one line."""
    metrics: RecordMetrics = RecordMetrics()
    attempts: int = 1
    retries: int = 0
    throttled: int = 0
    """How many requests were retried, and how often a server was overloaded."""
    seconds: float = 0.0

    def line(self) -> bytes:
        """The record as it is written. The indices are there as public tools spell them, too, unless the agent's reply
        repeats those it was sent."""
        task, repeat, row_hash = self.id.task_index, self.id.repeat_index, self.id.row_hash
        metadata = (task, repeat, row_hash.encode(), self.attempts, self.retries, self.seconds)
        indices = b"".join(
            (
                b"" if TASK_INDEX_KEY_NAME in self.metrics.values else _TASK_INDEX % task,
                b"" if ROLLOUT_INDEX_KEY_NAME in self.metrics.values else _ROLLOUT_INDEX % repeat,
            )
        )
        return b"%b,%b%b" % (self.record[:-1], indices, _METADATA % metadata)


class NoResult(msgspec.Struct, frozen=True):
    """An attempt that failed for a reason outside the policy. Never a reward of 0."""

    id: RowId
    cause: Cause
    message: str
    server: str | None = None
    code: str | None = None
    """Machine-readable detail of the cause, such as `refused` of a judge or `session_lost`."""
    attempt: int = 1
    is_final: bool = True
    """True for the last attempt at this rollout."""
    started_at: float = 0.0
    seconds: float = 0.0
    row: Any = None
    """The row, as far as it could be read."""
    retryable: bool = True
    """True if another attempt may succeed."""
    response: Any = None
    """The model's response, if there was one before the failure."""
    status: int | None = None
    """For a trainer: the status of the RolloutError."""
    throttled: int = 0
    """How often a server was overloaded."""

    @classmethod
    def of(cls, row: Row, cause: Cause, message: str, *, seconds: float, **fields: Any) -> Self:
        """The failure of an attempt that has just ended after `seconds`."""
        body, started_at = raw_json_or_text(row.body), time.time() - seconds
        return cls(row.id, cause, message, started_at=started_at, seconds=seconds, row=body, **fields)

    def line(self) -> bytes:
        names = ("cause", "code", "message", "server", "attempt", "is_final", "started_at", "seconds", "row")
        fields = {name: getattr(self, name) for name in names}
        fields |= {"message": redact(self.message)}
        fields |= {"started_at": round(self.started_at, 3), "seconds": round(self.seconds, 6)}
        if self.response is not None:
            fields["response"] = self.response
        indices = {TASK_INDEX_KEY_NAME: self.id.task_index, ROLLOUT_INDEX_KEY_NAME: self.id.repeat_index}
        return orjson.dumps({**indices, **self.id.metadata(), **fields}) + b"\n"


Outcome = Scored | NoResult


def rollout_error(failure: NoResult) -> RolloutError:
    """The failure as an exception, for a trainer."""
    error = RolloutError(
        failure.cause,
        failure.message,
        server=failure.server,
        retryable=failure.retryable,
        code=failure.code,
        status=failure.status,
    )
    error.response = failure.response
    return error
