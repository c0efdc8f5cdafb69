"""Read values out of a merged configuration, with errors that say where a value is written and what to do."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

from nemo_gym.common.paths import nearest
from nemo_gym.common.redaction import redact
from nemo_gym.config.error_messages import KeyPath
from nemo_gym.config.secrets import is_secret_at
from nemo_gym.config.sources import Sources
from nemo_gym.errors import ConfigError

UNKNOWN_SOURCES = Sources()


class UnsetKeyError(ConfigError, InterpolationKeyError):
    """A value is an interpolation of a key that is not there."""


def resolved(config: DictConfig, path: KeyPath = (), *, sources: Sources = UNKNOWN_SOURCES) -> Any:
    """What is at `path`, as plain dicts and lists with every interpolation resolved.

    If one cannot be, the error says which, where it is written and what to do.
    """
    reader = _Reader(config, sources)
    node: Any = config
    for depth in range(len(path)):
        node = reader.value(node, path[: depth + 1])
    return reader.plain(node, path, ())


@dataclass(frozen=True)
class _Reader:
    root: DictConfig
    sources: Sources

    def plain(self, node: Any, path: KeyPath, within: tuple[Any, ...]) -> Any:
        """`node`, which is at `path`, inside of all that is in `within`."""
        if any(node is outer for outer in within):
            where = place(path, self.sources)
            raise ConfigError(f"{where} leads back to itself: it is an interpolation of what holds it.")

        def inner(key: Any) -> Any:
            return self.plain(self.value(node, (*path, key)), (*path, key), (*within, node))

        if isinstance(node, DictConfig):
            return {key: inner(key) for key in node}
        return [inner(index) for index in range(len(node))] if isinstance(node, ListConfig) else node

    def value(self, node: Any, path: KeyPath) -> Any:
        """The value in `node` of the last key of `path`."""
        try:
            return node[path[-1]]
        except MissingMandatoryValue as error:
            where = place(path, self.sources)
            raise ConfigError(f"{where} has to be given: it is '???'. Write +{dotted(path)}=<value>.") from error
        except OmegaConfBaseException as error:
            found = f"{place(path, self.sources)} is '{_written(node, path)}'"
            reason = str(error).partition("\n")[0]
            if isinstance(error, InterpolationKeyError):
                raise UnsetKeyError(f"{reason}: {found}.{_remedy(reason, self.root)}") from error
            raise ConfigError(f"{found}: {reason}.") from error


def _written(node: Any, path: KeyPath) -> str:
    """The text of a value; of a secret, only the interpolation in it."""
    values: Any = OmegaConf.to_container(node, resolve=False)
    text = str(values[path[-1]])
    return "".join(re.findall(r"\$\{.*\}", text)) if is_secret_at(path, text) else redact(text)


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
