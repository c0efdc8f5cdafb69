"""Turn what pydantic says about a user's input into sentences: where, what was found, what was expected.

The original errors are not chained to ours: their text repeats the input, secrets included.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.common.paths import nearest
from nemo_gym.common.redaction import redact
from nemo_gym.config.keys import KeyPath as KeyPath
from nemo_gym.config.secrets import MASK, is_secret_at
from nemo_gym.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

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


def error_lines(error: ValidationError, *, where: Where | None = None, below: KeyPath = ()) -> list[str]:
    """One line per mistake, as `- a -> b -> c: message`, with the source that `where` gives for it.

    `below` is where the validated data is in the configuration.
    """
    items = error.errors(include_url=False)
    return [_line(item, where(item["loc"]) if where else "", below) for item in items]


def _line(item: ErrorDetails, source: str, below: KeyPath) -> str:
    place = " -> ".join(map(str, item["loc"]))
    message = _message(item, below)
    line = f"- {place}: {message}" if place else f"- {message}"
    return f"{line} (in {source})" if source else line


def _message(item: ErrorDetails, below: KeyPath) -> str:
    found = item["input"]
    if item["type"] in ("literal_error", "enum"):
        valid = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        listed = ", ".join(f"'{value}'" for value in valid)
        return f"Must be one of: {listed}; found {_shown(item, below)}.{nearest(str(found), valid)}"
    if item["type"] == "missing" and isinstance(found, Mapping):
        keys = ", ".join(str(key) for key in found) or "nothing"
        return f"Field required; found only: {keys}."
    message = item["msg"].removeprefix("Value error, ")
    return message if isinstance(found, Mapping) else f"{message}; found {_shown(item, below)}."


def _shown(item: ErrorDetails, below: KeyPath) -> str:
    if is_secret_at((*below, *item["loc"]), item["input"]):
        return f"'{MASK}'"
    text = redact(repr(item["input"]))
    return text if len(text) <= _LONGEST_FOUND else f"{text[:_LONGEST_FOUND]}…"
