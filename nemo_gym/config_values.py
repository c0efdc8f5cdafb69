"""Read values out of a merged configuration, with errors that say where a value is written and what to do."""

import re
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

from nemo_gym.config_sources import Sources
from nemo_gym.errors import ConfigError
from nemo_gym.masking import mask_text
from nemo_gym.paths import nearest
from nemo_gym.validation import KeyPath

UNKNOWN_SOURCES = Sources()

_DEEPEST = 100
"""No configuration is nested deeper, unless it goes round in a circle."""


class UnsetKeyError(ConfigError, InterpolationKeyError):
    """A value is an interpolation of a key that is not there."""


def resolved(config: DictConfig, path: KeyPath = (), *, sources: Sources = UNKNOWN_SOURCES) -> Any:
    """What is at `path`, as plain dicts and lists with every interpolation resolved.

    If one cannot be, the error says which, where it is written and what to do.
    """
    node: Any = config
    for depth, key in enumerate(path):
        node = _value(node, path[:depth], key, config, sources)
    return _resolved(node, path, config, sources)


def _resolved(node: Any, path: KeyPath, root: DictConfig, sources: Sources) -> Any:
    if len(path) > _DEEPEST:
        raise ConfigError(f"{place(path[:3], sources)} leads back to itself: it is an interpolation of what holds it.")

    def inner(key: Any) -> Any:
        return _resolved(_value(node, path, key, root, sources), (*path, key), root, sources)

    if isinstance(node, DictConfig):
        return {key: inner(key) for key in node}
    return [inner(index) for index in range(len(node))] if isinstance(node, ListConfig) else node


def _value(node: Any, path: KeyPath, key: Any, root: DictConfig, sources: Sources) -> Any:
    try:
        return node[key]
    except MissingMandatoryValue as error:
        place, flag = place((*path, key), sources), dotted((*path, key))
        raise ConfigError(f"{place} has to be given: it is '???'. Write +{flag}=<value>.") from error
    except OmegaConfBaseException as error:
        written: Any = OmegaConf.to_container(node, resolve=False)
        found = f"{place((*path, key), sources)} is '{mask_text(str(written[key]))}'"
        reason = str(error).partition("\n")[0]
        if isinstance(error, InterpolationKeyError):
            raise UnsetKeyError(f"{reason}: {found}.{_remedy(reason, root)}") from error
        raise ConfigError(f"{found}: {reason}.") from error


def _remedy(reason: str, root: DictConfig) -> str:
    match = re.search(r"'(.+)'", reason)
    unset = match.group(1) if match else ""
    known = [str(key) for key in root]
    return f" Put '{unset}: <value>' into env.yaml, or write +{unset}=<value>.{nearest(unset, known)}"


def dotted(path: Iterable[str | int]) -> str:
    """A key path as a user writes it."""
    return ".".join(map(str, path))


def place(path: KeyPath, sources: Sources) -> str:
    """A key path and the source it is from."""
    source = sources.where(path)
    return f"{dotted(path)} (in {source})" if source else dotted(path)
