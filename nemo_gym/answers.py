"""Ways to read an answer. Environments differ in what they take for the answer, and rewards depend on it, so there is
no single one: choose by name. A refusal, a content that is a plain text, and a message that is not the model's say
nothing. Each way takes time in proportion to the text, whatever the text."""

import re
from collections.abc import Iterator

from nemo_gym.llm_api.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
    ResponseItem,
)

LONG_TEXT = 32_768
"""Characters. Judging a longer text may hold up other rollouts: do that in `nemo_gym.compute.pool`."""

_BOX = "\\boxed{"
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:,\d{3})*(?:\.\d+)?")


def message_texts(response: NeMoGymResponse) -> list[list[str]]:
    """The text parts of each message of the model, message by message."""
    return [_texts(parts) for item in response.output if (parts := _parts(item)) is not None]


def last_text(response: NeMoGymResponse) -> str:
    """The last message of the model: its text parts joined by newlines, stripped."""
    messages = message_texts(response)
    return "\n".join(messages[-1]).strip() if messages else ""


def all_text(response: NeMoGymResponse) -> str:
    """All messages of the model: all text parts joined by newlines, stripped."""
    return "\n".join(text for message in message_texts(response) for text in message).strip()


def joined_text(response: NeMoGymResponse) -> str:
    """All messages of the model: all text parts with nothing between, as they are."""
    return "".join(text for message in message_texts(response) for text in message)


def first_part_of_last_item(response: NeMoGymResponse) -> str:
    """The first part of the last item, if that is a message of the model and the part is a text."""
    parts = _parts(response.output[-1]) if response.output else None
    return "".join(_texts(parts[:1])) if parts else ""


def text_of_last_item(response: NeMoGymResponse) -> str:
    """The last item, if that is a message of the model: its text parts joined by newlines."""
    parts = _parts(response.output[-1]) if response.output else None
    return "\n".join(_texts(parts)) if parts else ""


def boxes(text: str) -> Iterator[str]:
    r"""What stands in each `\boxed{...}`, up to the first closing brace: braces do not nest here."""
    start = text.find(_BOX)
    while start != -1:
        end = text.find("}", start)
        if end == -1:
            return
        yield text[start + len(_BOX) : end]
        start = text.find(_BOX, end)


def first_box(text: str) -> str | None:
    """What stands in the first box."""
    return next(boxes(text), None)


def last_number(response: NeMoGymResponse) -> float | None:
    """The last number in the last message of the model; commas between thousands are fine."""
    numbers = _NUMBER.findall(last_text(response))
    return float(numbers[-1].replace(",", "")) if numbers else None


def _parts(item: ResponseItem) -> list[object] | None:
    """The content of a message of the model, part by part; None if the item is something else."""
    if not isinstance(item, NeMoGymResponseOutputMessage | NeMoGymEasyInputMessage) or item.role != "assistant":
        return None
    return [] if isinstance(item.content, str) else [*item.content]


def _texts(parts: list[object]) -> list[str]:
    return [part.text for part in parts if isinstance(part, NeMoGymResponseOutputText)]
