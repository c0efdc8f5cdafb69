"""Full-text search: fast over the raw bytes of a file, then exact in the decoded record.

The text is looked for as JSON writes it, in both usual spellings of non-ASCII letters. Upper and lower case of ASCII
letters are the same. A hit is a string value of the record that contains the text; a key is none, nor is a word of the
format such as `output_text`."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nemo_gym.viewer.index import Index, Source
from nemo_gym.viewer.records import MAX_PARSED_BYTES, parse_line

CHUNK = 1 << 22
SNIPPET = 80
MAX_HITS = 1000
PROGRESS_BYTES = 1 << 28
WAIT_S = 0.2
_CONSTANTS = frozenset(("type", "object", "status", "role"))
"""Fields whose values are words of the format, not of a message."""


class Hit(NamedTuple):
    """A row that contains the text."""

    row: int
    path: str
    before: str
    match: str
    after: str
    values: int
    """How many values of the row contain it."""


class Span(NamedTuple):
    """The part of a file to search, and how much of it at a time."""

    start: int
    end: int
    chunk_bytes: int


class Progress(NamedTuple):
    """How far a search has come."""

    searched_bytes: int
    total_bytes: int | None
    hits: int
    is_done: bool


def search(
    index: Index, text: str, *, is_cancelled: Callable[[], bool], chunk_bytes: int = CHUNK
) -> Iterator[Hit | Progress]:
    """Hits as they are found, with progress between them. Follows an index that is being built to its end."""
    needles, position, reported, hits = spellings(text), 0, 0, 0
    while not is_cancelled() and hits < MAX_HITS:
        span = Span(position, index.indexed_bytes, chunk_bytes)
        for start, end in _candidates(index.source, needles, span, is_cancelled):
            position = end
            hit = None if start is None else _hit_in(index, start, position - start, text)
            if hit is not None:
                hits += 1
                yield hit
            if hit is not None or position - reported >= PROGRESS_BYTES:
                reported = position
                yield Progress(position, index.source.total(), hits, False)
            if hits >= MAX_HITS:
                break
        if position >= index.indexed_bytes:
            if index.is_complete:
                break
            yield Progress(position, index.source.total(), hits, False)
            index.wait_for(index.rows + 1, timeout_s=WAIT_S)
    yield Progress(position, index.source.total(), hits, True)


def spellings(text: str) -> list[bytes]:
    """The text as it may stand in a JSON string, in lower case."""
    forms = (json.dumps(text, ensure_ascii=escaped)[1:-1] for escaped in (False, True))
    lowered = (form.encode(errors="replace").lower() for form in forms)
    return list(dict.fromkeys(lowered))


def _candidates(
    source: Source, needles: list[bytes], span: Span, is_cancelled: Callable[[], bool]
) -> Iterator[tuple[int | None, int]]:
    """Start and end of each line with a spelling in it; (None, position) after a chunk."""
    overlap, position, end = max(map(len, needles)) - 1, span.start, span.end
    while position < end and not is_cancelled():
        chunk = source.read(position, min(span.chunk_bytes + overlap, end - position)).lower()
        if not chunk:
            return
        searched = 0
        for at in _matches(chunk, needles):
            if at < searched:
                continue
            start = position + chunk.rfind(b"\n", 0, at) + 1
            start = start if start > position else _line_start(source, position)
            searched = chunk.find(b"\n", at) + 1 or _line_end(source, position + len(chunk), end) - position
            yield start, position + searched
        is_last = position + len(chunk) >= end
        position = max(position + searched, end if is_last else position + len(chunk) - overlap)
        yield None, position


def _matches(chunk: bytes, needles: list[bytes]) -> Iterator[int]:
    """Where the needles are, in order."""
    following = {needle: chunk.find(needle) for needle in needles}
    while found := {needle: at for needle, at in following.items() if at >= 0}:
        needle, at = min(found.items(), key=lambda item: item[1])
        yield at
        following[needle] = chunk.find(needle, at + 1)


def _line_start(source: Source, offset: int) -> int:
    while offset > 0:
        size = min(65536, offset)
        newline = source.read(offset - size, size).rfind(b"\n")
        if newline >= 0:
            return offset - size + newline + 1
        offset -= size
    return 0


def _line_end(source: Source, offset: int, end: int) -> int:
    while offset < end:
        chunk = source.read(offset, 65536)
        newline = chunk.find(b"\n")
        if newline >= 0 or not chunk:
            return offset + newline + 1 if chunk else end
        offset += len(chunk)
    return end


def _hit_in(index: Index, offset: int, length: int, text: str) -> Hit | None:
    """The hit in a line, if one of its values really contains the text."""
    if length > MAX_PARSED_BYTES:
        return _whole_line_hit(index, offset, text, f" in a line of {length:,} bytes")
    try:
        record = parse_line(index.source.read(offset, length))
    except ValueError:
        return _whole_line_hit(index, offset, text, " in a line that is not JSON")
    found = [
        (path, value, at)
        for path, value in _strings(record)
        if (at := value.lower().find(text.lower())) >= 0 and path.rpartition(".")[2] not in _CONSTANTS
    ]
    row = row_at(index, offset) if found else None
    if row is None:
        return None
    path, value, at = found[0]
    after = at + len(text)
    return Hit(
        row, path, value[max(0, at - SNIPPET) : at], value[at:after], value[after : after + SNIPPET], len(found)
    )


def _whole_line_hit(index: Index, offset: int, text: str, where: str) -> Hit | None:
    row = row_at(index, offset)
    return None if row is None else Hit(row, "", "", text, where, 1)


def row_at(index: Index, offset: int) -> int | None:
    """The number of the row that starts at an offset. Rows are in the order of their offsets."""
    low, high = 0, index.rows - 1
    with index.reading() as connection:
        while low <= high:
            middle = (low + high) // 2
            (found,) = connection.execute("SELECT offset FROM rows WHERE id = ?", (middle,)).fetchone()
            if found == offset:
                return middle
            low, high = (middle + 1, high) if found < offset else (low, middle - 1)
    return None


def _strings(value: Any) -> Iterator[tuple[str, str]]:
    """Every string in a value with its path. Without recursion: a record may be nested deeply."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            yield path, item
        elif isinstance(item, dict):
            stack.extend((f"{path}.{name}" if path else str(name), each) for name, each in reversed(item.items()))
        elif isinstance(item, list):
            stack.extend((f"{path}[{number}]", each) for number, each in reversed(list(enumerate(item))))
