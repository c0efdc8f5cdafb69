"""Find the dataset row of each stored rollout, also if the dataset has changed since.

A row is identified by its hash. The `_task_index` of a record is the index of its row only if no row was moved."""

import hashlib
import logging
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson
from pydantic import Field, ValidationError

from nemo_gym.common.paths import find
from nemo_gym.config.keys import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_FIELD
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import JsonObject, TextOrList, WireModel
from nemo_gym.llm_api.responses import NeMoGymResponseInputItem, NeMoGymToolParam
from nemo_gym.rollouts.dataset import fingerprint_dataset
from nemo_gym.rollouts.store import StoredLine, StoredRolloutsError, failures_path, read_records, scored_path
from nemo_gym.rollouts.types import ROW_HASH_KEY_NAME, hash_row, is_cut_off, task_index_of

logger = logging.getLogger(__name__)


class Prompt(WireModel):
    """The prompt of a row or a record. Sampling parameters are not part of it, since they may differ between runs.
    Tools do not count when prompts are compared: a row without tools gets those of its environment."""

    input: TextOrList[NeMoGymResponseInputItem]
    instructions: str | None = None
    tools: list[NeMoGymToolParam] | None = None

    @property
    def digest(self) -> bytes:
        """A hash that is the same for a row and for its copy in a record, where defaults are filled in."""
        asked = self.model_dump(mode="json", include={"input", "instructions"}, warnings=False)
        return hashlib.sha256(orjson.dumps(_without_nulls(asked), option=orjson.OPT_SORT_KEYS)).digest()


def _without_nulls(value: Any) -> Any:
    """Remove nulls and empty lists at any depth: a missing field and its default then compare equal."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None and item != []}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


class StoredResponse(WireModel):
    """The response in a record."""

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
    """Return a hash of the prompt of a row or a record; None if its prompt cannot be read."""
    try:
        return Prompt.model_validate(row.get("responses_create_params")).digest
    except ValidationError:
        return None


_REMEDY = "Give the dataset that the rollouts were collected from."
_HINT = " If the change is intended, pass +allow_changed_rows=true."


class RowNotFoundError(StoredRolloutsError):
    """The row of a record is not in the dataset."""


class RowHashes:
    """Finds rows by their hash, in 16 bytes of memory for each."""

    def __init__(self, hashes: "array[int]") -> None:
        self._hashes = hashes
        self._sorted = array("Q", sorted(range(len(hashes)), key=hashes.__getitem__))

    def first(self, row_hash: object) -> int | None:
        """Return the index of the first row with this hash."""
        try:
            wanted = int(str(row_hash), 16)
        except ValueError:
            return None
        at = bisect_left(self._sorted, wanted, key=self._hashes.__getitem__)
        is_found = at < len(self._sorted) and self._hashes[self._sorted[at]] == wanted
        return self._sorted[at] if is_found else None


class Dataset:
    """A dataset on disk. Keeps the offset of each row in memory, and the hashes of rows if rows were moved."""

    def __init__(self, path: str) -> None:
        self.path = find(path, what="dataset")
        self.matched_by_prompt = 0
        """Number of records that were matched by their prompt because they have no task index."""
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

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and index in self._indices()

    def _indices(self) -> Collection[int]:
        return self._offsets.keys() if isinstance(self._offsets, Mapping) else range(len(self._offsets))

    def line(self, index: int) -> bytes:
        """Return the bytes of a row."""
        self._file.seek(self._offsets[index])
        return self._file.readline().strip()

    def row(self, index: int) -> dict[str, Any]:
        row = _parsed(self.line(index))
        if row is None:
            raise StoredRolloutsError(f"Row {index} of {self.path} is not a JSON object.")
        return row

    def index_of(self, stored: StoredLine) -> int:
        """Return the index of the row of a record: by its hash, by its index if it has no hash, or by its prompt if it
        has neither. Raises RowNotFoundError if there is no such row."""
        index = task_index_of(stored.record)
        if index is None:
            return self._index_by_prompt(stored)
        if self.is_materialized or stored.record.get(ROW_HASH_KEY_NAME) is None:
            return self._index_by_place(stored, index)
        found = self.index_by_hash(stored.record)
        if found is None:
            raise RowNotFoundError(
                f"{stored.place} is a rollout of row {index!r}, which is not in {self.path}: the row was changed or "
                f"removed since. {_REMEDY}{_HINT}"
            )
        return found

    def index_by_hash(self, record: Mapping[str, Any]) -> int | None:
        """Return the row with the hash of a record. Among equal rows, prefer the one at the record's index."""
        index, row_hash = task_index_of(record), record.get(ROW_HASH_KEY_NAME)
        if self.is_materialized or row_hash is None:
            return None
        if index in self and hash_row(self.line(index)) == row_hash:
            return int(index)
        return self._hashes.first(row_hash)

    @cached_property
    def _hashes(self) -> RowHashes:
        """Read when the first record asks for a row that is not in its place."""
        return RowHashes(fingerprint_dataset(self.path, with_index=True).row_hashes)

    def _index_by_place(self, stored: StoredLine, index: object) -> int:
        if isinstance(index, int) and index in self:
            return index
        rows = "other rows" if self.is_materialized else f"the rows 0 to {len(self) - 1}"
        raise RowNotFoundError(
            f"{stored.place} is a rollout of row {index!r}; {self.path} has {rows}. {_REMEDY}{_HINT}"
        )

    def _index_by_prompt(self, stored: StoredLine) -> int:
        digest = prompt_digest(stored.record)
        found = [] if digest is None else self._by_prompt.get(digest, [])
        if len(found) != 1:
            which = f"rows {', '.join(map(str, found))}" if found else "no row"
            raise StoredRolloutsError(
                f"{stored.place} has no `{TASK_INDEX_FIELD}` that names its row, and its prompt, "
                f"`responses_create_params`, is that of {which} of {self.path}; expected exactly one. {_REMEDY}"
            )
        self.matched_by_prompt += 1
        return found[0]

    @cached_property
    def _by_prompt(self) -> dict[bytes, list[int]]:
        """The indices of the rows with each prompt. Read when a record without an index is looked up."""
        found: dict[bytes, list[int]] = {}
        for index in self._indices():
            digest = prompt_digest(_parsed(self.line(index)) or {})
            if digest is not None:
                found.setdefault(digest, []).append(index)
        return found


