"""Describe one line of any JSONL file: its values for the table, and the small fields for filters."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from nemo_gym.analysis.rollout_health import health_of, is_made_by_model
from nemo_gym.common.words import json_type
from nemo_gym.config.keys import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.errors import CAUSES
from nemo_gym.llm_api.base import REQUIRED_TOKEN_METADATA_FIELDS
from nemo_gym.rollouts.types import METADATA_FIELDS, REPEAT_INDEX_KEY_NAME, parse_row_key, task_index_of

MAX_PARSED_BYTES = 32_000_000
"""Maximum size of a decoded line. A longer one is listed with its size and can be opened raw."""
MAX_FIELDS = 100
MAX_FIELD_TEXT = 200
MAX_DEPTH = 6
MAX_LISTED = 20
"""Items shown of a list of words or numbers, which is a field, as one text."""
PREVIEW = 100
SCORED, NO_REWARD, UNSCORED, INVALID, TOO_LARGE = "scored", "no reward", "row", "invalid", "too large"
BOM = b"\xef\xbb\xbf"
"""Byte order mark that some tools write at the start of a UTF-8 file."""
_NOT_FIELDS = METADATA_FIELDS | frozenset(
    ("input", "output", "tools", "text", "object", "reward", TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)
)
"""Conversations, constants, and values that are columns of the index."""
_RESPONSE_FIELDS = ("model", "status", "incomplete_details", "usage", "metadata", "error")

Record = dict[str, Any]


class Described(NamedTuple):
    """The values that the index keeps of a line."""

    outcome: str
    """`scored`, a cause of failure, `no reward` for a response without a finite one, `row` for a dataset row,
    `invalid` or `too large`."""
    reward: float | None = None
    task: int | None = None
    repeat: int | None = None
    task_key: int | None = None
    """The same for all repeats of a task: its index, or for records without one a hash of the prompt."""
    prompt_key: int | None = None
    """The hash of the prompt, the same in files of different runs."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    turns: int | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    attempt: int | None = None
    prompt: str = ""
    answer: str = ""
    fields: Mapping[str, Any] = {}
    """Other small values, by path: `response.usage.total_tokens`."""


def parse_line(line: bytes) -> Any:
    """Decode a line. Also accepts what `orjson` refuses: NaN, lone surrogates, invalid UTF-8."""
    line = line.removeprefix(BOM)
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            return json.loads(line.decode(errors="replace"))
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def describe_line(line: bytes) -> Described:
    """Describe a line. Never raises: a line that is not a JSON object is `invalid`."""
    try:
        record = parse_line(line)
    except ValueError as error:
        reason = "UTF-16 text; convert the file to UTF-8" if b"\0" in line[:4] else f"not JSON: {error}"
        return Described(INVALID, prompt=reason[:PREVIEW])
    if not isinstance(record, dict):
        return Described(INVALID, prompt=f"found {json_type(record)}, expected a JSON object")
    try:
        return describe(record)
    except Exception as error:  # one bad record must not stop the index
        return Described(INVALID, prompt=f"cannot be read: {error!r}"[:PREVIEW])


def describe_large(end: bytes) -> Described:
    """Describe a line that is too long to decode, from its end."""
    task, repeat, _ = parse_row_key(end) or (None, None, "")
    return Described(TOO_LARGE, task=task, repeat=repeat, task_key=task)


def describe(record: Record) -> Described:
    """Describe a record."""
    row = failed_row(record) or record
    output = output_items(record)
    usage = _mapping(_mapping(record.get("response")).get("usage"))
    task, messages = _integer(task_index_of(record)), list(prompt_messages(row))
    prompt_key = _hash_prompt(messages) if messages else None
    return Described(
        outcome=outcome_of(record),
        reward=_number(record.get("reward")),
        task=task,
        repeat=_integer(record.get(REPEAT_INDEX_KEY_NAME, record.get(ROLLOUT_INDEX_KEY_NAME))),
        task_key=prompt_key if task is None else task,
        prompt_key=prompt_key,
        input_tokens=_integer(usage.get("input_tokens")),
        output_tokens=_integer(usage.get("output_tokens")) or _generated(output),
        turns=model_turns(output),
        tool_calls=sum(item.get("type") == "function_call" for item in output) if output else None,
        seconds=_number(record.get("_seconds", record.get("seconds"))),
        attempt=_integer(record.get("_attempts", record.get("attempt"))),
        prompt=_preview(_last_text(messages)),
        answer=_preview(_text(record.get("message")) if "cause" in record else final_text(output)),
        fields={**dict(_limited_fields(record)), **_health_fields(record)},
    )


