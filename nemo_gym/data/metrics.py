"""Statistics of datasets (printed, saved, compared), duplicate rows, and messages about bad rows."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from nemo_gym.config.types import DatasetConfig
from nemo_gym.data.digests import DIGEST_BYTES, DigestSet, similarity, slices, unique_count
from nemo_gym.data.row_check import PARAMS_KEY
from nemo_gym.data.scan import (
    ALWAYS_WRITTEN,
    BUILT_IN,
    EXAMPLES,
    SAMPLING_PARAMETERS,
    TOKENS,
    UNIQUE_PARAMS,
    UNIQUE_USER_MESSAGES,
    AvgMinMax,
    FileStatistics,
    user_messages,
)
from nemo_gym.llm_api.base import JsonObject

MAX_EXAMPLES = 5
"""Pairs shown as examples."""
MAX_COMPARED = 20_000
"""Pairs of possibly near duplicates that are compared. Beyond this the count is a lower bound."""
NEARLY_EQUAL = 0.8
"""Minimum Jaccard similarity of nearly equal prompts."""


class Place(NamedTuple):
    """File and offset of a row."""

    path: Path
    offset: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line_number()}"

    def line_number(self) -> int:
        """Return the line number, from 1."""
        with self.path.open("rb") as file:
            return 1 + sum(part.count(b"\n") for part in _start_of(file, self.offset))


def _start_of(file: IO[bytes], length: int) -> Iterator[bytes]:
    while length > 0 and (part := file.read(min(length, 2**20))):
        length -= len(part)
        yield part


@dataclass(slots=True)
class Duplicates:
    """Rows with an equal or nearly equal row before them, or in the other data."""

    count: int = 0
    is_lower_bound: bool = False
    examples: list[tuple[Place, Place]] = field(default_factory=list)

    def add(self, first: Place, again: Place) -> None:
        self.count += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append((first, again))


def repeated_rows(files: Sequence[FileStatistics]) -> Duplicates:
    """Find rows with the same parameters as an earlier row."""
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
    """Find validation rows with the same parameters as a training row."""
    found = Duplicates()
    for part in slices(*(each.params for each in (*train, *validation))):
        first = dict(_places(train, part[: len(train)]))
        for key, place in _places(validation, part[len(train) :]):
            if key in first:
                found.add(first[key], place)
    return found


def nearly_repeated_rows(files: Sequence[FileStatistics]) -> Duplicates:
    """Find rows with nearly the same prompt as another row. Rows with equal parameters do not count."""
    return _nearly_equal(_near_pairs(files, files))


def nearly_shared_rows(train: Sequence[FileStatistics], validation: Sequence[FileStatistics]) -> Duplicates:
    """Find validation rows with nearly the same prompt as a training row."""
    return _nearly_equal(_near_pairs(train, validation))


def _places(files: Sequence[FileStatistics], part: Sequence[Sequence[bytes]]) -> Iterator[tuple[bytes, Place]]:
    for each, records in zip(files, part, strict=True):
        for record in records:
            place = int.from_bytes(record[DIGEST_BYTES:], "big")
            yield record[:DIGEST_BYTES], Place(each.extent.path, place)


def _near_pairs(earlier: Sequence[FileStatistics], later: Sequence[FileStatistics]) -> Iterator[tuple[Place, Place]]:
    """Yield pairs that share a key: each row with the first row that has the key."""
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


NO_LONGER_WRITTEN = frozenset(("Median",))
"""Statistics of earlier releases, which are not compared."""


class Counted(NamedTuple):
    """The statistics of a file, and its number of repeats."""

    statistics: FileStatistics
    num_repeats: int = 1


NEWER_FIELDS = ("start_idx", "end_idx", "pypi_identifier", "do_nothing_reward", "published_scores")
"""Fields of a dataset that are not in files of earlier releases, and are left out if they are not set."""


def dataset_description(dataset: DatasetConfig) -> JsonObject:
    """Return the fields of a metrics file that describe the dataset itself."""
    description = dataset.model_dump(mode="json")
    optional = {name: description.pop(name) for name in NEWER_FIELDS}
    return description | {name: value for name, value in optional.items() if value is not None}


def metrics_of(files: Sequence[Counted]) -> JsonObject:
    """Return the statistics of all files together."""
    statistics = [each.statistics for each in files]
    numbers = _merged([(each.statistics.numbers, each.num_repeats) for each in files])
    optional = (TOKENS, *SAMPLING_PARAMETERS.values())
    written = [*ALWAYS_WRITTEN, *(name for name in optional if name in numbers)]
    return {
        EXAMPLES: sum((each.statistics.rows - each.statistics.num_bad) * each.num_repeats for each in files),
        **{name: numbers.get(name, AvgMinMax()).aggregate() for name in written},
        UNIQUE_PARAMS: unique_count(*(each.params for each in statistics)),
        UNIQUE_USER_MESSAGES: unique_count(*(each.user_messages for each in statistics)),
        **_field_metrics(files),
    }


def _merged(parts: Sequence[tuple[Mapping[str, AvgMinMax], int]]) -> dict[str, AvgMinMax]:
    merged: dict[str, AvgMinMax] = {}
    for statistics, num_repeats in parts:
        for name, found in statistics.items():
            merged.setdefault(name, AvgMinMax()).add(found.repeated(num_repeats))
    return merged


def _field_metrics(files: Sequence[Counted]) -> JsonObject:
    """Return the statistics of every field of the rows. A field with numbers and texts has both."""
    numbers = _merged([(each.statistics.field_numbers, each.num_repeats) for each in files])
    totals: dict[str, int] = {}
    digests: dict[str, list[DigestSet]] = {}
    for statistics, num_repeats in files:
        for name, texts in statistics.field_texts.items():
            totals[name] = totals.get(name, 0) + texts.total * num_repeats
            digests.setdefault(name, []).append(texts.digests)
    metrics: dict[str, JsonObject] = {_free(name): dict(found.aggregate()) for name, found in numbers.items()}
    for name, total in totals.items():
        counts = {"unique_count": unique_count(*digests[name]), "total_count": total}
        metrics[_free(name)] = metrics.get(_free(name), {}) | counts
    return dict(sorted(metrics.items()))


def _free(name: str) -> str:
    """Rename a field that has the name of a built-in statistic."""
    return f"{name} (field)" if name in BUILT_IN else name


# Comparing with the statistics of an earlier run


def differences(old: Any, new: Any, *, ignored: Collection[str] = (), place: str = "") -> list[str]:
    """Return a line for each old statistic that is missing or different now. New keys are ignored."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        skipped = {*NO_LONGER_WRITTEN, *ignored}
        compared = [(key, f"{place} -> {key}" if place else str(key)) for key in old if key not in skipped]
        missing = [f"{where}: was {old[key]!r}, is missing now" for key, where in compared if key not in new]
        found = [(old[key], new[key], where) for key, where in compared if key in new]
        return missing + [line for one, other, where in found for line in differences(one, other, place=where)]
    if isinstance(old, list) and isinstance(new, list):
        return [] if _same_items(old, new) else [f"{place}: was {old!r}, is {new!r}"]
    return [] if _is_same(old, new) else [f"{place}: was {old!r}, is {new!r}"]


