"""The index of a JSONL file: where each line is and what the table shows of it, in an SQLite file beside it.

A thread reads the file once, from its start to its end and on as it grows; pages can be read meanwhile. Each batch is
one transaction that first checks how far the index has come, so two viewers of one file extend the same index."""

import contextlib
import hashlib
import logging
import os
import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.rollouts.output_files import sibling_path
from nemo_gym.viewer.records import (
    BOM,
    INVALID,
    MAX_PARSED_BYTES,
    Described,
    describe_large,
    describe_line,
)
from nemo_gym.viewer.source import (
    COMPRESSED,
    Line,
    PlainSource,
    UnpackedSource,
    make_cache_folder,
    open_source,
    read_lines,
)

logger = logging.getLogger(__name__)

APPLICATION_ID = 0x4E475657
VERSION = 2
FIRST_BATCH_ROWS = 200
BATCH_ROWS = 4000
BATCH_BYTES = 16_000_000
POLL_EVERY_S = 0.3
KEPT_FROM_BYTES = 32_000_000
"""The index of a smaller file is made again each time, so that no file is left beside it."""
BUSY_TIMEOUT_S = 30.0
SAMPLE = 4096
"""How many bytes at the start and before the end of what is indexed must be the same when an index is used again."""

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
        """True if all that is in the file for now is indexed."""
        return self._is_complete

    @property
    def database(self) -> Path:
        return self._place

    def progress(self) -> dict[str, Any]:
        """How far the index has come."""
        return {
            "rows": self._rows,
            "indexed_bytes": self._position,
            "total_bytes": self.source.total(),
            "complete": self._is_complete,
            "error": self.source.error,
            "note": self._note() if self._is_complete else None,
        }

    def _note(self) -> str | None:
        """What a user should know of a file that is read to its end."""
        size = self.source.size()
        if not size:
            return "The file is empty."
        left = size - self._position
        start = self.source.read(0, 100).removeprefix(BOM).lstrip()
        if start.startswith(b"[") or start.partition(b"\n")[0].strip() == b"{":
            how = "'.[]'" if start.startswith(b"[") else "."
            return f"This is not JSON Lines, one object a line. Convert it: jq -c {how} {self.path.name}"
        return f"The last line, of {left:,} bytes, is not complete." if left else None

    def wait_for(self, rows: int, *, timeout_s: float) -> None:
        """Until that many rows are indexed, or all there are, or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_complete or self._rows >= rows or self._stop.is_set(), timeout_s)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for queries. Indexing pauses meanwhile, so that it does not slow them down."""
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
        """Offset and length of a row."""
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
        """Go on from an index of this very file, or start over."""
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
        """Hashes of the start and the end of what is indexed."""
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
        """Index the next batch. False if there is nothing to do for now."""
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
        """True for a last line without a newline that nothing can be added to: a complete JSON object."""
        text = (line.text or b"").strip()
        return not text or (text.endswith(b"}") and describe_line(text).outcome != INVALID)

    def _described(self, line: Line) -> Described | None:
        if line.text is None:
            end = self.source.read(line.offset + line.length - 400, 400)
            return describe_large(end)
        return describe_line(line.text) if line.text.strip() else None

    def _add(self, batch: list[tuple[Line, Described | None]]) -> None:
        """Write a batch, unless another viewer has done so."""
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
    """Where the index of a file is, and whether it is only for this process.

    That of a large file is kept beside it, or in the cache if that folder is read-only. A small file is indexed again
    quickly, and the offsets of an unpacked file end with the process."""
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:20]
    if path.suffix in COMPRESSED or path.stat().st_size < kept_from_bytes:
        return cache_folder() / f"{os.getpid()}-{digest}.sqlite", True
    mode = path.parent.stat().st_mode
    if os.access(path.parent, os.W_OK) and mode & 0o222:  # root may write into a folder that nobody should write into
        return sibling_path(path, "index", ".sqlite"), False
    return cache_folder() / f"{digest}.sqlite", False


def cache_folder() -> Path:
    """The folder for what only viewers use. What a killed viewer has left there is removed."""
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
