"""Files of rollouts, read again line by line. A rollout counts once: a line that repeats one, as after appending the
same file twice, is skipped."""

import hashlib
import logging
import shlex
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nemo_gym.common.words import count_of, json_type
from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME

logger = logging.getLogger(__name__)

SHOWN_RANGES = 5


class RepeatedLines:
    """The numbers of such lines."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int) -> None:
        self._numbers.add(number)

    def warn(self, path: Path) -> None:
        """Say how many there are, and how to remove them."""
        if not self._numbers:
            return
        ranges = _ranges(sorted(self._numbers))
        which = "the first of them" if len(ranges) > SHOWN_RANGES else "them"
        command = f"sed -i '{';'.join(f'{one}d' for one in ranges[:SHOWN_RANGES])}' {shlex.quote(str(path))}"
        lines = count_of(len(self._numbers), "line")
        logger.warning(
            "%s of %s repeat rollouts of earlier lines and do not count. To remove %s: %s",
            *(lines, path, which, command),
        )


def _ranges(numbers: list[int]) -> list[str]:
    """Sorted line numbers as `sed` takes them: `3`, `5,8`."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda one: one[1] - one[0])]
    return [f"{run[0]},{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]


class SeenRollouts:
    """Tells rollouts that were read already, by their row, repeat and response: outputs of several runs in one file
    have other responses. Takes about 100 bytes for each."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def is_repeated(self, record: Mapping[str, Any]) -> bool:
        """True if the record's rollout was asked for before. Never for a failure, or a record without identity."""
        identity = [record.get(name) for name in (TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME)]
        if None in identity or "reward" not in record:
            return False
        digest = hashlib.blake2b(orjson.dumps([*identity, record.get("response")]), digest_size=12).digest()
        if digest in self._digests:
            return True
        self._digests.add(digest)
        return False


class StoredRolloutsError(ConfigError):
    """A file of rollouts, or the dataset given with it, does not hold what the job needs."""


class StoredLine(NamedTuple):
    """One record, and where it is."""

    offset: int
    place: str
    """The file and the line, for messages."""
    record: dict[str, Any]
    number: int = 0
    """Of the line, from 1."""


def read_records(path: Path) -> Iterator[StoredLine]:
    """Yield the records of a JSONL file. Half a line at its end is skipped: a run may still be writing it."""
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
                yield StoredLine(offset, place, record, number)
            elif record is not None:
                raise StoredRolloutsError(f"{place} is {json_type(record)}, expected a JSON object.")
            offset += len(line)


def read_rollouts(path: Path, *, warn: bool = True) -> Iterator[StoredLine]:
    """Yield the records of a JSONL file, each rollout once. Lines that repeat one are skipped, with a warning."""
    seen, repeated = SeenRollouts(), RepeatedLines()
    for stored in read_records(path):
        if seen.is_repeated(stored.record):
            repeated.add(stored.number)
        else:
            yield stored
    if warn:
        repeated.warn(path)
