"""Records for the page: values of at most 1 MB, no token lists, valid JSON. And the token view."""

import math
from collections.abc import Mapping
from typing import Any

import orjson

from nemo_gym.errors import GymError
from nemo_gym.llm_api.base import REQUIRED_TOKEN_METADATA_FIELDS as TOKEN_FIELDS
from nemo_gym.llm_api.stored_tokens import expand_prompts
from nemo_gym.llm_api.tokens import TokenArray, TokenTraceError
from nemo_gym.training.token_file import token_restorer
from nemo_gym.training.token_traces import ModelCall, trace_of_calls
from nemo_gym.viewer.index import Index
from nemo_gym.viewer.records import MAX_PARSED_BYTES, encodable, output_items, parse_line

MAX_VALUE = 1_000_000
"""Maximum characters of a text. The page offers to open a longer one raw."""
MAX_RECORD = 8_000_000
"""Characters of a record after which its other texts are cut to `SHORT`."""
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
    """Copies a record for the page. A truncated text becomes an object with its path and length."""

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
            return {encodable(name): self._member(name, item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list):
            shown = [self.view(item, (*path, number)) for number, item in enumerate(value[:MAX_LIST])]
            rest = len(value) - len(shown)
            return shown if not rest else [*shown, {"$cut": f"{rest} more items", "path": path, "length": None}]
        return value

    def _member(self, name: str, item: Any, path: Path) -> Any:
        if name in TOKEN_FIELDS and isinstance(item, list | TokenArray):
            return {"$tokens": len(item)}
        return self.view(item, path)

    def _text(self, text: str, path: Path) -> Any:
        most = MAX_VALUE if self._sent < MAX_RECORD else SHORT
        self._sent += min(len(text), most)
        if len(text) <= most:
            return encodable(text)
        return {"$cut": encodable(text[:most]), "path": path, "length": len(text)}


def read_row(index: Index, row: int) -> bytes:
    """Return the line of a row."""
    place = index.line_at(row)
    if place is None:
        raise NoSuchRowError(f"{index.path.name} has no row {row}; it has {index.rows} rows so far.")
    return index.source.read(*place)


def row_view(index: Index, row: int) -> dict[str, Any]:
    """Return a row for the page: its record, or the start of its line if it cannot be decoded."""
    place = index.line_at(row)
    if place is None:
        raise NoSuchRowError(f"{index.path.name} has no row {row}; it has {index.rows} rows so far.")
    offset, length = place
    found = {"row": row, "bytes": length, "record": None, "raw": None}
    if length <= MAX_PARSED_BYTES:
        try:
            record = expand_prompts(parse_line(index.source.read(offset, length)))
            return {**found, "record": RecordView().view(record)}
        except ValueError:
            pass
    head = index.source.read(offset, min(length, RAW_HEAD))
    return {**found, "raw": head.decode(errors="replace")}


def raw_value(index: Index, row: int, path: Path) -> bytes:
    """Return a complete value of a row: a text unchanged, anything else as JSON."""
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
    """Return the model calls of a rollout as tokens: new prompt tokens (not trained on), generated tokens with
    log-probs (trained on), and breaks, where a prompt does not extend the tokens before. The texts of tokens come
    from the record or a vocabulary."""
    record, lost = expand_prompts(parse_line(read_row(index, row))), list[str]()
    try:
        record = token_restorer(index.path)(record)
    except TokenTraceError as error:
        lost = [str(error)]
    items = [item for item in output_items(record) if any(item.get(name) is not None for name in TOKEN_FIELDS)]
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
    return {"calls": calls, "faults": lost + _faults(traced), "page": MAX_TOKENS, "has_texts": has_texts}


def _token_texts(item: dict[str, Any]) -> list[str]:
    """Return the text of each generated token, if the endpoint sent log-probs with their tokens."""
    parts = item.get("content")
    listed = [part.get("logprobs") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    tokens = [each for logprobs in listed if isinstance(logprobs, list) for each in logprobs]
    return [encodable(str(each.get("token", ""))) for each in tokens if isinstance(each, dict)]


def _texts(sampled: list[int], recorded: list[str], known: Mapping[int, str]) -> list[str | None]:
    """Return the recorded texts if their number matches the tokens, or is one less, since the end token has no
    text."""
    if 0 <= len(sampled) - len(recorded) <= 1 and recorded:
        return [*recorded, *(known.get(token) for token in sampled[len(recorded) :])]
    return [known.get(token) for token in sampled]


def _call(item: dict[str, Any]) -> ModelCall:
    """Return the tokens of an item. Values that are not numbers are skipped."""
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