def _health_fields(record: Record) -> dict[str, str]:
    """Return the verdict of the health checks on a rollout, and what they found."""
    if not isinstance(record.get("response"), dict) or "cause" in record:
        return {}
    health = health_of(record)
    found: dict[str, str] = {"health": health.verdict}
    return {**found, "health.findings": ", ".join(health.checks)} if health.findings else found


def failed_row(record: Record) -> Record | None:
    """Return the dataset row in the record of a failed attempt."""
    row = record.get("row")
    return row if "cause" in record and isinstance(row, dict) else None


def outcome_of(record: Record) -> str:
    cause = record.get("cause")
    if isinstance(cause, str) and cause in CAUSES and "reward" not in record:
        return cause
    if _number(record.get("reward")) is not None:
        return SCORED
    return NO_REWARD if isinstance(record.get("response"), dict) else UNSCORED


def participants_of(record: Record) -> dict[str, Record]:
    """Return the other conversations of a rollout: of other policies, or of a simulated user."""
    others = _mapping(_mapping(record.get("response")).get("participants"))
    return {name: other for name, other in others.items() if isinstance(other, dict)}


def output_items(record: Record) -> list[Record]:
    """Return the output items of a response."""
    output = _mapping(record.get("response")).get("output")
    return [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []


def prompt_messages(row: Record) -> Iterator[tuple[str, str]]:
    """Yield role and text of each prompt message: Responses `input`, or `messages` of a chat dataset."""
    params = _mapping(row.get("responses_create_params"))
    given = params.get("input", row.get("messages", row.get("prompt")))
    if isinstance(given, str):
        yield "user", given
    for item in given if isinstance(given, list) else ():
        if isinstance(item, dict) and (text := _text(item.get("content"))):
            yield str(item.get("role", "")), text


def final_text(output: list[Record]) -> str:
    """Return the last text of the model."""
    texts = (_text(item.get("content")) for item in reversed(output) if item.get("type", "message") == "message")
    return next(filter(None, texts), "")


def model_turns(output: list[Record]) -> int | None:
    """Count the model calls. Items of one call follow each other."""
    by_model = [is_made_by_model(item) for item in output]
    starts = (now and not before for before, now in zip([False, *by_model], by_model, strict=False))
    return sum(starts) if output else None


def flat_fields(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the scalars of nested objects with their paths, without conversations and tokens."""
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        if isinstance(item, dict):
            if depth < MAX_DEPTH and here != "row.responses_create_params":
                yield from flat_fields(_shown_fields(here, item), here, depth + 1)
        elif isinstance(item, list):
            if name not in _NOT_FIELDS and name not in REQUIRED_TOKEN_METADATA_FIELDS:
                yield f"{here}.length", len(item)
                if item and all(isinstance(each, str | int | float) for each in item[:MAX_LISTED]):
                    yield here, _small(", ".join(map(str, item[:MAX_LISTED])))
        elif item is not None and name not in _NOT_FIELDS:
            yield here, _small(item)


def _shown_fields(path: str, item: Record) -> Record:
    return {name: item[name] for name in _RESPONSE_FIELDS if name in item} if path == "response" else item


def _limited_fields(record: Record) -> Iterator[tuple[str, Any]]:
    for _, (name, value) in zip(range(MAX_FIELDS), flat_fields(record), strict=False):
        yield _clean(name[:MAX_FIELD_TEXT]), value


def _small(value: Any) -> Any:
    if isinstance(value, str):
        return _clean(value[:MAX_FIELD_TEXT])
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, int) and abs(value) >= 2**63 else value


def encodable(text: str) -> str:
    """Replace what UTF-8 cannot encode: lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def _clean(text: str) -> str:
    """Replace lone surrogates, and NUL, which ends a text in SQLite."""
    return encodable(text).replace("\0", "\ufffd")


def _preview(text: str) -> str:
    return _clean(" ".join(text[: PREVIEW * 2].split())[:PREVIEW])


def _text(content: Any) -> str:
    """Return the text of a message's content, which is a text or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _last_text(messages: list[tuple[str, str]]) -> str:
    by_user = [text for role, text in messages if role == "user"]
    return (by_user or [text for _, text in messages] or [""])[-1]


def _hash_prompt(messages: list[tuple[str, str]]) -> int:
    digest = hashlib.blake2b("\0".join(map("\1".join, messages)).encode(errors="replace"), digest_size=8).digest()
    return -(int.from_bytes(digest) >> 2) - 1  # negative, so that it is never a task index


def _generated(output: list[Record]) -> int | None:
    counts = [len(ids) for item in output if isinstance(ids := item.get("generation_token_ids"), list)]
    return sum(counts) if counts else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and abs(value) < 1e300  # neither NaN, nor too large for a float
    return float(value) if is_number else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62 else None
