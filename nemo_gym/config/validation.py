"""Validate input, with errors that say where the value is, what was found and what was expected.

Pydantic's own errors are not chained to ours: their text repeats the input, secrets included.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.common.paths import nearest
from nemo_gym.common.redaction import redact
from nemo_gym.config.keys import KeyPath
from nemo_gym.config.secrets import MASK, is_secret_at
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.config.sources import ConfigSources

logger = logging.getLogger(__name__)

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


STRICT = "strict_config"
"""The global key that decides for all classes."""
DESCRIPTIVE_KEYS = frozenset(
    (
        *("datasets", "description", "domain", "value", "verified", "verified_url"),
        *("allowed_agents", "allowed_model_types"),
    )
)
"""Keys of a server block that describe it, and what may be beside it. No server reads them."""


def drop_unknown_keys(
    kind: type[BaseModel], values: Mapping[str, Any], *, path: KeyPath, strict: bool | None = None
) -> dict[str, Any]:
    """The values that `kind` has fields for. The others are refused or warned about; descriptions are left out.

    `path` is where the configuration has the values.
    """
    extra = kind.model_config.get("extra")
    if extra == "allow":
        return dict(values)
    mistakes = list(_mistakes(kind, values, path))
    is_ours = extra == "forbid" or kind.__module__.startswith("nemo_gym.")
    if mistakes and (is_ours if strict is None else strict):
        between = " " if len(mistakes) == 1 else "\n"
        raise ConfigError(between.join([*mistakes, f"To ignore unknown keys, set +{STRICT}=false."]))
    for mistake in mistakes:
        logger.warning("%s The key has no effect.", mistake)
    known = _names(kind)
    return {key: value for key, value in values.items() if key in known}


def _mistakes(kind: type[BaseModel], values: Mapping[str, Any], path: KeyPath) -> Iterator[str]:
    """A sentence for each unknown key, at any depth."""
    fields = _names(kind)
    for key, value in values.items():
        if key in fields:
            model = _model_in(fields[key])
            items = value if isinstance(value, list) else [value]
            for item in items if model is not None else ():
                if isinstance(item, Mapping):
                    yield from _mistakes(model, item, (*path, key))  # type: ignore[arg-type]
        elif key not in DESCRIPTIVE_KEYS:
            place = ".".join(map(str, path))
            listed = f" Its keys are: {', '.join(sorted(fields))}."
            hint = nearest(str(key), fields, cutoff=0.6) or listed
            yield f"Unknown key '{key}' in {place} ({kind.__name__}).{hint}"


def _names(kind: type[BaseModel]) -> dict[str, Any]:
    """The keys that a model reads, with the types of their values."""
    fields = kind.model_fields.items()
    return {alias: field.annotation for name, field in fields for alias in {name, field.alias or name}}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The one closed model that a value may be: of `Model | None` and `list[Model]`, that model."""
    if get_origin(annotation) in (Union, UnionType, list):
        models = [model for model in map(_model_in, get_args(annotation)) if model is not None]
        return models[0] if len(models) == 1 else None
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model and annotation.model_config.get("extra") != "allow" else None
