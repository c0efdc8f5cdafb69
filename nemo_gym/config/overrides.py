"""The command line: `+a.b=v`, `++a.b=v`, `~a`, in Hydra's grammar. The `+` may be left out.

Only Hydra's parser is used: nothing is written to disk and no logging is set up.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.common.paths import nearest
from nemo_gym.common.redaction import redact
from nemo_gym.config.secrets import MASK, is_secret
from nemo_gym.errors import ConfigError

_HELP_FLAGS = ("-h", "--help")
_ANY = object()

_ITEM = r"(?:[A-Za-z_/][\w/.:-]*|-?(?:0|[1-9]\d{0,17}))"
_PLAIN = re.compile(rf"\+{{0,2}}([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=({_ITEM}|\[(?:{_ITEM}(?:,{_ITEM})*)?\])", re.ASCII)
"""Most arguments: words, paths, URLs and whole numbers, alone or in a list. They are read here, because importing
Hydra's parser takes longer than all else that reading a command line does."""
_WORDS = {"true": True, "false": False, "null": None}
_FLOATS = frozenset(("nan", "inf"))


@dataclass(frozen=True)
class Override:
    """One argument of a command: set `key` to `value`, or delete `key`, if it has this `value`."""

    key: str
    value: Any = field(repr=False)
    deletes: bool

    shown: str
    """The argument with a secret masked."""


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """Parse the arguments of a command; `-h` and `--help` mean `help=true`."""
    return [_parse("help=true" if argument in _HELP_FLAGS else argument) for argument in arguments]


def apply_overrides(overrides: Sequence[Override], config: DictConfig, *, missing_ok: bool = False) -> None:
    """Apply the arguments to `config`, in place and in order. With `missing_ok`, missing keys can be deleted."""
    for override in overrides:
        if override.deletes:
            _delete(override, config, missing_ok=missing_ok)
        else:
            _set(override, config)


def _parse(argument: str) -> Override:
    plain = _PLAIN.fullmatch(argument)
    if plain is not None and _FLOATS.isdisjoint(re.split(r"[=,\[\]]", plain[2].lower())):
        return Override(plain[1], _plain_value(plain[2]), deletes=False, shown=_shown(argument))
    return _parse_with_hydra(argument)


def _plain_value(text: str) -> Any:
    if text.startswith("["):
        return [_plain_value(item) for item in text[1:-1].split(",")] if text != "[]" else []
    return int(text) if text.removeprefix("-").isdigit() else _WORDS.get(text.lower(), text)


def _parse_with_hydra(argument: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, equals, _ = argument.partition("=")
    shown = _shown(argument)
    if argument.startswith("-"):
        raise ConfigError(f"Found '{shown}', expected no dashes: write +{key.lstrip('-')}=<value>.")
    try:
        parsed = OverridesParser.create().parse_override(argument)
    except HydraException:
        raise ConfigError(
            f"Invalid argument '{shown}': expected +key=value, ++key=value or ~key. "
            f"Quote a value that has special characters: '{key}=\"...\"'."
        ) from None
    if not parsed.key_or_group or parsed.package is not None:
        raise ConfigError(f"Invalid argument '{shown}': expected a key, with dots between its parts.")
    if parsed.is_sweep_override():
        raise ConfigError(f"Found several values in '{shown}', expected one. A list is written '{key}=[a,b]'.")
    return Override(
        key=parsed.key_or_group,
        value=parsed.value() if equals else _ANY,
        deletes=parsed.is_delete(),
        shown=shown,
    )


def shown_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command with secrets masked."""
    return [_shown(argument) for argument in arguments]


def _shown(argument: str) -> str:
    key, _, value = argument.partition("=")
    return f"{key}={MASK}" if is_secret(key.lstrip("+~-"), value) else redact(argument)


def _set(override: Override, config: DictConfig) -> None:
    try:
        OmegaConf.update(config, override.key, override.value)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"Cannot apply '{override.shown}': {reason}.") from error


def _delete(override: Override, config: DictConfig, *, missing_ok: bool) -> None:
    *outer, last = override.key.split(".")
    parent = OmegaConf.select(config, ".".join(outer)) if outer else config
    keys = _keys_by_text(parent)
    if last not in keys:
        if missing_ok:
            return
        raise ConfigError(f"Cannot apply '{override.shown}': there is no key '{override.key}'.{nearest(last, keys)}")
    found = OmegaConf.to_container(parent, resolve=False)[keys[last]]  # type: ignore[index]
    if override.value is not _ANY and override.value != found:
        raise ConfigError(f"Cannot apply '{override.shown}': '{override.key}' has another value.")
    del parent[keys[last]]


def _keys_by_text(container: Any) -> dict[str, Any]:
    if isinstance(container, DictConfig):
        return {str(key): key for key in container}
    return {str(index): index for index in range(len(container))} if isinstance(container, ListConfig) else {}
