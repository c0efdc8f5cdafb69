"""Ways to read an answer out of a response.

Environments differ in what counts as the answer, and rewards depend on it, so choose a function by its name. Refusals
and messages that the model did not write have no text. A message whose content is a plain string has none either,
except for `last_part_of_last_item`. Every function but `matches` and `last_match` takes time linear in
the text."""

import json
import math
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from nemo_gym.llm_api.base import type_of
from nemo_gym.llm_api.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseOutputMessage,
    ResponseItem,
)

LONG_TEXT = 32_768
"""Characters. Checking a longer text may block other rollouts: run that in `nemo_gym.compute`."""

_MESSAGES = (NeMoGymResponseOutputMessage, NeMoGymEasyInputMessage)
_BRACE = re.compile(r"\\boxed\{|(?<!\\)[{}]")
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_FONT = re.compile(r"\\(?:(?:text|math)(?:bf|it|rm|sf|tt|normal|up)?|boldsymbol|bm|mbox|operatorname)\s*\{([^{}]*)\}")
_FONT_DEPTH = 3
"""How deep font commands may be nested in each other."""
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_INVISIBLE = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
"""Characters that are not shown, such as zero-width spaces. Some of them are letters."""
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:,\d{3})*(?:\.\d+)?")


def message_texts(response: NeMoGymResponse) -> list[list[str]]:
    """The text parts of each assistant message."""
    return [_texts(parts) for item in response.output if (parts := _parts(item)) is not None]


def last_text(response: NeMoGymResponse) -> str:
    """The last assistant message: its text parts joined by newlines, stripped."""
    messages = message_texts(response)
    return "\n".join(messages[-1]).strip() if messages else ""


def all_text(response: NeMoGymResponse) -> str:
    """All assistant messages: all text parts joined by newlines, stripped."""
    return "\n".join([text for message in message_texts(response) for text in message]).strip()


def joined_text(response: NeMoGymResponse) -> str:
    """All assistant messages: all text parts concatenated, not stripped."""
    return "".join(text for message in message_texts(response) for text in message)


def first_part_of_last_item(response: NeMoGymResponse) -> str:
    """The first part of the last item, if that is an assistant message and the part is text."""
    return "".join(_texts(_last_parts(response)[:1]))


def last_part_of_last_item(response: NeMoGymResponse) -> str:
    """The last part of the last item, if that is an assistant message and the part is text; or its plain string."""
    last = response.output[-1] if response.output else None
    if isinstance(last, NeMoGymEasyInputMessage) and last.role == "assistant" and isinstance(last.content, str):
        return last.content
    return "".join(_texts(_last_parts(response)[-1:]))


def is_refusal(response: NeMoGymResponse) -> bool:
    """True if the last item is an assistant message with a refusal in it."""
    return any(type_of(part) == "refusal" for part in _last_parts(response))


def text_of_last_item(response: NeMoGymResponse) -> str:
    """The last item, if that is a message of the model: its text parts joined by newlines."""
    parts = _parts(response.output[-1]) if response.output else None
    return "\n".join(_texts(parts)) if parts else ""


def without_thinking(text: str) -> str:
    """Remove `<think>` parts from a text.

    A part without an end reaches to the end of the text. One without a start begins where the text does, since chat
    templates may open it in the prompt. So a text that ends in its thoughts has no answer.
    """
    spoken, *rest = _THINK_TAG.split(text)
    kept, is_thinking = [spoken], False
    for closing, piece in zip(rest[::2], rest[1::2], strict=True):
        if closing and not is_thinking:
            kept.clear()
        is_thinking = not closing
        if not is_thinking:
            kept.append(piece)
    return "".join(kept)


def visible(text: str) -> str:
    """Remove characters that are not shown, such as zero-width spaces and marks of direction."""
    return _INVISIBLE.sub("", text)


def says_something(text: str) -> bool:
    """True if there is a letter or a digit in the text. Some invisible characters are letters: see `visible`."""
    return _LETTER_OR_DIGIT.search(text) is not None


def boxes(text: str) -> list[str]:
    r"""The content of each complete `\boxed{...}` that is not within another one."""
    spans: list[tuple[int, int]] = []
    opened: list[int | None] = []  # where the content of an open box starts; None for any other brace
    for token in _BRACE.finditer(text):
        if token[0].endswith("{"):
            opened.append(token.end() if token[0] != "{" else None)
        elif opened and (start := opened.pop()) is not None:
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, token.start()))
    return [text[start:end] for start, end in spans]


def last_box(text: str) -> str | None:
    """The content of the last box that is not blank, stripped."""
    return next((box.strip() for box in reversed(boxes(text)) if box.strip()), None)


def without_fonts(text: str) -> str:
    r"""Replace LaTeX font commands by their arguments: `\text{B}` and `\mathbf{\mathrm{B}}` become `B`."""
    for _ in range(_FONT_DEPTH):
        text = _FONT.sub(r"\1", text)
    return text


def matches(pattern: str, text: str, flags: re.RegexFlag) -> Iterator[re.Match[str]]:
    """All matches of a regex; none if it is invalid.

    A regex from the data may never finish: run this in `nemo_gym.compute`.
    """
    try:
        yield from re.finditer(pattern, text, flags)
    except (re.error, OverflowError, RecursionError):
        return


def last_match(pattern: str, text: str, flags: re.RegexFlag) -> re.Match[str] | None:
    """The last match of a regex; None if there is none or the regex is invalid. May never finish, as `matches`."""
    last = deque(matches(pattern, text, flags), maxlen=1)
    return last[0] if last else None


def last_number(response: NeMoGymResponse) -> float | None:
    """The last number in the last assistant message, with or without commas between thousands."""
    numbers = _NUMBER.findall(last_text(response))
    return float(numbers[-1].replace(",", "")) if numbers else None


def strict_json(text: str, *, unique_keys: bool = False) -> Any:
    """Return the value of JSON text as RFC 8259 defines it, or raise ValueError.

    Python's own parser also accepts `NaN`, `Infinity` and numbers beyond the range of a double, such as `1e400`. If an
    object has a key twice, the last one counts; with `unique_keys` that is an error."""
    pairs_hook = _object_with_unique_keys if unique_keys else None
    try:
        return json.loads(
            text, parse_constant=_finite_number, parse_float=_finite_number, object_pairs_hook=pairs_hook
        )
    except RecursionError as error:
        raise ValueError("The value is nested too deeply.") from error


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number.")
    return number


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("An object has a key twice.")
    return value


def _parts(item: ResponseItem) -> list[Any] | None:
    """The content parts of an assistant message; None if the item is something else."""
    if not isinstance(item, _MESSAGES) or item.role != "assistant":
        return None
    return [] if isinstance(item.content, str) else item.content


def _last_parts(response: NeMoGymResponse) -> list[Any]:
    return (_parts(response.output[-1]) or []) if response.output else []


def _texts(parts: list[Any]) -> list[str]:
    return [part.text for part in parts if type_of(part) == "output_text"]
