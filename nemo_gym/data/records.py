"""Read records from the usual kinds of file: JSONL, JSON, CSV and Parquet."""

import contextlib
import csv
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

import orjson

from nemo_gym.errors import GymError, MissingExtraError
from nemo_gym.llm_api.base import JsonObject

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz")
EXTRA = "data"
PARQUET_ROWS_AT_ONCE = 1000
MAX_LINE_BYTES = 64 * 2**20
"""The longest line of a file, and the longest cell of a table."""
MAX_DOCUMENT_BYTES = 512 * 2**20
"""The largest JSON document. It is held in memory, where it takes several times as much."""
MAX_UNPACKED_RATIO = 200
MIN_UNPACKED_LIMIT_BYTES = 2**30
"""A compressed file may unpack to this many bytes, or to `MAX_UNPACKED_RATIO` times its size if that is more."""
_MISSING = "\0missing"
"""What a cell that a line of a CSV file lacks is read as."""


class RecordsError(GymError):
    """A file does not hold records in the form that its name says."""


def read_records(path: Path) -> Iterator[JsonObject]:
    """The records of a file, one after the other. Its name says what kind of file it is."""
    kind = path.name.lower().removesuffix(".gz")
    try:
        if kind.endswith(".parquet"):
            yield from _parquet(path)
        elif kind.endswith((".csv", ".tsv")):
            yield from _csv(path, "\t" if kind.endswith(".tsv") else ",")
        elif kind.endswith((".jsonl", ".ndjson")):
            yield from _json_lines(path)
        elif kind.endswith(".json"):
            yield from _json(path)
        else:
            raise RecordsError(f"{path} is of no kind that can be read. Expected one of: {', '.join(SUFFIXES)}.")
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise RecordsError(f"{path} cannot be read: {error}.") from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        yield file  # type: ignore[misc]


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file. Lines and unpacked content beyond the limits are errors, not memory."""
    unpacked, most_unpacked = 0, max(MIN_UNPACKED_LIMIT_BYTES, MAX_UNPACKED_RATIO * path.stat().st_size)
    with _opened(path) as file:
        for number in count(1):
            line = file.readline(MAX_LINE_BYTES + 1)
            unpacked += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise RecordsError(
                    f"{path}:{number} has more than {MAX_LINE_BYTES} bytes, which is the limit of a line."
                )
            if unpacked > most_unpacked:
                raise RecordsError(
                    f"{path} unpacks to more than {most_unpacked} bytes. Unpack it yourself if it is safe."
                )
            if not line:
                return
            yield line


def _json_lines(path: Path) -> Iterator[JsonObject]:
    return (record for _, record in _checked_lines(path))


def _checked_lines(path: Path) -> Iterator[tuple[bytes, JsonObject]]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = orjson.loads(line)
        except ValueError as error:
            raise RecordsError(f"{path}:{number} is not JSON: {error}.") from error
        _refuse_repeated_keys(line, f"{path}:{number}")
        if not isinstance(record, dict):
            raise RecordsError(f"{path}:{number} is no JSON object.")
        yield line.strip(), record


def _json(path: Path) -> Iterator[JsonObject]:
    """A list of records, or an object that has one under its only key that holds a list."""
    with _opened(path) as file:
        content = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise RecordsError(
            f"{path} has more than {MAX_DOCUMENT_BYTES} bytes in one document. Convert it to JSON lines."
        )
    try:
        value = orjson.loads(content)
    except ValueError as error:
        if content.lstrip().startswith(b"{") and b"\n" in content.strip():
            yield from _json_lines(path)
            return
        raise RecordsError(f"{path} is not JSON: {error}.") from error
    _refuse_repeated_keys(content, str(path))
    if isinstance(value, dict):
        lists = [inner for inner in value.values() if isinstance(inner, list)]
        value = lists[0] if len(lists) == 1 else [value]
    if not isinstance(value, list):
        raise RecordsError(f"{path} holds neither a list of records nor an object.")
    for index, record in enumerate(value):
        if not isinstance(record, dict):
            raise RecordsError(f"{path}: element {index} is no JSON object.")
        yield record


def _csv(path: Path, delimiter: str) -> Iterator[JsonObject]:
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = (line.decode("utf-8-sig" if number == 0 else "utf-8") for number, line in enumerate(_lines(path)))
    reader = csv.DictReader(lines, delimiter=delimiter, restval=_MISSING, strict=True)
    _check_header(path, reader.fieldnames or ())
    try:
        for record in reader:
            place = f"{path}:{reader.line_num}"
            if any(cell.strip() for cell in record.get(None, ())):
                raise RecordsError(f"{place} has more cells than the header. Is a quote missing?")
            if _MISSING in record.values():
                raise RecordsError(f"{place} has fewer cells than the header. Is a quote or a comma missing?")
            yield {name: value for name, value in record.items() if name is not None}
    except csv.Error as error:
        raise RecordsError(f"{path}:{reader.reader.line_num}: {error}. Is a quote missing?") from error


def _check_header(path: Path, names: Sequence[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise RecordsError(f"{path}:1 has several columns '{repeated[0]}'. Expected different names.")


def _refuse_repeated_keys(content: bytes, place: str) -> None:
    """Of two values under one key, a decoder keeps one and says nothing."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > 1:
            repeated = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
            if repeated:
                raise RecordsError(f"{place} has the key '{repeated[0]}' twice. Expected it once.")

    with contextlib.suppress(ValueError):  # what only the other decoder takes is no mistake
        json.loads(content, object_pairs_hook=check)


def _parquet(path: Path) -> Iterator[JsonObject]:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("Reading Parquet", EXTRA) from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_ROWS_AT_ONCE):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise RecordsError(f"{path} cannot be read as Parquet: {error}.") from error


def json_lines(path: Path) -> Iterator[bytes]:
    """The records of a file, each as a line. Those of a JSONL file stay as they are written."""
    if path.name.endswith(".jsonl"):
        yield from (line + b"\n" for line, _ in _checked_lines(path))
    else:
        yield from map(as_json_line, read_records(path))


def as_json_line(record: JsonObject) -> bytes:
    """A record as one line; what JSON has no form for (dates, bytes) as text."""
    try:
        return orjson.dumps(record, default=str) + b"\n"
    except TypeError:
        return json.dumps(record, default=str).encode() + b"\n"
