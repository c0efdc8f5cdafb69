"""The bytes of a JSONL file at any offset, also of a compressed file and of one that is still being written."""

import importlib.util
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from nemo_gym.common.paths import CACHE_ENV_VAR, cache_dir
from nemo_gym.errors import ConfigError, GymError, MissingExtraError

logger = logging.getLogger(__name__)

CHUNK = 1 << 22
PACKED_CHUNK = 1 << 18
COMPRESSED = (".gz", ".zst")
FREE_DISK_SHARE = 0.05
"""Unpacking stops when less than this share of the disk is free."""


class UnpackError(GymError):
    """A compressed file is damaged or not complete."""


class Line(NamedTuple):
    """A line of a file. Its text is None if it is longer than the caller wants to hold."""

    offset: int
    length: int
    """With its newline."""
    text: bytes | None


class Source(Protocol):
    """Random access to the bytes of a file."""

    path: Path
    error: str | None
    """Why no more bytes will come, if that is not the end of the file."""

    def size(self) -> int:
        """How many bytes can be read now."""

    def read(self, offset: int, size: int) -> bytes:
        """The bytes there; fewer at the end."""

    def advance(self) -> bool:
        """Make more bytes readable, if they have to be unpacked. False if there are none for now."""

    def total(self) -> int | None:
        """The size of the whole file, if known."""

    def close(self) -> None: ...


class PlainSource:
    """A file as it is. It may grow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: str | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ConfigError(f"Cannot read {path}: {error.strerror}.") from error

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def total(self) -> int | None:
        return self.size()

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def advance(self) -> bool:
        return False

    def is_replaced(self) -> bool:
        """True if another file has the name now."""
        try:
            return os.stat(self.path).st_ino != os.fstat(self._fd).st_ino
        except OSError:
            return False

    def reopen(self) -> None:
        """Open the file that has the name now."""
        new = os.open(self.path, os.O_RDONLY)
        os.dup2(new, self._fd)
        os.close(new)

    def close(self) -> None:
        os.close(self._fd)


def make_cache_folder() -> Path:
    """The folder for what only viewers use."""
    folder = cache_dir() / "viewer"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"Cannot create {folder}: {error.strerror}. Set {CACHE_ENV_VAR} to a writable folder."
        ) from None
    return folder


class UnpackedSource:
    """A compressed file, unpacked bit by bit into a temporary file without a name, which ends with the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: str | None = None
        folder = make_cache_folder()
        if path.suffix == ".zst" and importlib.util.find_spec("zstandard") is None:
            raise MissingExtraError(f"{path.name} is compressed with zstd. Reading it", "viewer")
        self._chunks = _unpack(path)
        self._unpacked = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`
        self._size, self._is_done = 0, False

    def size(self) -> int:
        return self._size

    def total(self) -> int | None:
        return self._size if self._is_done else None

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._unpacked.fileno(), min(size, max(0, self._size - offset)), offset)

    def advance(self) -> bool:
        if self._is_done:
            return False
        try:
            chunk = self._next_chunk()
        except StopIteration:
            chunk = None
        except (OSError, UnpackError) as error:
            self.error = f"{self.path.name} cannot be unpacked beyond this point: {error}."
            chunk = None
        self._is_done = chunk is None
        self._size += len(chunk or b"")
        return chunk is not None

    def _next_chunk(self) -> bytes:
        usage = shutil.disk_usage(cache_dir())
        if usage.free < usage.total * FREE_DISK_SHARE:
            raise UnpackError(f"less than {FREE_DISK_SHARE:.0%} of the disk at {cache_dir()} is free")
        chunk = next(self._chunks)
        written = 0
        while written < len(chunk):
            written += os.pwrite(self._unpacked.fileno(), chunk[written:], self._size + written)
        return chunk

    def close(self) -> None:
        self._chunks.close()
        self._unpacked.close()


def open_source(path: Path) -> PlainSource | UnpackedSource:
    """The bytes of a file, unpacked if its name says that it is compressed."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; expected a file of rollouts or a dataset.")
    if not path.is_file():
        raise ConfigError(f"{path} is not a regular file; expected a file of rollouts or a dataset.")
    return UnpackedSource(path) if path.suffix in COMPRESSED else PlainSource(path)


def read_lines(source: Source, start: int, end: int, *, max_bytes: int) -> Iterator[Line]:
    """The complete lines between two offsets, and what follows the last newline if it is not empty."""
    pending, held, offset, position = b"", 0, start, start
    while position < end:
        chunk = source.read(position, min(CHUNK, end - position))
        if not chunk:
            return
        position += len(chunk)
        parts = chunk.split(b"\n")
        for part in parts[:-1]:
            length = held + len(part) + 1
            yield Line(offset, length, pending + part if length <= max_bytes else None)
            offset, pending, held = offset + length, b"", 0
        held += len(parts[-1])
        pending = pending + parts[-1] if held <= max_bytes else b""
    if held:
        yield Line(offset, held, pending if held <= max_bytes else None)


def _unpack(path: Path) -> Generator[bytes, None, None]:
    """What is in a compressed file, as far as it can be read. Then an UnpackError, if that is not its end."""
    with path.open("rb") as file:
        yield from _gunzip(file) if path.suffix == ".gz" else _unzstd(file)


def _gunzip(file: IO[bytes]) -> Iterator[bytes]:
    """By hand, because `gzip` drops what it has unpacked when it comes to a fault."""
    member, is_open = zlib.decompressobj(wbits=31), False
    while packed := file.read(PACKED_CHUNK):
        while packed:
            is_open = True
            try:
                yield member.decompress(packed, CHUNK)
            except zlib.error as error:
                raise UnpackError(str(error)) from error
            packed = member.unconsumed_tail
            if member.eof:
                packed, is_open = member.unused_data.lstrip(b"\0"), False
                member = zlib.decompressobj(wbits=31)
    if is_open:
        raise UnpackError("it ends too early")


def _unzstd(file: IO[bytes]) -> Iterator[bytes]:
    import zstandard

    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    try:
        while chunk := reader.read(PACKED_CHUNK):
            yield chunk
    except zstandard.ZstdError as error:
        raise UnpackError(str(error)) from error
