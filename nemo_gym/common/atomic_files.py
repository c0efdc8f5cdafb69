"""Files that a job reads and writes: JSONL line by line, and output that appears whole or not at all."""

import contextlib
import fcntl
import glob
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from nemo_gym.errors import ConfigError, GymError, StorageError


def check_writable(path: Path, *, overwrite: bool, sources: tuple[Path, ...] = ()) -> None:
    """Refuse to overwrite the input of the job and, without `overwrite`, any other file."""
    if path.exists() and any(path.samefile(source) for source in sources):
        raise ConfigError(f"{path} is what the command reads. Give another file for the output.")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists. Give another file for the output, or +overwrite=true to replace it.")


def make_folder(path: Path) -> None:
    """Create a folder for output, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot create the folder {path}: {error.strerror}.") from error


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name only once it is complete, and in place of an older one. A device or pipe is
    written to as it is."""
    if path.exists() and not path.is_file() and not path.is_dir():  # such as /dev/null, which must not be replaced
        with path.open("wb") as device:
            yield device
        return
    make_folder(path.parent)
    _remove_abandoned_parts(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        is_of_others = isinstance(error, GymError | TimeoutError | ConnectionError)
        if is_of_others or error.filename not in (None, str(part)):  # what the code inside was busy with
            raise
        raise StorageError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)


def _remove_abandoned_parts(path: Path) -> None:
    """Delete what killed processes left of this file. A process that is still writing holds a lock."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def read_jsonl(path: Path) -> list[Any]:
    """The values of a JSONL file, without blank lines."""
    with path.open("rb") as lines:
        return [orjson.loads(line) for line in lines if line.strip()]


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document, indented."""
    with atomic_write(path) as file:
        file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")


def concatenate(parts: Sequence[Path], output: Path) -> None:
    """Write the content of all parts, in order, to one file."""
    with atomic_write(output) as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file, 2**20)
