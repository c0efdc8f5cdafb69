"""Resolve the interpolations of a merged configuration, with errors that say where a value is set and what to do."""

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

from nemo_gym.common.paths import nearest
from nemo_gym.common.redaction import redact
from nemo_gym.config.keys import KeyPath
from nemo_gym.config.secrets import is_secret_at
from nemo_gym.config.sources import ConfigSources
from nemo_gym.config.tree import dotted, value_at
from nemo_gym.errors import ConfigError, ConfigInterpolationError, ConfigMissingValuesError

UNKNOWN_SOURCES = ConfigSources()


class UnsetKeyError(ConfigInterpolationError, InterpolationKeyError):
    """A value is an interpolation of a key that is not set."""


def resolve(
    config: DictConfig, path: KeyPath = (), *, sources: ConfigSources = UNKNOWN_SOURCES, missing_ok: bool = False
) -> Any:
    """The value at `path` as plain dicts and lists, with every interpolation resolved.

    With `missing_ok`, a value that is still '???' stays so.
    """
    node: Any = config
    try:
        for key in path:
            node = node[key]
        is_container = OmegaConf.is_config(node)
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=not missing_ok) if is_container else node
    except OmegaConfBaseException as error:
        raise _explain(error, config, sources) from error


def _explain(error: OmegaConfBaseException, config: DictConfig, sources: ConfigSources) -> ConfigError:
    path = tuple(int(key) if key.isdigit() else key for key in re.findall(r"[^.\[\]]+", str(error.full_key)))
    place = location(path, sources)
    if isinstance(error, MissingMandatoryValue):
        return ConfigMissingValuesError(f"{place} is required: it is '???'. Write +{dotted(path)}=<value>.")
    reason = str(error).partition("\n")[0]
    if "RecursionError" in reason:
        reason = "it refers to a value that contains it"
    found = f"{place} is '{_raw_text(config, path)}'"
    if not isinstance(error, InterpolationKeyError):
        return ConfigInterpolationError(f"{found}: {reason}.")
    unset = "".join(re.findall(r"'(.+)'", reason))
    hint = nearest(unset, map(str, config))
    return UnsetKeyError(f"{reason}: {found}. Set '{unset}: <value>' in env.yaml, or write +{unset}=<value>.{hint}")


def _raw_text(config: DictConfig, path: KeyPath) -> str:
    """A value as it is written; of a secret, only the interpolation in it."""
    text = str(value_at(OmegaConf.to_container(config, resolve=False), path))
    return "".join(re.findall(r"\$\{.*\}", text)) if is_secret_at(path, text) else redact(text)


def location(path: KeyPath, sources: ConfigSources) -> str:
    """A key path and the source that sets it."""
    origin = sources.origin_of(path)
    return f"{dotted(path)} (in {origin})" if origin else dotted(path)
