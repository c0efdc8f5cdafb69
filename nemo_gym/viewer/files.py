"""The files that the viewer shows: those of the command line are open from the start, those of listed runs when they
are asked for."""

import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from nemo_gym.common.paths import find
from nemo_gym.errors import ConfigError, GymError, MissingPathError
from nemo_gym.llm_api.stored_tokens import encode_stored
from nemo_gym.rollouts.registry import (
    RunSummary,
    describe_output,
    find_entry,
    find_output,
    registered_runs,
    run_id,
)
from nemo_gym.rollouts.store import failures_path
from nemo_gym.training.token_file import ARROW, PARQUET, token_records
from nemo_gym.viewer.display import NoSuchRowError
from nemo_gym.viewer.index import Index
from nemo_gym.viewer.runs import outputs_below, runs_below

QUERY_TIMEOUT_S = 60.0
_CHECK_EVERY = 20_000
"""SQLite operations between checks of the time limit."""
T = TypeVar("T")


class QueryTimeoutError(GymError):
    """A query on a very large file took too long."""


class Files:
    """The opened files by their key: the place on the command line, or the id of a run. Failures beside an output are
    opened with it."""

    def __init__(self, paths: Iterable[str | Path] = ()) -> None:
        """Without paths, the runs of the registry are listed; of folders, those in them."""
        self._lock = threading.Lock()
        self._indexes: dict[str, Index] = {}
        self._folders: list[Path] = []
        given = list(dict.fromkeys(map(_place, paths)))
        self.is_registry, has_folders = not given, any(map(Path.is_dir, given))
        self._converted = tempfile.TemporaryDirectory()
        """For the rollouts of token files."""
        try:
            for place in given:
                if place.is_dir():
                    self._folders.append(_with_outputs(place))
                else:
                    self._open(run_id(place) if has_folders else str(len(self._indexes)), place)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        for index in self._indexes.values():
            index.close()
        self._converted.cleanup()

    @property
    def keys(self) -> list[str]:
        """The keys of the opened files."""
        return list(self._indexes)

    @property
    def lists_runs(self) -> bool:
        """True if there are runs to choose from, beside the files of the command line."""
        return self.is_registry or bool(self._folders)

    def runs(self) -> list[RunSummary]:
        """Return the runs to choose from: of the registry or of the folders, and the given files."""
        if self.is_registry:
            return registered_runs()
        given = [run for key, index in self._indexes.items() if (run := self._run_of(key, index)) is not None]
        below = [run for folder in self._folders for run in runs_below(folder)]
        return list({run.output: run for run in (*given, *below)}.values())

    def folder_of(self, run: RunSummary) -> str:
        """Return where a run is in its folder, or the name of the folder that it is in."""
        parent = Path(run.output).parent
        below = next((folder for folder in self._folders if parent.is_relative_to(folder)), None)
        return str(parent) if below is None else str(parent.relative_to(below.parent))

    def _open(self, key: str, path: Path) -> Index:
        self._indexes[key] = Index(self._lines_of(path))
        return self._indexes[key]

    def _lines_of(self, file: Path) -> Path:
        """The file, or the rollouts of a file of tokens as lines."""
        if file.suffix not in (ARROW, PARQUET):
            return file
        lines = Path(self._converted.name) / f"{len(self._indexes)}_{file.name}.jsonl"
        with lines.open("wb") as written:
            written.writelines(encode_stored(record) + b"\n" for record in token_records(file))
        return lines

    def index(self, key: str) -> Index:
        """Return the index of a file; that of a listed run is opened."""
        with self._lock:
            found = self._indexes.get(key)
            if found is None and (output := self._output_of_run(key)) is not None:
                return self._opened_at(output) or self._open(key, output)
        if found is None:
            raise NoSuchRowError(f"There is no file '{key[:40]}'; the viewer has {len(self._indexes)} files.")
        return found

    def _opened_at(self, output: Path) -> Index | None:
        return next((index for index in self._indexes.values() if index.path == output), None)

    def _output_of_run(self, key: str) -> Path | None:
        if not self.lists_runs:
            return None
        known = find_entry(key) if self.is_registry else None
        listed = (
            [Path(known.output)] if known else [each for folder in self._folders for each in outputs_below(folder)]
        )
        output = next((each for each in listed if run_id(each) == key), None)
        if output is not None and not output.is_file():
            raise NoSuchRowError(f"The rollouts of run {key} are gone: {output} does not exist.")
        return output

    def listing(self) -> list[dict[str, Any]]:
        """Name, run and progress of each opened file."""
        self._add_failures()
        opened = dict(self._indexes)
        is_one_folder = len({index.path.parent for index in opened.values()}) == 1
        return [
            {
                "id": key,
                "name": index.path.name if is_one_folder else f"{index.path.parent.name}/{index.path.name}",
                "path": str(index.path),
                "failures": _failures_key(key) if _failures_key(key) in opened else None,
                "run": run.model_dump() if (run := self._run_of(key, index)) is not None else None,
                **index.progress(),
            }
            for key, index in opened.items()
        ]

    def _run_of(self, key: str, index: Index) -> RunSummary | None:
        """Describe the run of a file. None for failures."""
        if key.endswith(_failures_key("")):
            return None
        return find_entry(run_id(index.path)) or describe_output(index.path)

    def query(self, key: str, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on the index of a file. Raises QueryTimeoutError if it takes too long."""
        until = time.monotonic() + QUERY_TIMEOUT_S
        with self.index(key).reading() as connection:
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
            for key, index in list(self._indexes.items()):
                path = failures_path(index.path)
                if _failures_key(key) not in self._indexes and path.is_file() and self._opened_at(path) is None:
                    self._open(_failures_key(key), path)


def _failures_key(key: str) -> str:
    return f"{key}-failures"


def _place(path: str | Path) -> Path:
    """Return the file or folder, or the output of the run with this id."""
    try:
        return find(path, what="file of rollouts").absolute()
    except MissingPathError:
        output = find_output(str(path))
        if output is None:
            raise
        if not output.is_file():
            raise MissingPathError(f"The rollouts of run {path} are gone: {output} does not exist.") from None
        return output


def _with_outputs(folder: Path) -> Path:
    if not outputs_below(folder):
        raise ConfigError(f"{folder} has no rollouts: neither it nor a folder in it has a .jsonl file.")
    return folder


def files_for_text(paths: Sequence[str]) -> list[Path]:
    """Return what `--text` prints: files, and those in folders."""
    return [file for path in paths for file in _files_at(_place(path))]


def _files_at(place: Path) -> list[Path]:
    return outputs_below(_with_outputs(place)) if place.is_dir() else [place]
