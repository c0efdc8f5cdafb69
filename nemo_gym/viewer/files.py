"""The files that a viewer shows, each with its index."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

from nemo_gym.common.paths import find
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.rollouts.store import failures_path
from nemo_gym.viewer.display import NoSuchRowError
from nemo_gym.viewer.index import Index

QUERY_TIMEOUT_S = 60.0
_CHECK_EVERY = 20_000
"""SQLite operations between two looks at the clock."""
MAX_FILES = 30
"""Of a folder, the newest ones."""
_ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
T = TypeVar("T")


class QueryTimeoutError(GymError):
    """A query on a very large file took too long."""


class Files:
    """The opened files, in the order of the command line. Failures beside an output are opened with it."""

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self._lock = threading.Lock()
        self._indexes: list[Index] = []
        self._failures_of: dict[int, int] = {}
        try:
            for file in dict.fromkeys(file for path in paths for file in _files_at(path)):
                self._indexes.append(Index(file))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._indexes)

    def close(self) -> None:
        for index in self._indexes:
            index.close()

    def index(self, number: int) -> Index:
        if not 0 <= number < len(self._indexes):
            raise NoSuchRowError(f"There is no file {number}; the viewer has {len(self._indexes)} files.")
        return self._indexes[number]

    def listing(self) -> list[dict[str, Any]]:
        """Name and progress of each file."""
        self._add_failures()
        is_one_folder = len({index.path.parent for index in self._indexes}) == 1
        return [
            {
                "id": number,
                "name": index.path.name if is_one_folder else f"{index.path.parent.name}/{index.path.name}",
                "path": str(index.path),
                "failures": self._failures_of.get(number),
                **index.progress(),
            }
            for number, index in enumerate(self._indexes)
        ]

    def query(self, number: int, ask: Callable[[sqlite3.Connection], T]) -> T:
        """The result of a query on the index of a file, which is interrupted if it takes too long."""
        until = time.monotonic() + QUERY_TIMEOUT_S
        with self.index(number).reading() as connection:
            connection.set_progress_handler(lambda: time.monotonic() > until, _CHECK_EVERY)
            try:
                return ask(connection)
            except sqlite3.OperationalError as error:
                if "interrupt" not in str(error):
                    raise
                raise QueryTimeoutError(f"The query took longer than {QUERY_TIMEOUT_S:g} s. Narrow it.") from error

    def _add_failures(self) -> None:
        """Open the failures beside an output. They may appear during a run."""
        with self._lock:
            for number, index in list(enumerate(self._indexes)):
                path = failures_path(index.path)
                if number in self._failures_of or not path.is_file():
                    continue
                known = {each.path: place for place, each in enumerate(self._indexes)}
                if path not in known:
                    self._indexes.append(Index(path))
                self._failures_of[number] = known.get(path, len(self._indexes) - 1)


_BESIDE_OUTPUTS = ("_failures", "_journal", "_materialized_inputs")
"""How files end that a collection writes beside its rollouts."""


def _files_at(path: str | Path) -> list[Path]:
    """The file, or the newest outputs in a folder and in those one level below."""
    place = find(path, what="file of rollouts").absolute()
    if not place.is_dir():
        return [place]
    found = [file for pattern in ("*", "*/*") for file in place.glob(pattern) if file.name.endswith(_ENDINGS)]
    outputs = [file for file in found if file.is_file() and not file.stem.endswith(_BESIDE_OUTPUTS)]
    if not outputs:
        raise ConfigError(f"{place} has no rollouts: neither it nor a folder in it has a .jsonl file.")
    return sorted(outputs, key=lambda file: -file.stat().st_mtime)[:MAX_FILES]
