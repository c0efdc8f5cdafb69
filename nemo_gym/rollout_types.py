"""What becomes of a row: a scored record, or no result and the cause."""

from dataclasses import dataclass
from typing import Any

import orjson

from nemo_gym.config_keys import TASK_INDEX_KEY_NAME
from nemo_gym.errors import Cause

REPEAT_INDEX_KEY_NAME = "_repeat_index"


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout to make: a row of the dataset, and which one of its repeats."""

    task_index: int
    repeat_index: int
    agent: str
    body: bytes
    """The row as JSON, as the agent gets it."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A rollout with a finite reward."""

    row: Row
    record: bytes
    """The agent's answer, a JSON object."""

    def line(self) -> bytes:
        """The record as it is kept, marked with the row it came from."""
        marks = {TASK_INDEX_KEY_NAME: self.row.task_index, REPEAT_INDEX_KEY_NAME: self.row.repeat_index}
        return self.record[:-1] + b"," + orjson.dumps(marks)[1:] + b"\n"


@dataclass(frozen=True, slots=True)
class NoResult:
    """A rollout that the machinery failed. Never the same as reward 0."""

    task_index: int
    repeat_index: int
    cause: Cause
    message: str
    server: str | None = None
    row: Any = None
    """What was to be run, as far as it could be read."""

    def line(self) -> bytes:
        marks = {TASK_INDEX_KEY_NAME: self.task_index, REPEAT_INDEX_KEY_NAME: self.repeat_index}
        told = {"cause": self.cause, "message": self.message, "server": self.server, "row": self.row}
        return orjson.dumps({**marks, **told}) + b"\n"


Outcome = Scored | NoResult
