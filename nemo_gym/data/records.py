"""Read other people's datasets: records from JSONL, JSON, CSV and Parquet files, and their chat messages (OpenAI's
`messages`, ShareGPT's `conversations`) as Responses items."""

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
"""Maximum length of a line of a file, and of a cell of a table."""
MAX_DOCUMENT_BYTES = 512 * 2**20
"""Maximum size of a JSON document."""
BYTES_OF_VALUES = {b"{": 232, b"[": 88, b",": 60}
"""How many bytes of memory an object, a list and any other value of JSON take at most, beside their text."""
MAX_DECODED_BYTES = 2**31
"""Maximum size of a JSON document in memory, beside its text. A list of empty objects takes 24 times its text."""
MAX_UNPACKED_RATIO = 200
MIN_UNPACKED_LIMIT_BYTES = 2**30
"""A compressed file may unpack to this many bytes, or to `MAX_UNPACKED_RATIO` times its size if that is more."""
_MISSING = "\0missing"
"""The value of a missing cell in a line of a CSV file."""


class RecordsError(GymError):
    """A file does not contain records in the format of its name."""


def read_records(path: Path) -> Iterator[JsonObject]:
    """Yield the records of a file. The format is that of its name."""
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
            raise RecordsError(f"{path} has an unknown format. Expected one of: {', '.join(SUFFIXES)}.")
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
            raise RecordsError(f"{path}:{number} is not a JSON object.")
        yield line.strip(), record


def _json(path: Path) -> Iterator[JsonObject]:
    """Yield the records of a JSON list, or of the only list in a JSON object."""
    with _opened(path) as file:
        content = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise RecordsError(
            f"{path} has more than {MAX_DOCUMENT_BYTES} bytes in one document. Convert it to JSON lines."
        )
    if sum(size * content.count(start) for start, size in BYTES_OF_VALUES.items()) > MAX_DECODED_BYTES:
        raise RecordsError(f"{path} has too many values for one document in memory. Convert it to JSON lines.")
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
            raise RecordsError(f"{path}: element {index} is not a JSON object.")
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
    """Raise RecordsError for a repeated key. A decoder would silently keep one of its values."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > 1:
            repeated = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
            if repeated:
                raise RecordsError(f"{place} has the key '{repeated[0]}' twice. Expected it once.")

    with contextlib.suppress(ValueError):  # orjson accepts more, which is not an error
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
    """Yield the records of a file as JSON lines. Lines of a JSONL file are unchanged."""
    if path.name.endswith(".jsonl"):
        yield from (line + b"\n" for line, _ in _checked_lines(path))
    else:
        yield from map(as_json_line, read_records(path))


def as_json_line(record: JsonObject) -> bytes:
    """Encode a record as one line. Values that JSON cannot express (dates, bytes) become text."""
    try:
        return orjson.dumps(record, default=str) + b"\n"
    except TypeError:
        return json.dumps(record, default=str).encode() + b"\n"


_SHARE_GPT_ROLES = {"human": "user", "gpt": "assistant", "function_response": "tool"}
_ROLES = frozenset(("system", "developer", "user", "assistant"))


class NotMessagesError(ValueError):
    """A value is not a list of chat messages."""


def items_of(messages: Any) -> list[JsonObject]:
    """Convert chat messages to the `input` of a row."""
    if isinstance(messages, str):
        messages = _decoded(messages)
    if not isinstance(messages, Sequence) or not messages:
        raise NotMessagesError("no list of messages")
    return [item for message in messages for item in _items(message)]


def _decoded(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        raise NotMessagesError("no list of messages") from None


def _items(message: Any) -> list[JsonObject]:
    if not isinstance(message, dict):
        raise NotMessagesError("a message that is not an object")
    role = message.get("role") or message.get("from")
    role = _SHARE_GPT_ROLES.get(role, role) if isinstance(role, str) else role
    content = message.get("content") if "content" in message else message.get("value")
    if role == "tool":
        call_id = str(message.get("tool_call_id") or message.get("call_id") or "call_0")
        return [{"type": "function_call_output", "call_id": call_id, "output": _text(content)}]
    if role not in _ROLES:
        raise NotMessagesError(f"a message with the role {role!r}")
    calls = [_call(call) for call in _listed(message.get("tool_calls"))]
    has_text = content not in (None, "", [])
    return [*([{"role": role, "content": _content(content)}] if has_text or not calls else []), *calls]


def _listed(calls: Any) -> Sequence[Any]:
    if calls is not None and not isinstance(calls, list):
        raise NotMessagesError("tool calls that are not a list")
    return calls or ()


def _call(call: Any) -> JsonObject:
    function = (call.get("function") or call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise NotMessagesError("a tool call without a name")
    arguments = function.get("arguments") or "{}"
    return {
        "type": "function_call",
        "call_id": str(call.get("id") or "call_0"),
        "name": function["name"],
        "arguments": arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode(),
    }


def _text(content: Any) -> str:
    return content if isinstance(content, str) else orjson.dumps(content).decode()


def _content(content: Any) -> Any:
    """Convert a text or a list of parts. Parts other than texts and images are unchanged."""
    if content is None:
        return ""
    return [_part(part) for part in content] if isinstance(content, list) else _text(content)


def _part(part: Any) -> Any:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "input_image", "image_url": url}
    return part


def tools_of(tools: Any) -> list[JsonObject]:
    """Convert tools of Chat Completions or Responses requests to the form of Responses."""
    listed = _decoded(tools) if isinstance(tools, str) else tools
    if not isinstance(listed, list):
        raise NotMessagesError("tools that are not a list")
    return [{"type": "function", **tool["function"]} if "function" in tool else tool for tool in listed]
