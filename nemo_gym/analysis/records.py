"""Files of rollouts, read again line by line, and the rows of the dataset that they were made of."""

import hashlib
import logging
from array import array
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson
from pydantic import Field, ValidationError

from nemo_gym.common.paths import find
from nemo_gym.common.words import json_type
from nemo_gym.config.keys import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_FIELD
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject, TextOrList, WireModel
from nemo_gym.llm_api.responses import NeMoGymResponseInputItem, NeMoGymToolParam
from nemo_gym.rollouts.types import ROW_HASH_KEY_NAME, hash_row, is_cut_off, task_index_of

logger = logging.getLogger(__name__)

_REMEDY = "Give the dataset that the rollouts were collected from."


class StoredRolloutsError(ConfigError):
    """A file of rollouts, or the dataset given with it, does not hold what the job needs."""


class StoredLine(NamedTuple):
    """One record, and where it is."""

    offset: int
    place: str
    """The file and the line, for messages."""
    record: dict[str, Any]


def read_records(path: Path) -> Iterator[StoredLine]:
    """The records of a JSONL file. Half a line at its end is passed over: a run may still be at work on it."""
    offset = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{path}, line {number}"
            try:
                record = orjson.loads(line) if line.strip() else None
            except ValueError as error:
                if line.endswith(b"\n"):
                    raise StoredRolloutsError(f"{place} is not JSON: {error}.") from error
                logger.warning("%s is half a record and passed over", place)
                return
            if isinstance(record, dict):
                yield StoredLine(offset, place, record)
            elif record is not None:
                raise StoredRolloutsError(f"{place} is {json_type(record)}, expected a JSON object.")
            offset += len(line)


class Prompt(WireModel):
    """What a model was asked. Sampling parameters are no part of it: they may differ between runs. Tools are
    none of what tells one prompt from others: a row without any gets those of its environment."""

    input: TextOrList[NeMoGymResponseInputItem]
    instructions: str | None = None
    tools: list[NeMoGymToolParam] | None = None

    @property
    def digest(self) -> bytes:
        """The same for a row as it was written and for its copy in a record, where defaults are filled in."""
        asked = self.model_dump(mode="json", include={"input", "instructions"}, warnings=False)
        return hashlib.sha256(orjson.dumps(_without_nulls(asked), option=orjson.OPT_SORT_KEYS)).digest()


def _without_nulls(value: Any) -> Any:
    """The value without what is null or an empty list, at any depth: what was left out, and its default."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None and item != []}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


class StoredResponse(WireModel):
    """What came of it."""

    output: list[NeMoGymResponseInputItem]
    status: str | None = None
    incomplete_details: JsonObject | None = None
    ended_by: str | None = None

    @property
    def is_cut_off(self) -> bool:
        was_cut_off = is_cut_off({"incomplete_details": self.incomplete_details, "ended_by": self.ended_by})
        return was_cut_off or self.status in ("incomplete", "failed", "cancelled")


class StoredFailure(WireModel):
    """A rollout that failed after the model had answered."""

    responses_create_params: Prompt
    response: StoredResponse
    reward: float | None = None


class StoredRollout(StoredFailure):
    """A scored rollout."""

    reward: float = Field(allow_inf_nan=False)


def prompt_digest(row: Mapping[str, Any]) -> bytes | None:
    """What tells the prompt of a row or a record from others; none if it has no prompt that can be read."""
    try:
        return Prompt.model_validate(row.get("responses_create_params")).digest
    except ValidationError:
        return None


class Dataset:
    """The rows that rollouts were made of. Only where each one is in the file is kept in memory."""

    def __init__(self, path: str, *, allow_changed: bool | None = None) -> None:
        """`allow_changed` is None where nobody can be asked for it."""
        self.path = find(path, what="dataset")
        self.matched_by_prompt = self.changed = 0
        """How many records were found without a mark, and how many of a row that is another one now."""
        self._allow_changed = allow_changed
        self._file = self.path.open("rb")
        by_task = _offsets_by_task(self._file)
        self.is_materialized = by_task is not None
        """True for a `_materialized_inputs` file: a line is what an agent was sent, one for each rollout of a task."""
        self._offsets: Mapping[int, int] | array[int] = _offsets(self._file) if by_task is None else by_task

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._offsets)

    def _indices(self) -> Collection[int]:
        return self._offsets.keys() if isinstance(self._offsets, Mapping) else range(len(self._offsets))

    def line(self, index: int) -> bytes:
        """A row as it is written."""
        self._file.seek(self._offsets[index])
        return self._file.readline().strip()

    def row(self, index: int) -> dict[str, Any]:
        row = _parsed(self.line(index))
        if row is None:
            raise StoredRolloutsError(f"Row {index} of {self.path} is not a JSON object.")
        return row

    def index_of(self, stored: StoredLine) -> int:
        """The row a record was made of: by its mark, or if it has none by its prompt."""
        index, recorded_hash = task_index_of(stored.record), stored.record.get(ROW_HASH_KEY_NAME)
        if index is None:
            return self._index_by_prompt(stored)
        if not isinstance(index, int) or index not in self._indices():
            raise StoredRolloutsError(
                f"{stored.place} was made of row {index!r}; {self.path} has the rows 0 to {len(self) - 1}. {_REMEDY}"
            )
        is_changed = not self.is_materialized and recorded_hash != hash_row(self.line(index))
        if recorded_hash is not None and is_changed:
            if not self._allow_changed:
                hint = (
                    "" if self._allow_changed is None else " If the change is intended, pass +allow_changed_rows=true."
                )
                raise StoredRolloutsError(
                    f"{stored.place} was made of row {index} of {self.path}, which has changed since. {_REMEDY}{hint}"
                )
            self.changed += 1
        return index

    def _index_by_prompt(self, stored: StoredLine) -> int:
        digest = prompt_digest(stored.record)
        found = [] if digest is None else self._by_prompt.get(digest, [])
        if len(found) != 1:
            which = f"rows {', '.join(map(str, found))}" if found else "no row"
            raise StoredRolloutsError(
                f"{stored.place} has no `{TASK_INDEX_FIELD}` that tells which row it was made of, and its prompt, "
                f"`responses_create_params`, is that of {which} of {self.path}; expected exactly one. {_REMEDY}"
            )
        self.matched_by_prompt += 1
        return found[0]

    @cached_property
    def _by_prompt(self) -> dict[bytes, list[int]]:
        """The rows that have each prompt, read when the first record asks for it."""
        found: dict[bytes, list[int]] = {}
        for index in self._indices():
            digest = prompt_digest(_parsed(self.line(index)) or {})
            if digest is not None:
                found.setdefault(digest, []).append(index)
        return found


def _offsets(file: IO[bytes]) -> "array[int]":
    """Where each row is."""
    found, offset = array("Q"), 0
    for line in file:
        if line.strip():
            found.append(offset)
        offset += len(line)
    return found


def _offsets_by_task(file: IO[bytes]) -> dict[int, int] | None:
    """Where the first row of each task is; None if the rows do not name their rollouts."""
    first = _parsed(file.readline()) or {}
    file.seek(0)
    if ROLLOUT_INDEX_KEY_NAME not in first or task_index_of(first) is None:
        return None
    found: dict[int, int] = {}
    offset = 0
    for line in file:
        index = task_index_of(_parsed(line) or {})
        if index is not None:
            found.setdefault(index, offset)
        offset += len(line)
    return found


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = orjson.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
