"""Keys of a server block that the server's config class does not have: a typo, or a feature we do not know.

None is ignored silently. A class with `extra="forbid"` refuses them: ours have it, and those that servers without a
config class of their own have behave so. Another class gets a warning, or none if it has `extra="allow"`.
`strict_config` decides for both kinds.
"""

import logging
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from nemo_gym.common.paths import nearest
from nemo_gym.config.keys import KeyPath
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

STRICT = "strict_config"
"""The global key that decides for all classes."""
DESCRIPTIVE_KEYS = frozenset(("datasets", "description", "domain", "value", "verified", "verified_url"))
"""Keys of a server block that describe it. No server reads them."""


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
