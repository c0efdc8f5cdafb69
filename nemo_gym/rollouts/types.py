"""A row on its way to its agent, the outcome on its way to the file, and what is read from stored records."""

import hashlib
import json
import re
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec
import orjson

from nemo_gym.client.call_log import Routing
from nemo_gym.common.redaction import redact
from nemo_gym.config.keys import (
    AGENT_REF_KEY_NAME,
    FAILURE_KIND,
    FAILURE_REASON,
    MASK_SAMPLE,
    ROLLOUT_INDEX_KEY_NAME,
    ROW_FIELDS,
    TASK_INDEX_FIELD,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.stored_tokens import encode_stored

REPEAT_INDEX_KEY_NAME = "_repeat_index"
ROW_HASH_KEY_NAME = "_row_hash"
TOKENS_KEY_NAME = "_tokens"
"""Where the tokens of a record are, if they are in a file of their own."""
METADATA_FIELDS = frozenset(
    (
        *(TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME, ROW_FIELDS, TOKENS_KEY_NAME),
        *("_attempts", "_retries", "_seconds", "_step_seconds"),
    )
)
"""Fields that the collector adds to a record."""
_NOT_COPIED = METADATA_FIELDS | {TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME}
_INDICES = (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)
_TASK_INDEX, _ROLLOUT_INDEX = f'"{TASK_INDEX_KEY_NAME}":%d,'.encode(), f'"{ROLLOUT_INDEX_KEY_NAME}":%d,'.encode()
_METADATA = (
    f'"{TASK_INDEX_FIELD}":%d,"{REPEAT_INDEX_KEY_NAME}":%d,"{ROW_HASH_KEY_NAME}":"%b",'
    '"_attempts":%d,"_retries":%d,"_seconds":%.6f}\n'
).encode()
_ROW_KEY = re.compile(rb'"_task_index":(\d+),"_repeat_index":(\d+),"_row_hash":"([0-9a-f]{16})"')


ANSWER_FIELDS = ("extracted_answer", "parsed_option", "answer")
"""Fields in which environments put the model's answer as they read it. The first one that a record has is its vote."""
FAILURE_FIELDS = frozenset((MASK_SAMPLE, FAILURE_KIND, FAILURE_REASON))
"""Fields of records that are not metrics."""

RowKey = tuple[int, int, str]
"""Names a rollout: the index of the row in the dataset, the index of the repeat, and the hash of the row."""
NO_DATASET = -1
"""The task index of a row that a trainer brings. It is sent as it is, and its record is the agent's reply alone."""


class Row(msgspec.Struct, frozen=True):
    """One rollout to make: a row of a dataset, which repeat and attempt it is, and the agent that makes it."""

    task_index: int
    repeat_index: int
    row_hash: str
    agent: str
    body: bytes
    """The row as JSON, as the agent gets it."""
    timeout_s: float = 3600.0
    """Time limit for one attempt."""
    attempt: int = 1
    group: str = ""
    """Rollouts of one group go to one worker, while it lives."""

    @property
    def key(self) -> RowKey:
        return self.task_index, self.repeat_index, self.row_hash

    @property
    def routing(self) -> Routing | None:
        """The ids that are sent to endpoints. None for a row of `run_examples`, which has no hash."""
        if not self.row_hash:
            return None
        return Routing(f"{self.row_hash}-{self.repeat_index}", self.group or self.row_hash)


class Outcome(msgspec.Struct):
    """The end of an attempt at a rollout: scored, with its record, or without a result, with the error that says why.

    An error outside the policy is never a reward of 0."""

    row: Row
    record: bytes = b""
    """The agent's reply with the fields of its row: a JSON object on one line. Empty without a result."""
    error: RolloutError | None = None
    """The error of an attempt without a result."""
    seconds: float = 0.0
    started_at: float = 0.0
    retries: int = 0
    throttled: int = 0
    """Number of retried requests, and how often a server was overloaded."""
    is_final: bool = True
    """False if another attempt follows."""
    values: Mapping[str, Any] = {}
    """The part of the record that metrics need, so that it is not decoded twice: its fields that are no objects or
    lists, without those of its row, and the model's answer."""
    tokens: Sequence[Any] = ()
    """Input, output, reasoning and total, as the endpoint counts them; empty if it does not."""
    is_cut_off: bool = False
    """True if a token or step limit ended the rollout before the model was done."""
    step_seconds: list[dict[str, float]] = []
    """How long each step took, if the agent says so."""

    @classmethod
    def failed(cls, row: Row, error: RolloutError, *, seconds: float = 0.0, throttled: int = 0) -> Self:
        """The outcome of an attempt that has just failed after `seconds`."""
        error.__traceback__ = error.__cause__ = error.__context__ = None  # their frames hold the whole conversation
        return cls(row, error=error, seconds=seconds, started_at=time.time() - seconds, throttled=throttled)

    def line(self) -> bytes:
        """The line that is written: a record, or a failed attempt."""
        return self._record_line() if self.error is None else self._failure_line(self.error)

    def _record_line(self) -> bytes:
        """Return the record with its indices, in both spellings unless the agent's reply repeats those it was sent."""
        row = self.row
        task, repeat = row.task_index, row.repeat_index
        metadata = (task, repeat, row.row_hash.encode(), row.attempt, self.retries, self.seconds)
        indices = b"".join(
            (
                b"" if TASK_INDEX_KEY_NAME in self.values else _TASK_INDEX % task,
                b"" if ROLLOUT_INDEX_KEY_NAME in self.values else _ROLLOUT_INDEX % repeat,
            )
        )
        steps = b'"_step_seconds":%b,' % orjson.dumps(self.step_seconds) if len(self.step_seconds) > 1 else b""
        return b"%b,%b%b%b" % (self.record[:-1], indices, steps, _METADATA % metadata)

    def _failure_line(self, error: RolloutError) -> bytes:
        row = self.row
        fields: dict[str, Any] = {
            TASK_INDEX_KEY_NAME: row.task_index,
            ROLLOUT_INDEX_KEY_NAME: row.repeat_index,
            TASK_INDEX_FIELD: row.task_index,
            REPEAT_INDEX_KEY_NAME: row.repeat_index,
            ROW_HASH_KEY_NAME: row.row_hash,
            "cause": error.cause,
            "code": error.code,
            "message": redact(str(error)),
            "server": error.server,
            "attempt": row.attempt,
            "is_final": self.is_final,
            "started_at": round(self.started_at, 3),
            "seconds": round(self.seconds, 6),
            "row": _raw_json_or_text(row.body),
        }
        if error.response is not None:
            fields["response"] = orjson.Fragment(encode_stored(error.response))
        return orjson.dumps(fields) + b"\n"


def _raw_json_or_text(body: bytes) -> Any:
    """A row as it is if it is JSON, otherwise as text. JSON that can be read may be nested too deep to be encoded."""
    try:
        orjson.loads(body)
    except ValueError:
        return body.decode(errors="replace")[:2000]
    return orjson.Fragment(body)


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


def parse_row_key(line: bytes) -> RowKey | None:
    """The key in a stored record: the last one, if it quotes another record. It is near the end, so that a long record
    need not be searched."""
    found = [*_ROW_KEY.finditer(line, max(0, len(line) - 400))] or [*_ROW_KEY.finditer(line)]
    return (int(found[-1][1]), int(found[-1][2]), found[-1][3].decode()) if found else None


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
    """True if an environment asks for records without the fields of their rows, with an empty list. Any other list is
    ignored: only the collector knows the fields of the row."""
    return ROW_FIELDS in reply and reply[ROW_FIELDS] == []


def results_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record without its row's own fields. The reward is never one of them."""
    own = record.get(ROW_FIELDS)
    if not own:
        return record
    return {name: value for name, value in record.items() if name not in own or name == "reward"}


def is_masked(record: Mapping[str, Any]) -> bool:
    """True for a scored record that is kept, and counts in no metric and for no trainer."""
    return record.get(MASK_SAMPLE) is True


def metric_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values`, `tokens` and `is_cut_off` of the Outcome of a record. Of a masked one, only its indices are
    values."""
    values = (
        {MASK_SAMPLE: True, **{name: record[name] for name in _INDICES if name in record}}
        if is_masked(record)
        else {
            name: value
            for name, value in results_of(record).items()
            if name in ANSWER_FIELDS or not (name in FAILURE_FIELDS or isinstance(value, dict | list))
        }
    )
    response = record.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    tokens = _tokens_in(usage) if isinstance(usage, dict) else ()
    return {"values": values, "tokens": tokens, "is_cut_off": is_cut_off(response)}


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
