"""The index of a JSONL file: the offset of each line and its values for the table, in an SQLite file beside it.

A thread reads the file once, and continues as it grows; pages can be read meanwhile. Each batch is one transaction
that first checks the position of the index, so two viewers of one file can extend the same index."""

import contextlib
import hashlib
import importlib.util
import logging
import os
import secrets
import shutil
import sqlite3
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import orjson

from nemo_gym.common.paths import CACHE_ENV_VAR, cache_dir
from nemo_gym.errors import ConfigError, GymError, MissingExtraError
from nemo_gym.rollouts.store import sibling_path
from nemo_gym.viewer.records import (
    BOM,
    INVALID,
    MAX_PARSED_BYTES,
    Described,
    describe_large,
    describe_line,
)

CHUNK = 1 << 22
PACKED_CHUNK = 1 << 18
COMPRESSED = (".gz", ".zst")
FREE_DISK_SHARE = 0.05
"""Unpacking stops when less than this share of the disk is free."""


class UnpackError(GymError):
    """A compressed file is damaged or not complete."""


class Line(NamedTuple):
    """A line of a file. Its text is None if it is longer than the caller's limit."""

    offset: int
    length: int
    """Length with its newline."""
    text: bytes | None


class Source(Protocol):
    """Random access to the bytes of a file."""

    path: Path
    error: str | None
    """Why reading stopped before the end of the file."""

    def size(self) -> int:
        """Return the number of bytes that can be read now."""

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes at an offset; fewer at the end."""

    def advance(self) -> bool:
        """Unpack more bytes, if the file is compressed. Return False if there are none now."""

    def total(self) -> int | None:
        """Return the size of the whole file, if known."""

    def close(self) -> None: ...


class PlainSource:
    """An uncompressed file. It may grow."""

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
        """True if the path is another file now."""
        try:
            return os.stat(self.path).st_ino != os.fstat(self._fd).st_ino
        except OSError:
            return False

    def reopen(self) -> None:
        """Open the file that is at the path now."""
        new = os.open(self.path, os.O_RDONLY)
        os.dup2(new, self._fd)
        os.close(new)

    def close(self) -> None:
        os.close(self._fd)


def make_cache_folder() -> Path:
    """Create the cache folder of viewers and return it."""
    folder = cache_dir() / "viewer"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"Cannot create {folder}: {error.strerror}. Set {CACHE_ENV_VAR} to a writable folder."
        ) from None
    return folder


class UnpackedSource:
    """A compressed file, unpacked in chunks into an unnamed temporary file, which ends with the process."""

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
    """Open a file, unpacked if its suffix is that of a compressed file."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; expected a file of rollouts or a dataset.")
    if not path.is_file():
        raise ConfigError(f"{path} is not a regular file; expected a file of rollouts or a dataset.")
    return UnpackedSource(path) if path.suffix in COMPRESSED else PlainSource(path)


def read_lines(source: Source, start: int, end: int, *, max_bytes: int) -> Iterator[Line]:
    """Yield the complete lines between two offsets, and the text after the last newline if it is not empty."""
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
    """Yield the content of a compressed file as far as it can be read. Raises UnpackError if that is not its end."""
    with path.open("rb") as file:
        yield from _gunzip(file) if path.suffix == ".gz" else _unzstd(file)


def _gunzip(file: IO[bytes]) -> Iterator[bytes]:
    """Unpack with `zlib`, because `gzip` drops unpacked data when it finds an error."""
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


logger = logging.getLogger(__name__)

APPLICATION_ID = 0x4E475657
VERSION = 3
FIRST_BATCH_ROWS = 200
BATCH_ROWS = 4000
BATCH_BYTES = 16_000_000
POLL_EVERY_S = 0.3
WRITING_S = 10.0
"""A file that was changed so recently may be written now, so that half a line at its end is no fault."""
KEPT_FROM_BYTES = 32_000_000
"""Size from which an index is kept. Smaller files are indexed each time, so no file is left beside them."""
BUSY_TIMEOUT_S = 30.0
SAMPLE = 4096
"""Bytes at the start and at the end of the indexed part that must be unchanged to reuse an index."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY CHECK (id = 0), version INTEGER, position INTEGER,
    rows INTEGER, size INTEGER, mtime INTEGER, inode INTEGER, samples TEXT);
CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, offset INTEGER, length INTEGER, outcome TEXT, reward REAL,
    task INTEGER, repeat INTEGER, task_key INTEGER, prompt_key INTEGER, input_tokens INTEGER, output_tokens INTEGER,
    turns INTEGER, tool_calls INTEGER, seconds REAL, attempt INTEGER);
CREATE TABLE IF NOT EXISTS details (id INTEGER PRIMARY KEY, prompt TEXT, answer TEXT, fields TEXT);
CREATE TABLE IF NOT EXISTS fields (name TEXT PRIMARY KEY, count INTEGER);
CREATE INDEX IF NOT EXISTS rows_by_task ON rows (task_key, reward);
INSERT OR IGNORE INTO state VALUES (0, 1, 0, 0, 0, 0, 0, '');
"""
_ROW = f"INSERT INTO rows VALUES ({', '.join('?' * 15)})"


