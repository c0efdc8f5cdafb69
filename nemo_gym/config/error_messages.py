"""Turn what pydantic says about a user's input into sentences: where, what was found, what was expected.

The original errors are not chained to ours: their text repeats the input, secrets included.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.common.paths import nearest
from nemo_gym.config.secrets import MASK, is_secret, mask_text
from nemo_gym.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

KeyPath = tuple[str | int, ...]
Where = Callable[[KeyPath], str]
"""Which source the value at a key path is from; empty if nobody knows."""

_LONGEST_FOUND = 80


def validate(
    model: type[Model], data: Mapping[str, Any], *, what: str, remedy: str = "", where: Where | None = None
) -> Model:
    """`data` as a `model`, or an error that starts with `what` and ends with `remedy`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [f"{what} is not valid:", *error_lines(error, where=where), remedy]
        raise ConfigError("\n".join(filter(None, lines))) from None


def error_lines(error: ValidationError, *, where: Where | None = None) -> list[str]:
    """One line per mistake, as `- a -> b -> c: message`, with the source that `where` gives for it."""
    return [_line(item, where(item["loc"]) if where else "") for item in error.errors(include_url=False)]


def _line(item: ErrorDetails, source: str) -> str:
    place = " -> ".join(map(str, item["loc"]))
    line = f"- {place}: {_message(item)}" if place else f"- {_message(item)}"
    return f"{line} (in {source})" if source else line


def _message(item: ErrorDetails) -> str:
    found = item["input"]
    if item["type"] in ("literal_error", "enum"):
        valid = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        listed = ", ".join(f"'{value}'" for value in valid)
        return f"Must be one of: {listed}; found {_shown(item)}.{nearest(str(found), valid)}"
    if item["type"] == "missing" and isinstance(found, Mapping):
        keys = ", ".join(str(key) for key in found) or "nothing"
        return f"Field required; found only: {keys}."
    message = item["msg"].removeprefix("Value error, ")
    return message if isinstance(found, Mapping) else f"{message}; found {_shown(item)}."


def _shown(item: ErrorDetails) -> str:
    keys = [part for part in item["loc"] if isinstance(part, str)]
    if any(is_secret(key, item["input"]) for key in keys):
        return f"'{MASK}'"
    text = mask_text(repr(item["input"]))
    return text if len(text) <= _LONGEST_FOUND else f"{text[:_LONGEST_FOUND]}…"
