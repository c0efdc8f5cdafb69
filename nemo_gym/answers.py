"""Ways to read an answer out of a response.

Environments differ in what counts as the answer, and rewards depend on it, so choose a function by its name. Refusals
and messages that the model did not write have no text. A message whose content is a plain string has none either,
except for `last_part_of_last_item`. Every function but `last_match` takes time linear in the text."""

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
_BOX = "\\boxed{"
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


def boxes(text: str) -> Iterator[str]:
    r"""The content of each `\boxed{...}`, up to the first closing brace: braces do not nest here."""
    start = text.find(_BOX)
    while start != -1:
        end = text.find("}", start)
        if end == -1:
            return
        yield text[start + len(_BOX) : end]
        start = text.find(_BOX, end)


def first_box(text: str) -> str | None:
    """The content of the first box."""
    return next(boxes(text), None)


def last_match(pattern: str, text: str, flags: re.RegexFlag) -> re.Match[str] | None:
    """The last match of a regex; None if there is none or the regex is invalid.

    A regex from the data may never finish: run this in `nemo_gym.compute`.
    """
    try:
        matches = deque(re.finditer(pattern, text, flags), maxlen=1)
    except (re.error, OverflowError, RecursionError):
        return None
    return matches[0] if matches else None


def last_number(response: NeMoGymResponse) -> float | None:
    """The last number in the last assistant message, with or without commas between thousands."""
    numbers = _NUMBER.findall(last_text(response))
    return float(numbers[-1].replace(",", "")) if numbers else None


def _parts(item: ResponseItem) -> list[Any] | None:
    """The content parts of an assistant message; None if the item is something else."""
    if not isinstance(item, _MESSAGES) or item.role != "assistant":
        return None
    return [] if isinstance(item.content, str) else item.content


def _last_parts(response: NeMoGymResponse) -> list[Any]:
    return (_parts(response.output[-1]) or []) if response.output else []


def _texts(parts: list[Any]) -> list[str]:
    return [part.text for part in parts if type_of(part) == "output_text"]
