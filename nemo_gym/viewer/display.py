"""A record as the page gets it: no value longer than 1 MB, no token lists, nothing that JSON cannot hold."""

import math
from collections.abc import Mapping
from typing import Any

import orjson

from nemo_gym.errors import GymError
from nemo_gym.llm_api.base import REQUIRED_TOKEN_METADATA_FIELDS as TOKEN_FIELDS
from nemo_gym.training.token_traces import ModelCall, trace_of_calls
from nemo_gym.viewer.index import Index
from nemo_gym.viewer.records import MAX_PARSED_BYTES, output_items, parse_line

MAX_VALUE = 1_000_000
"""A longer text is cut; the page offers to open it raw."""
MAX_RECORD = 8_000_000
"""When a record has sent this much text, the rest of its texts are cut short."""
SHORT = 2000
MAX_LIST = 20_000
MAX_DEPTH = 100
RAW_HEAD = 200_000
MAX_TOKENS = 4000
"""Tokens of one call on a page of the token view."""

Path = tuple[str | int, ...]


class NoSuchRowError(GymError):
    """A row, or a value in it, that is not in the file."""


class RecordView:
    """Makes the copy of a record for the page. A text that is cut becomes an object that says what is missing."""

    def __init__(self) -> None:
        self._sent = 0

    def view(self, value: Any, path: Path = ()) -> Any:
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, int) and abs(value) >= 2**53:
            return str(value)
        if isinstance(value, dict | list) and len(path) >= MAX_DEPTH:
            return {"$cut": "nested too deeply", "path": path, "length": None}
        if isinstance(value, dict):
            return {_clean(name): self._member(name, item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list):
            shown = [self.view(item, (*path, number)) for number, item in enumerate(value[:MAX_LIST])]
            rest = len(value) - len(shown)
            return shown if not rest else [*shown, {"$cut": f"{rest} more items", "path": path, "length": None}]
        return value

    def _member(self, name: str, item: Any, path: Path) -> Any:
        if name in TOKEN_FIELDS and isinstance(item, list):
            return {"$tokens": len(item)}
        return self.view(item, path)

    def _text(self, text: str, path: Path) -> Any:
        most = MAX_VALUE if self._sent < MAX_RECORD else SHORT
        self._sent += min(len(text), most)
        if len(text) <= most:
            return _clean(text)
        return {"$cut": _clean(text[:most]), "path": path, "length": len(text)}


def read_row(index: Index, row: int) -> bytes:
    """The line of a row."""
    place = index.line_at(row)
    if place is None:
        raise NoSuchRowError(f"{index.path.name} has no row {row}; it has {index.rows} rows so far.")
    return index.source.read(*place)


def row_view(index: Index, row: int) -> dict[str, Any]:
    """A row for the page: its record, or the start of its text if it cannot be decoded."""
    place = index.line_at(row)
    if place is None:
        raise NoSuchRowError(f"{index.path.name} has no row {row}; it has {index.rows} rows so far.")
    offset, length = place
    found = {"row": row, "bytes": length, "record": None, "raw": None}
    if length <= MAX_PARSED_BYTES:
        try:
            return {**found, "record": RecordView().view(parse_line(index.source.read(offset, length)))}
        except ValueError:
            pass
    head = index.source.read(offset, min(length, RAW_HEAD))
    return {**found, "raw": head.decode(errors="replace")}


def raw_value(index: Index, row: int, path: Path) -> bytes:
    """A value of a row in full: text as it is, anything else as JSON."""
    value = parse_line(read_row(index, row))
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise NoSuchRowError(f"Row {row} has no value at {'.'.join(map(str, path))[:200]}.") from error
    if isinstance(value, str):
        return value.encode(errors="replace")
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)


def token_view(
    index: Index, row: int, *, call: int | None = None, offset: int = 0, vocabulary: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """The model calls of a rollout as tokens: what is new in each prompt (not trained on), what was generated (trained
    on) with log-probs, and where a prompt does not extend what came before. With the text of each token, if the record
    or a vocabulary has it."""
    record = parse_line(read_row(index, row))
    items = [item for item in output_items(record) if any(isinstance(item.get(n), list) for n in TOKEN_FIELDS)]
    traced, recorded = [_call(item) for item in items], [_token_texts(item) for item in items]
    known = vocabulary or {}
    before: list[int] = []
    calls = []
    for number, turn in enumerate(traced):
        prompt, sampled, log_probs = list(turn.prompt_ids), list(turn.sampled_ids), turn.log_probs
        extends = prompt[: len(before)] == before
        start = len(before) if extends else _common_prefix(before, prompt)
        new = prompt[start:]
        at = offset if call == number else 0
        calls.append(
            {
                "call": number,
                "prompt_tokens": len(prompt),
                "shared_tokens": start,
                "generated_tokens": len(sampled),
                "is_break": not extends,
                "offset": at,
                "prompt": new[at : at + MAX_TOKENS],
                "prompt_texts": [known.get(token) for token in new[at : at + MAX_TOKENS]],
                "new_tokens": len(new),
                "generation": sampled[at : at + MAX_TOKENS],
                "generation_texts": _texts(sampled, recorded[number], known)[at : at + MAX_TOKENS],
                "log_probs": [_finite(value) for value in log_probs[at : at + MAX_TOKENS]],
                "mean_log_prob": sum(log_probs) / len(log_probs) if log_probs else None,
            }
        )
        before = prompt + sampled
    has_texts = bool(vocabulary) or any(recorded)
    return {"calls": calls, "faults": _faults(traced), "page": MAX_TOKENS, "has_texts": has_texts}


def _token_texts(item: dict[str, Any]) -> list[str]:
    """The text of each generated token, if the endpoint sent log-probs with their tokens."""
    parts = item.get("content")
    listed = [part.get("logprobs") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    tokens = [each for logprobs in listed if isinstance(logprobs, list) for each in logprobs]
    return [_clean(str(each.get("token", ""))) for each in tokens if isinstance(each, dict)]


def _texts(sampled: list[int], recorded: list[str], known: Mapping[int, str]) -> list[str | None]:
    """Those of the record only if it has as many as there are tokens, or one less: the end is no text."""
    if 0 <= len(sampled) - len(recorded) <= 1 and recorded:
        return [*recorded, *(known.get(token) for token in sampled[len(recorded) :])]
    return [known.get(token) for token in sampled]


def _call(item: dict[str, Any]) -> ModelCall:
    """The tokens of an item, whatever else is in its lists."""
    prompt, sampled, log_probs = (
        [value for value in item.get(name) or () if isinstance(value, int | float)] for name in TOKEN_FIELDS
    )
    return ModelCall([int(token) for token in prompt], [int(token) for token in sampled], log_probs)


def _faults(calls: list[ModelCall]) -> list[str]:
    breaks = [str(each) for each in trace_of_calls(calls).breaks]
    unequal = [
        f"turn {number}: {len(call.sampled_ids)} tokens were generated, but {len(call.log_probs)} have log-probs"
        for number, call in enumerate(calls, 1)
        if len(call.sampled_ids) != len(call.log_probs)
    ]
    return [*breaks, *unequal][:100]


def _common_prefix(first: list[int], second: list[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(first), len(second)))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _clean(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