class Index:
    """The index of one file, kept up to date by a thread while it is open."""

    def __init__(self, path: Path, *, kept_from_bytes: int = KEPT_FROM_BYTES) -> None:
        self.path = path.absolute()
        self.source: PlainSource | UnpackedSource = open_source(self.path)
        self._place, self._is_temporary = _place(self.path, kept_from_bytes)
        self._position = self._rows = 0
        self._is_complete = False
        self._stop, self._changed = threading.Event(), threading.Condition()
        self._idle = threading.Event()
        self._idle.set()
        self._requests, self._requests_lock = 0, threading.Lock()
        self._writer = self._open_database()
        self._adopt_or_reset()
        self._thread = threading.Thread(target=self._run, name=f"index-{path.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._idle.set()
        self._thread.join()
        self._writer.close()
        self.source.close()
        if self._is_temporary:
            for ending in ("", "-wal", "-shm"):
                Path(f"{self._place}{ending}").unlink(missing_ok=True)

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def indexed_bytes(self) -> int:
        return self._position

    @property
    def is_complete(self) -> bool:
        """True if the whole file is indexed as of now."""
        return self._is_complete

    @property
    def database(self) -> Path:
        return self._place

    def progress(self) -> dict[str, Any]:
        """Return the progress of the index."""
        return {
            "rows": self._rows,
            "indexed_bytes": self._position,
            "total_bytes": self.source.total(),
            "complete": self._is_complete,
            "error": self.source.error,
            "note": self._note() if self._is_complete else None,
        }

    def _note(self) -> str | None:
        """Return a note for the user about a file that was read to its end."""
        size = self.source.size()
        if not size:
            return "The file is empty."
        left = size - self._position
        start = self.source.read(0, 100).removeprefix(BOM).lstrip()
        if start.startswith(b"[") or start.partition(b"\n")[0].strip() == b"{":
            how = "'.[]'" if start.startswith(b"[") else "."
            return f"This is not JSON Lines, one object a line. Convert it: jq -c {how} {self.path.name}"
        is_being_written = time.time() - os.stat(self.path).st_mtime < WRITING_S
        return f"The last line, of {left:,} bytes, is not complete." if left and not is_being_written else None

    def wait_for(self, rows: int, *, timeout_s: float) -> None:
        """Wait until that many rows, or all rows, are indexed, or the time limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_complete or self._rows >= rows or self._stop.is_set(), timeout_s)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for queries. Indexing pauses meanwhile, so that it does not slow them down."""
        self._count_request(1)
        try:
            with contextlib.closing(_connect(self._place, read_only=True)) as connection:
                yield connection
        finally:
            self._count_request(-1)

    def _count_request(self, more: int) -> None:
        with self._requests_lock:
            self._requests += more
            if self._requests:
                self._idle.clear()
            else:
                self._idle.set()

    def line_at(self, row: int) -> tuple[int, int] | None:
        """Return the offset and the length of a row."""
        with self.reading() as connection:
            found: tuple[int, int] | None = connection.execute(
                "SELECT offset, length FROM rows WHERE id = ?", (row,)
            ).fetchone()
        return found

    def _open_database(self) -> sqlite3.Connection:
        try:
            return self._prepare(self._place)
        except sqlite3.DatabaseError as error:
            logger.warning("the index is not kept at %s: %s", self._place, error)
        self._place = cache_folder() / f"{os.getpid()}-{secrets.token_hex(8)}.sqlite"
        self._is_temporary = True
        return self._prepare(self._place)

    def _prepare(self, place: Path) -> sqlite3.Connection:
        with contextlib.suppress(OSError):  # as readable as the file itself, and no more
            mode = os.stat(self.path).st_mode & 0o666
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode | 0o200))
        is_new = place.exists() and place.stat().st_size == 0
        connection = _connect(place)
        try:
            if not is_new and connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise sqlite3.DatabaseError("the file there is not an index")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
        except sqlite3.DatabaseError:
            connection.close()
            raise
        return connection

    def _adopt_or_reset(self) -> None:
        """Continue an existing index of this file, or start over."""
        state = self._writer.execute("SELECT version, position, rows, size, mtime, inode, samples FROM state")
        version, position, rows, size, mtime, inode, samples = state.fetchone()
        now = os.stat(self.path)
        is_same = (now.st_size, now.st_mtime_ns) == (size, mtime)
        has_grown = inode == now.st_ino and now.st_size > size
        is_usable = version == VERSION and not self._is_temporary and (is_same or has_grown)
        if is_usable and position <= self.source.size() and samples == self._samples(position):
            self._position, self._rows = position, rows
        else:
            self._reset()

    def _reset(self) -> None:
        with self._transaction():
            for table in ("rows", "details", "fields"):
                self._writer.execute(f"DELETE FROM {table}")
            self._writer.execute("UPDATE state SET version = ?, position = 0, rows = 0, size = 0", (VERSION,))
        self._position = self._rows = 0

    def _samples(self, position: int) -> str:
        """Hash the start and the end of the indexed part."""
        start = max(0, position - SAMPLE)
        parts = (self.source.read(0, min(SAMPLE, position)), self.source.read(start, position - start))
        return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if not self._step():
                    self._report(is_complete=True)
                    self._stop.wait(POLL_EVERY_S)
        except Exception as error:
            logger.exception("the index of %s stopped", self.path)
            self.source.error = f"The index stopped: {error}"
            self._report(is_complete=True)

    def _step(self) -> bool:
        """Index the next batch. Return False if there is nothing to do now."""
        source = self.source
        if isinstance(source, PlainSource) and (source.is_replaced() or source.size() < self._position):
            source.reopen()
            self._reset()
        if source.size() == self._position and not source.advance():
            return False
        lines = list(self._next_lines(source.size()))
        while not lines and source.advance():
            lines = list(self._next_lines(source.size()))
        if not lines:
            return False
        self._add([(line, self._described(line)) for line in lines])
        self._idle.wait(1.0)
        return True

    def _next_lines(self, end: int) -> Iterator[Line]:
        most = BATCH_ROWS if self._rows else FIRST_BATCH_ROWS
        for count, line in enumerate(read_lines(self.source, self._position, end, max_bytes=MAX_PARSED_BYTES), 1):
            if line.offset + line.length == end and not self._is_terminated(line) and not self._is_whole(line):
                return
            yield line
            if count == most or line.offset + line.length - self._position > BATCH_BYTES:
                return

    def _is_terminated(self, line: Line) -> bool:
        return self.source.read(line.offset + line.length - 1, 1) == b"\n"

    def _is_whole(self, line: Line) -> bool:
        """True if a last line without a newline is a complete JSON object."""
        text = (line.text or b"").strip()
        return not text or (text.endswith(b"}") and describe_line(text).outcome != INVALID)

    def _described(self, line: Line) -> Described | None:
        if line.text is None:
            end = self.source.read(line.offset + line.length - 400, 400)
            return describe_large(end)
        return describe_line(line.text) if line.text.strip() else None

    def _add(self, batch: list[tuple[Line, Described | None]]) -> None:
        """Write a batch, unless another viewer has written it."""
        with self._transaction():
            position, rows = self._writer.execute("SELECT position, rows FROM state").fetchone()
            if position != self._position:
                self._position, self._rows = position, rows
                return
            listed = [(line, described) for line, described in batch if described is not None]
            self._insert(rows, listed)
            end = batch[-1][0].offset + batch[-1][0].length
            now = os.stat(self.path)
            self._writer.execute(
                "UPDATE state SET position = ?, rows = ?, size = ?, mtime = ?, inode = ?, samples = ?",
                (end, rows + len(listed), now.st_size, now.st_mtime_ns, now.st_ino, self._samples(end)),
            )
        self._position, self._rows = end, rows + len(listed)
        self._report(is_complete=False)

    def _insert(self, first: int, listed: list[tuple[Line, Described]]) -> None:
        numbered = [(first + number, line, found) for number, (line, found) in enumerate(listed)]
        places = ((row, line.offset, line.length, *found[:12]) for row, line, found in numbered)
        self._writer.executemany(_ROW, places)
        details = ((row, one.prompt, one.answer, orjson.dumps(one.fields).decode()) for row, _, one in numbered)
        self._writer.executemany("INSERT INTO details VALUES (?, ?, ?, ?)", details)
        names = Counter(name for _, found in listed for name in found.fields)
        self._writer.executemany(
            "INSERT INTO fields VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET count = count + excluded.count",
            names.items(),
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._writer.execute("ROLLBACK")
            raise
        self._writer.execute("COMMIT")

    def _report(self, *, is_complete: bool) -> None:
        with self._changed:
            self._is_complete = is_complete
            self._changed.notify_all()


def _place(path: Path, kept_from_bytes: int) -> tuple[Path, bool]:
    """Return the path of a file's index, and whether the index is only for this process.

    The index of a large file is kept beside it, or in the cache if that folder is read-only. A small file is indexed
    again quickly, and the offsets of an unpacked file end with the process."""
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:20]
    if path.suffix in COMPRESSED or path.stat().st_size < kept_from_bytes:
        return cache_folder() / f"{os.getpid()}-{digest}.sqlite", True
    mode = path.parent.stat().st_mode
    if os.access(path.parent, os.W_OK) and mode & 0o222:  # root may write into read-only folders, too
        return sibling_path(path, "index", ".sqlite"), False
    return cache_folder() / f"{digest}.sqlite", False


def cache_folder() -> Path:
    """Return the cache folder, after removing what killed viewers have left there."""
    folder = make_cache_folder()
    for left in folder.glob("*-*.sqlite*"):
        pid = left.name.partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            left.unlink(missing_ok=True)
    return folder


def _connect(place: Path, *, read_only: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(place, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")  # the file may come from anywhere
    connection.execute("PRAGMA mmap_size = 0")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection
