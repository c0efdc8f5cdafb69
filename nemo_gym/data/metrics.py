"""Statistics of datasets in the form in which they are printed, saved beside the data, and compared."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from nemo_gym.config.types import DatasetConfig
from nemo_gym.data.digests import DigestSet, unique_count
from nemo_gym.data.numbers import (
    ALWAYS_WRITTEN,
    BUILT_IN,
    EXAMPLES,
    SAMPLING_PARAMETERS,
    TOKENS,
    UNIQUE_PARAMS,
    UNIQUE_USER_MESSAGES,
    AvgMinMax,
)
from nemo_gym.data.scan import FileStatistics
from nemo_gym.llm_api.base import JsonObject

NO_LONGER_WRITTEN = frozenset(("Median",))
"""Statistics in files of earlier releases that are not compared."""


class Counted(NamedTuple):
    """The statistics of a file, and how often each of its rows is used."""

    statistics: FileStatistics
    num_repeats: int = 1


def dataset_description(dataset: DatasetConfig) -> JsonObject:
    """What a file of statistics says about the dataset itself."""
    description = dataset.model_dump(mode="json")
    slicing = {name: description.pop(name) for name in ("start_idx", "end_idx")}
    return description | {name: value for name, value in slicing.items() if value is not None}


def metrics_of(files: Sequence[Counted]) -> JsonObject:
    """The statistics of all these files together."""
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
    """Of every field of the rows. One that holds numbers and texts has the statistics of both."""
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
    """A field of a row may be named like a built-in statistic."""
    return f"{name} (field)" if name in BUILT_IN else name


# Comparing with the statistics of an earlier run


def differences(old: Any, new: Any, *, ignored: Collection[str] = (), place: str = "") -> list[str]:
    """What the old statistics say and the new ones do not, one sentence each. New keys are ignored."""
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
    """Whether both have the same items, in whatever order."""
    left = list(new)
    for item in old:
        match = next((index for index, other in enumerate(left) if not differences(item, other)), None)
        if match is None:
            return False
        del left[match]
    return not left