class KnownRows(NamedTuple):
    """The rows of a dataset that are unchanged since records were collected from them."""

    is_known: bytearray
    """1 for each row whose hash a record has, else 0."""
    has_moved: bool
    """True if one of them is not at the index that its records have."""


class ChangedRows:
    """Finds rows that were edited since. A record whose hash is not in the dataset belongs to the row at its index,
    unless other records have that row's hash."""

    def __init__(self, dataset: Dataset, rollouts: Path) -> None:
        self._dataset, self._rollouts = dataset, rollouts
        self.count = 0
        """Number of records whose row has changed."""

    def index_of(self, stored: StoredLine) -> int:
        """Like `Dataset.index_of`. Raises RolloutError if the row was removed or cannot be identified."""
        try:
            return self._dataset.index_of(stored)
        except RowNotFoundError:
            index = self._edited_row(stored)
        self.count += 1
        return index

    def _edited_row(self, stored: StoredLine) -> int:
        index = task_index_of(stored.record)
        if index not in self._dataset:
            raise self._not_found(stored, f"it has no row {index!r} either")
        if self._known.is_known[index]:
            raise self._not_found(stored, f"row {index} is now the row of other rollouts")
        if self._known.has_moved and not self._has_same_prompt(stored.record, index):
            raise self._not_found(stored, f"rows were moved, and row {index} has another prompt")
        return int(index)

    def _not_found(self, stored: StoredLine, found: str) -> RolloutError:
        what = f"{stored.place} is a rollout of row {task_index_of(stored.record)!r}, not in {self._dataset.path}"
        remedy = "Add the row as it was to the dataset, or remove the record."
        return RolloutError("input", f"{what}: {found}. {remedy}", retryable=False)

    def _has_same_prompt(self, record: Mapping[str, Any], index: int) -> bool:
        digest = prompt_digest(record)
        return digest is not None and digest == prompt_digest(_parsed(self._dataset.line(index)) or {})

    @cached_property
    def _known(self) -> KnownRows:
        """Read when the first row is not found by its hash."""
        is_known, has_moved = bytearray(len(self._dataset)), False
        for stored in self._all_records():
            found = self._dataset.index_by_hash(stored.record)
            if found is not None:
                is_known[found] = 1
                has_moved |= found != task_index_of(stored.record)
        return KnownRows(is_known, has_moved)

    def _all_records(self) -> Iterator[StoredLine]:
        """Yield the records of the file and of its sibling: the failures of an output, or the output of failures."""
        beside = scored_path(self._rollouts) or failures_path(self._rollouts)
        for path in (self._rollouts, beside):
            if path.exists():
                yield from read_records(path)


def _offsets(file: IO[bytes]) -> "array[int]":
    """Return the offset of each row."""
    found, offset = array("Q"), 0
    for line in file:
        if line.strip():
            found.append(offset)
        offset += len(line)
    return found


def _offsets_by_task(file: IO[bytes]) -> dict[int, int] | None:
    """Return the offset of the first row of each task; None if the rows have no rollout index."""
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
