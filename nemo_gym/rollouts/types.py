"""What becomes of a row: a scored record, or no result and the cause."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from nemo_gym.config.keys import TASK_INDEX_KEY_NAME
from nemo_gym.errors import Cause

REPEAT_INDEX_KEY_NAME = "_repeat_index"
ROW_HASH_KEY_NAME = "_row_hash"
METADATA_FIELDS = frozenset(
    (TASK_INDEX_KEY_NAME, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME, "_attempts", "_retries", "_seconds")
)
"""What is added to a record."""
_ROW_ID = re.compile(rb'"_task_index":(\d+),"_repeat_index":(\d+),"_row_hash":"([0-9a-f]{16})"')


class RowId(NamedTuple):
    """Which rollout: the row's place in the dataset, which one of its repeats, and the row's content."""

    task_index: int
    repeat_index: int
    row_hash: str

    def metadata(self) -> dict[str, Any]:
        """The identity as records carry it."""
        return dict(zip((TASK_INDEX_KEY_NAME, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME), self, strict=True))


def hash_row(line: bytes) -> str:
    """What a row's content is known by."""
    return hashlib.sha256(line).hexdigest()[:16]


def parse_row_id(line: bytes) -> RowId | None:
    """The identity that a kept record carries: the last in it, should it tell of another rollout too. The marks stand
    near its end, so a long record need not be looked through."""
    found = [*_ROW_ID.finditer(line, max(0, len(line) - 400))] or [*_ROW_ID.finditer(line)]
    return RowId(int(found[-1][1]), int(found[-1][2]), found[-1][3].decode()) if found else None


def single_line_record(record: bytes, fields: Iterable[str]) -> bytes:
    """A JSON object with these fields as a line can hold it. Fields called as our marks make room for them."""
    record = record.strip()
    if b"\n" not in record and b"\r" not in record and METADATA_FIELDS.isdisjoint(fields):
        return record
    kept = {name: value for name, value in json.loads(record).items() if name not in METADATA_FIELDS}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()


def raw_json_or_text(body: bytes) -> Any:
    """A row as JSON, letter for letter: what can be read may still be nested too deep to be written again."""
    try:
        orjson.loads(body)
    except ValueError:
        return body.decode(errors="replace")[:2000]
    return orjson.Fragment(body)


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout to make."""

    id: RowId
    agent: str
    body: bytes
    """The row as JSON, as the agent gets it."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A rollout with a finite reward."""

    id: RowId
    record: bytes
    """The agent's answer, a JSON object on one line."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The numbers in it, decoded."""
    attempts: int = 1
    retries: int = 0
    seconds: float = 0.0

    def metadata(self) -> dict[str, Any]:
        """What is added to the agent's answer: the row it belongs to, and what it took."""
        took = {"_attempts": self.attempts, "_retries": self.retries, "_seconds": round(self.seconds, 6)}
        return {**self.id.metadata(), **took}

    def line(self) -> bytes:
        """The record as it is kept."""
        return self.record[:-1] + b"," + orjson.dumps(self.metadata())[1:] + b"\n"


@dataclass(frozen=True, slots=True)
class NoResult:
    """An attempt that the machinery failed. Never the same as reward 0."""

    id: RowId
    cause: Cause
    message: str
    server: str | None = None
    code: str | None = None
    """Machine-readable detail of the cause, such as `refused` of a judge or `session_lost`."""
    attempt: int = 1
    is_final: bool = True
    """Whether it was the last attempt at this rollout."""
    started_at: float = 0.0
    seconds: float = 0.0
    row: Any = None
    """What was to be run, as far as it could be read."""
    retryable: bool = True
    """Whether another attempt may end differently."""

    def line(self) -> bytes:
        told = {
            "cause": self.cause,
            "code": self.code,
            "message": self.message,
            "server": self.server,
            "attempt": self.attempt,
            "is_final": self.is_final,
            "started_at": round(self.started_at, 3),
            "seconds": round(self.seconds, 6),
            "row": self.row,
        }
        return orjson.dumps({**self.id.metadata(), **told}) + b"\n"


Outcome = Scored | NoResult