def _is_same(old: Any, new: Any) -> bool:
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    if are_numbers and (isinstance(old, float) or isinstance(new, float)):
        tolerance = 0.005 if max(abs(old), abs(new)) >= 1 else 0.0005
        return math.isclose(old, new, rel_tol=0.0, abs_tol=tolerance * (1 + 1e-9))
    return type(old) is type(new) and bool(old == new)


def _same_items(old: list[Any], new: list[Any]) -> bool:
    """True if both lists have the same items, in any order."""
    left = list(new)
    for item in old:
        match = next((index for index, other in enumerate(left) if not differences(item, other)), None)
        if match is None:
            return False
        del left[match]
    return not left


def conflict_message(conflicts: Sequence[tuple[Path, list[str]]]) -> str:
    lines = ["Found conflicting aggregate metrics that need to be corrected:"]
    for path, found in conflicts:
        lines += [f"{path}:", *(f"- {line}" for line in found)]
    lines.append(
        "The new metrics are in the files *_metrics_conflict.json beside them. If the data is correct, delete the old "
        "files, or give +overwrite_metrics_conflicts=true."
    )
    return "\n".join(lines)


def offending_message(files: Sequence[FileStatistics]) -> str:
    lines = ["Found rows that are not valid. Nothing was collated."]
    for each in files:
        lines += offending_lines(each)
    lines.append("Fix them, or drop them with +drop_offending=true.")
    return "\n".join(lines)


def offending_lines(statistics: FileStatistics) -> list[str]:
    """Return one line for each reason why rows of a file are bad."""
    path = statistics.extent.path
    if not statistics.rows:
        return [f"{path}: no rows"]
    numbers = line_numbers(path, {index for places in statistics.bad.values() for index in places})
    return [
        f"{path}: {number_ranges([numbers[index] for index in places], 'line')}: {reason}"
        for reason, places in statistics.bad.items()
    ]


def line_numbers(path: Path, rows: Collection[int]) -> dict[int, int]:
    """Map row indices to line numbers. Blank lines are not rows."""
    with path.open("rb") as file:
        numbered = (number for number, line in enumerate(file, 1) if line.strip())
        found = {index: number for index, number in enumerate(numbered) if index in rows}
    return {index: found.get(index, index + 1) for index in rows}


def number_ranges(numbers: Sequence[int], noun: str, *, most: int = 20) -> str:
    """Format numbers as ranges: 'lines 3, 7-9'."""
    ranges: list[list[int]] = []
    for index in sorted(numbers):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    more = f" and {sum(last - first + 1 for first, last in ranges[most:])} more" if len(ranges) > most else ""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(shown)}{more}"
