"""Prompt ids as records and call logs store them: each id once.

A prompt that begins with all tokens of an earlier call is stored as `{"continues": place, "new": [ids]}`: the place of
that call, which is the index of an output item or the name of a logged call, and the ids after it. Readers give all
ids of every prompt, as views on one array. Records with whole lists, as earlier versions wrote them, are read too."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel

from nemo_gym.llm_api.base import TOKEN_METADATA_FIELDS
from nemo_gym.llm_api.json_codec import changed, encode, encode_set_fields, set_fields
from nemo_gym.llm_api.responses import FrozenRequest
from nemo_gym.llm_api.tokens import (
    LOG_PROBS,
    PROMPT,
    SAMPLED,
    TokenArray,
    TokenTraceError,
    joined,
    log_probs,
    new_token_ids,
    token_ids,
)

JsonObject = dict[str, Any]
CONTINUES, NEW = "continues", "new"
PROMPT_NAME = f'"{PROMPT}"'.encode()
"""A name in the JSON of every record with tokens."""
Value = TypeVar("Value")


class PromptIndex:
    """The calls of a rollout by their places, to store or to read the prompts of later ones. Of calls that continue
    one another only the last can be continued, as in a segment of a token trace."""

    def __init__(self) -> None:
        self._last: dict[Hashable, TokenArray[int]] = {}
        """All tokens of the last call of each segment."""
        self._earlier: dict[Hashable, TokenArray[int]] = {}

    def stored(self, place: Hashable, prompt: Iterable[int], sampled: Iterable[int]) -> "TokenArray[int] | JsonObject":
        """Add a call, and return its prompt as it is stored."""
        prompt_ids = token_ids(prompt)
        before = self._continued_by(prompt_ids)
        known = None if before is None else self._end(before)
        self._last[place] = joined(prompt_ids, token_ids(sampled))
        return prompt_ids if known is None else {CONTINUES: before, NEW: prompt_ids[len(known) :]}

    def read(self, place: Hashable, stored: Any, sampled: Iterable[int]) -> tuple[TokenArray[int], TokenArray[int]]:
        """Add a stored call, and return all ids of its prompt, and the sampled ones."""
        if isinstance(stored, Mapping):
            before, new = stored.get(CONTINUES), _ids_in(stored.get(NEW))
        else:
            prompt = _ids_in(stored)
            before = self._continued_by(prompt)
            new = prompt if before is None else prompt[len(self._last[before]) :]
        if before is not None:
            known = self._end(before)
            if known is None:
                raise TokenTraceError(f"the prompt continues {before!r}, which is not a call with tokens")
            prompt = known.continued(new_token_ids(new))
        else:
            prompt = new_token_ids(new)
        whole, start = prompt.continued(new_token_ids(_ids_in(sampled))), len(prompt)
        self._last[place] = whole
        return whole[:start], whole[start:]

    def _continued_by(self, prompt: TokenArray[int]) -> Hashable | None:
        """The latest call that the prompt continues."""
        return next((place for place in reversed(self._last) if self._last[place].is_prefix_of(prompt)), None)

    def _end(self, place: Hashable) -> TokenArray[int] | None:
        """The tokens of a call, which no other prompt is compared with from now on."""
        if place in self._last:
            self._earlier[place] = self._last.pop(place)
        return self._earlier.get(place)


def _ids_in(stored: Any) -> TokenArray[int]:
    """The ids of a list in JSON, where true is not 1."""
    if not isinstance(stored, TokenArray) and set(map(type, stored)) - {int}:
        raise TokenTraceError("a token id is not a whole number")
    return token_ids(stored)


class TokenItem(dict[str, Any]):
    """An output item whose token fields are arrays. `json.dumps` takes the values of a dict from `items()`, and knows
    no sequences but list and tuple: here arrays are lists."""

    def items(self) -> Any:
        found = super().items()
        return {name: value.tolist() if isinstance(value, TokenArray) else value for name, value in found}.items()


def read_record(line: bytes) -> Any:
    """The value of a line. Calls in it have all their prompt ids, as views on arrays that read like lists."""
    value = orjson.loads(line)
    return expand_prompts(value) if PROMPT_NAME in line and isinstance(value, dict) else value


def expand_prompts(value: Value) -> Value:
    """The record, response or completion with all prompt ids of every call. What is not valid stays as it is."""
    expanded: Value = _map_items(value, lambda items: _converted(items, PromptIndex(), "", _expanded_if_valid))
    return expanded


def read_reply(text: str, index: PromptIndex, *, place: str) -> JsonObject:
    """The logged reply to a call at `place`, with all its prompt ids. TokenTraceError if a call before it is lost."""
    reply: JsonObject = orjson.loads(text)
    return _map_items(reply, lambda items: _converted(items, index, place, _expanded))  # type: ignore[no-any-return]


def shorten_prompts(value: Value, index: PromptIndex | None = None, *, place: str = "") -> Value:
    """The record, response or completion, an object or JSON, with its prompts as they are stored. `index` has the
    calls before it, and `place` is its own, if they are not all in this one value."""
    shortened: Value = _map_items(value, lambda items: _converted(items, index or PromptIndex(), place, _shortened))
    return shortened


def encode_stored(value: Any) -> bytes:
    """The JSON of a record as it is stored."""
    return encode(shorten_prompts(value))


def encode_without_tokens(request: Any) -> bytes:
    """The JSON of a request as it was given, without the tokens of the replies that its conversation repeats."""
    if isinstance(request, FrozenRequest):
        return b"".join(request.pieces(_encode_item_without_tokens))
    return encode_set_fields(request)


def _encode_item_without_tokens(item: Any) -> bytes:
    if _field(item, PROMPT) is None:
        return encode_set_fields(item)
    return encode({name: value for name, value in set_fields(item).items() if name not in TOKEN_METADATA_FIELDS})


def _converted(
    items: list[Any], index: PromptIndex, place: str, convert: "Callable[[Any, PromptIndex, Hashable], Any]"
) -> list[Any]:
    if all(_field(item, PROMPT) is None for item in items):
        return items
    return [
        item if _field(item, PROMPT) is None else convert(item, index, place or number)
        for number, item in enumerate(items)
    ]


def _expanded_if_valid(item: Any, index: PromptIndex, place: Hashable) -> Any:
    try:
        return _expanded(item, index, place)
    except (KeyError, TypeError, ValueError):
        return item


def _expanded(item: Any, index: PromptIndex, place: Hashable) -> Any:
    values = log_probs(item[LOG_PROBS])
    prompt, sampled = index.read(place, item[PROMPT], item[SAMPLED])
    return TokenItem({**item, PROMPT: prompt, SAMPLED: sampled, LOG_PROBS: values})


def _shortened(item: Any, index: PromptIndex, place: Hashable) -> Any:
    prompt, sampled = _field(item, PROMPT), _field(item, SAMPLED)
    try:
        stored = index.stored(place, prompt, sampled)
    except (TypeError, ValueError):
        return item
    return _changed(item, {PROMPT: stored}) if isinstance(stored, dict) else item


def _map_items(value: Any, convert: Callable[[list[Any]], list[Any]]) -> Any:
    """The value with `convert` applied to the items of each conversation in it: of a response or a completion, and of
    the response and the other participants of a record."""
    given, found = _fields_of(value), JsonObject()
    if (response := given.get("response")) is not None:
        found["response"] = _map_items(response, convert)
    if isinstance(output := given.get("output"), list):
        found["output"] = convert(output)
    if isinstance(others := given.get("participants"), dict):
        mapped = {name: _map_items(each, convert) for name, each in others.items()}
        found["participants"] = mapped if any(mapped[name] is not others[name] for name in others) else others
    if isinstance(choices := given.get("choices"), list):
        messages = [_field(choice, "message") for choice in choices]
        converted = convert(messages)
        if converted is not messages:
            pairs = zip(choices, converted, strict=True)
            found["choices"] = [_changed(choice, {"message": message}) for choice, message in pairs]
    is_changed = any(found[name] is not given.get(name) for name in found)
    return _changed(value, found) if is_changed else value


def _fields_of(value: Any) -> Mapping[str, Any]:
    """The fields of an object or of JSON; none of anything else."""
    if isinstance(value, BaseModel):
        extra = value.__pydantic_extra__
        return {**value.__dict__, **extra} if extra else value.__dict__
    return value if isinstance(value, dict) else {}


def _field(value: Any, name: str) -> Any:
    """A field of an object or of JSON, None if there is none."""
    if isinstance(value, BaseModel):
        return value.__dict__.get(name) if name in value.__dict__ else (value.__pydantic_extra__ or {}).get(name)
    return value.get(name) if isinstance(value, dict) else None


def _changed(value: Any, fields: JsonObject) -> Any:
    return changed(value, **fields) if isinstance(value, BaseModel) else {**value, **fields}
