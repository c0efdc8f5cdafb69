"""Error messages for invalid input: where the value is, what was found, what was expected.

Pydantic's own errors are not chained to ours: their text repeats the input, secrets included.
"""

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.common.paths import nearest
from nemo_gym.common.redaction import redact
from nemo_gym.config.keys import KeyPath
from nemo_gym.config.secrets import MASK, is_secret_at
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.config.sources import ConfigSources

Model = TypeVar("Model", bound=BaseModel)

_MAX_SHOWN = 80


def validate(
    model: type[Model],
    data: Mapping[str, Any],
    *,
    what: str,
    remedy: str = "",
    sources: "ConfigSources | None" = None,
    prefix: KeyPath = (),
) -> Model:
    """`data` as a `model`, or an error that starts with `what` and ends with `remedy`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = error_lines(error, sources=sources, prefix=prefix, known=model.model_fields)
        raise ConfigError("\n".join(filter(None, [f"{what} is not valid:", *lines, remedy]))) from None


def error_lines(
    error: ValidationError,
    *,
    sources: "ConfigSources | None" = None,
    prefix: KeyPath = (),
    known: Collection[str] = (),
) -> list[str]:
    """One line per mistake, `- a -> b -> c: message (in source)`. `prefix` is where the configuration has the data,
    `known` the keys that it may have."""
    lines = []
    for item in error.errors(include_url=False):
        path = (*prefix, *item["loc"])
        place = f"{' -> '.join(map(str, item['loc']))}: " if item["loc"] else ""
        origin = sources.origin_of(path) if sources else ""
        message = _message(item, path)
        if item["type"] == "extra_forbidden" and known:
            message = f"There is no such key.{nearest(str(item['loc'][-1]), known)}"
        lines.append(f"- {place}{message}{f' (in {origin})' if origin else ''}")
    return lines


def first_error(error: ValidationError, *, ignored: Collection[str] = ()) -> str:
    """The first mistake, and how many more there are; empty if all are in `ignored` fields."""
    places = [item["loc"][:1] for item in error.errors(include_url=False, include_input=False)]
    lines = [line for line, place in zip(error_lines(error), places, strict=True) if not {*place} & {*ignored}]
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return lines[0].removeprefix("- ") + more if lines else ""


def _message(item: ErrorDetails, path: KeyPath) -> str:
    found = item["input"]
    shown = f"'{MASK}'" if is_secret_at(path, found) else redact(repr(found))
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    if item["type"] in ("literal_error", "enum"):
        valid = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        listed = ", ".join(f"'{value}'" for value in valid)
        return f"Must be one of: {listed}; found {shown}.{nearest(str(found), valid)}"
    if item["type"] == "missing" and isinstance(found, Mapping):
        return f"Field required; found only: {', '.join(map(str, found)) or 'nothing'}."
    if item["type"] == "string_type" and (found is None or isinstance(found, int | float)):
        return "The key has no value, expected text." if found is None else f"Expected text; put {shown} in quotes."
    message = item["msg"].removeprefix("Value error, ")
    return message if isinstance(found, Mapping) else f"{message}; found {shown}."
