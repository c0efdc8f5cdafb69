"""Config directives: inherit or copy another block, and delete keys. They are applied after the merge.

`_inherit_from: <path>` inherits the block at that path and removes it; `_copy: <path>` keeps it. `_delete_key: a,b`
deletes keys, at any depth. `${inherit_from:<path>}` and `${copy:<path>}` do the same for any value.
"""

import copy
import re
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_gym.common.paths import nearest
from nemo_gym.compat.agent_swap import swap_agents
from nemo_gym.compat.environment_blocks import use_environment_servers
from nemo_gym.config.keys import DIRECTIVES, DUMMY_MODEL, KeyPath, dotted, value_at
from nemo_gym.errors import ConfigError, InheritPathNotFoundError

INHERIT, COPY, DELETE = DIRECTIVES
MODELS = "responses_api_models"

_TEXT_FORM = re.compile(r"\$\{(inherit_from|copy):\s*([^}]+?)\s*\}")


class _Source(NamedTuple):
    path: str
    is_removed: bool


def apply_directives(config: DictConfig) -> dict[str, str]:
    """Apply all directives and merge dummy models, in place. Return each removed block with the first block that
    inherits from it."""
    resolver = _Resolver(OmegaConf.to_container(config, resolve=False))
    found = resolver.resolved(resolver.raw, ())
    for name in sorted(resolver.removed, key=lambda name: -name.count(".")):
        *outer, last = name.split(".")
        value_at(found, tuple(outer), {}).pop(last, None)
    for key in list(config):
        del config[key]
    config.merge_with(found)
    _merge_dummy_models(config)
    swap_agents(config)
    use_environment_servers(config, resolver.removed)
    return resolver.removed


def _merge_dummy_models(config: DictConfig) -> None:
    """Merge the settings of `dummy_model` into the implementation beside it, in place.

    A configuration without a model may define a dummy, so that another file can replace it.
    """
    raw: Any = OmegaConf.to_container(config, resolve=False)
    for name in raw:
        written = value_at(raw, (name, MODELS))
        if isinstance(written, dict) and DUMMY_MODEL in written and len(written) > 1:
            models = config[name][MODELS]
            dummy = models.pop(DUMMY_MODEL)
            for implementation in list(models):
                models[implementation] = OmegaConf.merge(dummy, models[implementation])


def _text_form(value: Any) -> re.Match[str] | None:
    return _TEXT_FORM.fullmatch(value) if isinstance(value, str) else None


class _Resolver:
    """Resolves blocks depth first, so that a block may inherit from one that inherits itself."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._active: list[str] = []
        self.removed: dict[str, str] = {}

    def resolved(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, list):
            return [self.resolved(item, (*path, index)) for index, item in enumerate(value)]
        source = _source_of(value, path)
        if not isinstance(value, dict):
            return value if source is None else self._source(source, path)
        own = {key: item for key, item in value.items() if key not in (INHERIT, COPY)}
        base = {} if source is None else self._source(source, path)
        if not isinstance(base, dict):
            raise ConfigError(f"{dotted(path)} inherits from '{source and source.path}', which is not a mapping.")
        return self._overlaid(base, own, path)

    def _overlaid(self, base: dict[Any, Any], own: dict[Any, Any], path: KeyPath) -> dict[Any, Any]:
        """Merge a block's own keys over the base. Lists are replaced. Deleted keys are removed last."""
        merged = dict(base)
        for key, item in own.items():
            if key == DELETE:
                continue
            below, inner = merged.get(key), (*path, key)
            merges = isinstance(below, dict) and isinstance(item, dict) and _source_of(item, inner) is None
            merged[key] = self._overlaid(below, item, inner) if merges else self.resolved(item, inner)  # type: ignore[arg-type]
        for name in _names(own.get(DELETE), path):
            _delete(merged, name, path)
        return merged

    def _source(self, source: _Source, path: KeyPath) -> Any:
        if source.path in self._active:
            raise ConfigError(f"{dotted(path)} inherits from itself: {' <- '.join([*self._active, source.path])}.")
        if source.is_removed:
            self.removed.setdefault(source.path, dotted(path))
        self._active.append(source.path)
        try:
            return copy.deepcopy(self.resolved(self._find(source.path, path), tuple(source.path.split("."))))
        finally:
            self._active.pop()

    def _find(self, name: str, path: KeyPath) -> Any:
        value: Any = self.raw
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                known = map(str, value) if isinstance(value, dict) else ()
                raise InheritPathNotFoundError(
                    f"{dotted(path)} inherits from '{name}', but there is no '{key}'.{nearest(key, known)}"
                )
            value = value[key]
        return value


def _source_of(value: Any, path: KeyPath) -> _Source | None:
    if match := _text_form(value):
        return _Source(match[2], is_removed=match[1] == "inherit_from")
    if not isinstance(value, dict) or (INHERIT not in value and COPY not in value):
        return None
    if INHERIT in value and COPY in value:
        raise ConfigError(f"{dotted(path)} has both {INHERIT} and {COPY}; expected one of them.")
    name = value.get(INHERIT, value.get(COPY))
    if not isinstance(name, str):
        raise ConfigError(f"{dotted(path)}: {INHERIT} is {name!r}; expected the path of a block.")
    return _Source(name, is_removed=INHERIT in value)


def _names(given: Any, path: KeyPath) -> list[str]:
    if given is None:
        return []
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{dotted(path)}.{DELETE} is {given!r}; expected keys, separated by commas.")
    return [name.strip() for name in names if name.strip()]


def _delete(block: dict[Any, Any], name: str, path: KeyPath) -> None:
    *outer, last = name.split(".")
    at = value_at(block, tuple(outer))
    if not isinstance(at, dict) or last not in at:
        known = map(str, at) if isinstance(at, dict) else ()
        raise InheritPathNotFoundError(
            f"{dotted(path)}.{DELETE} names '{name}', which does not exist.{nearest(last, known)}"
        )
    del at[last]
