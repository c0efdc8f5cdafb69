"""Rows that occur more than once, and rows of the validation data that are also in the training data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import orjson

from nemo_gym.data.digests import DIGEST_BYTES, DigestSet, slices, unique_count
from nemo_gym.data.near_duplicates import similarity
from nemo_gym.data.row_check import PARAMS_KEY
from nemo_gym.data.scan import FileStatistics, user_messages

MAX_EXAMPLES = 5
"""So many pairs are shown."""
MAX_COMPARED = 20_000
"""So many pairs that may be nearly equal are compared; then the count is a lower bound."""
NEARLY_EQUAL = 0.8
"""The share of word triples that two nearly equal prompts have in common."""


class Place(NamedTuple):
    """Where a row starts."""

    path: Path
    offset: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line_number()}"

    def line_number(self) -> int:
        """Counted from 1, as editors do."""
        with self.path.open("rb") as file:
            return 1 + sum(part.count(b"\n") for part in _start_of(file, self.offset))


def _start_of(file: IO[bytes], length: int) -> Iterator[bytes]:
    while length > 0 and (part := file.read(min(length, 2**20))):
        length -= len(part)
        yield part


@dataclass(slots=True)
class Duplicates:
    """Rows that have an equal or nearly equal one before them, or in the other data."""

    count: int = 0
    is_lower_bound: bool = False
    examples: list[tuple[Place, Place]] = field(default_factory=list)

    def add(self, first: Place, again: Place) -> None:
        self.count += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append((first, again))


def repeated_rows(files: Sequence[FileStatistics]) -> Duplicates:
    """Rows whose parameters an earlier row has, too."""
    found = Duplicates()
    sets = [each.params for each in files]
    if unique_count(*sets) == sum(each.count for each in sets):
        return found
    for part in slices(*sets):
        first: dict[bytes, Place] = {}
        for key, place in _places(files, part):
            if key in first:
                found.add(first[key], place)
            else:
                first[key] = place
    return found


def shared_rows(train: Sequence[FileStatistics], validation: Sequence[FileStatistics]) -> Duplicates:
    """Rows of the validation data whose parameters a row of the training data has, too."""
    found = Duplicates()
    for part in slices(*(each.params for each in (*train, *validation))):
        first = dict(_places(train, part[: len(train)]))
        for key, place in _places(validation, part[len(train) :]):
            if key in first:
                found.add(first[key], place)
    return found


def nearly_repeated_rows(files: Sequence[FileStatistics]) -> Duplicates:
    """Rows whose prompt is nearly that of another row. Equal parameters are not counted again."""
    return _nearly_equal(_near_pairs(files, files))


def nearly_shared_rows(train: Sequence[FileStatistics], validation: Sequence[FileStatistics]) -> Duplicates:
    """Rows of the validation data whose prompt is nearly that of a row of the training data."""
    return _nearly_equal(_near_pairs(train, validation))


def _places(files: Sequence[FileStatistics], part: Sequence[Sequence[bytes]]) -> Iterator[tuple[bytes, Place]]:
    for each, records in zip(files, part, strict=True):
        for record in records:
            place = int.from_bytes(record[DIGEST_BYTES:], "big")
            yield record[:DIGEST_BYTES], Place(each.extent.path, place)


def _near_pairs(earlier: Sequence[FileStatistics], later: Sequence[FileStatistics]) -> Iterator[tuple[Place, Place]]:
    """Pairs that share a key: each row with the first one that has the key."""
    is_same = earlier is later
    sets: list[DigestSet] = [each.near for each in (earlier if is_same else (*earlier, *later))]
    for part in slices(*sets):
        first: dict[bytes, Place] = {}
        for key, place in _places(earlier, part[: len(earlier)]):
            if first.setdefault(key, place) != place and is_same:
                yield first[key], place
        for key, place in () if is_same else _places(later, part[len(earlier) :]):
            if key in first:
                yield first[key], place


def _nearly_equal(pairs: Iterator[tuple[Place, Place]]) -> Duplicates:
    found, compared, counted = Duplicates(), set[tuple[Place, Place]](), set[Place]()
    for pair in pairs:
        if pair in compared or pair[1] in counted:
            continue
        if len(compared) >= MAX_COMPARED:
            found.is_lower_bound = True
            break
        compared.add(pair)
        if _are_nearly_equal(*pair):
            counted.add(pair[1])
            found.add(*pair)
    return found


def _are_nearly_equal(one: Place, other: Place) -> bool:
    first, second = _params(one), _params(other)
    if first == second:
        return False
    texts = (b"\n".join(user_messages(params["input"])) for params in (first, second))
    return similarity(*texts) >= NEARLY_EQUAL


def _params(place: Place) -> dict[str, object]:
    with place.path.open("rb") as file:
        file.seek(place.offset)
        params: dict[str, object] = orjson.loads(file.readline())[PARAMS_KEY]
        return params
