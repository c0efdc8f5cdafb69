"""The sources of a configuration and their precedence.

From low to high: the files in `config_paths` (a later file takes precedence over an earlier one, and a file over those
that it includes, unless they are listed too), `env.yaml`, the config passed in from Python, the command line.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

from nemo_gym.common.paths import find, nearest, search_roots
from nemo_gym.common.plugins import plugin
from nemo_gym.common.redaction import redact
from nemo_gym.config.command_line import ANY_VALUE, CommandLine, Override, parse_command_line
from nemo_gym.config.keys import (
    CONFIG_PATHS_KEY_NAME,
    DIRECTIVES,
    DUMMY_MODEL,
    ENVIRONMENT_SERVERS,
    KeyPath,
    dotted,
    nodes,
    value_at,
)
from nemo_gym.config.secrets import find_secrets, is_secret_at, process_secrets, set_process_secrets
from nemo_gym.errors import (
    ConfigError,
    ConfigInterpolationError,
    ConfigMissingValuesError,
    MalformedConfigPathsError,
    MissingPathError,
)

DOTENV_NAME = "env.yaml"
COMMAND_LINE = "the command line"
PYTHON = "the config passed in from Python"
_ABSENT = object()
_DIRECTIVE_KEYS = {(key,) for key in (*DIRECTIVES, DUMMY_MODEL, ENVIRONMENT_SERVERS)}

Initial = Mapping[str, Any] | DictConfig | Callable[[DictConfig], Mapping[str, Any]]
"""A config from Python, or a function that makes one from `env.yaml` and the command line."""


@dataclass(frozen=True)
class Source:
    """One mapping to merge."""

    label: str
    """The name of the source in messages."""

    config: DictConfig = field(repr=False)

    config_path: str = ""
    """The path of a file as it is written in `config_paths`."""


@dataclass(frozen=True)
class ConfigSources:
    """The sources of one configuration, in order of increasing precedence."""

    files: tuple[Source, ...] = ()
    settings: tuple[Source, ...] = ()
    overrides: tuple[Override, ...] = ()
    dotenv: Mapping[Any, Any] = field(default_factory=dict, repr=False)
    dotenv_path: Path | None = None

    def merge(self, *, missing_ok: bool = False) -> DictConfig:
        """The merged configuration; `config_paths` lists all files in the order they were merged.

        With `missing_ok`, the command line may delete keys that do not exist.
        """
        config = _merge((*self.files, *self.settings))
        apply_overrides(self.overrides, config, missing_ok=missing_ok)
        if self.files:
            config[CONFIG_PATHS_KEY_NAME] = [file.config_path for file in self.files]
        return config

    def origin_of(self, path: KeyPath) -> str:
        """The label of the source that sets the value at `path` or the nearest container of it, or an empty string."""
        command_line = Source(COMMAND_LINE, ConfigSources(overrides=self.overrides).merge(missing_ok=True))
        sources = (command_line, *reversed(self.settings), *reversed(self.files))
        raw = [(source.label, _raw(source.config)) for source in sources]
        for depth in range(len(path), 0, -1):
            for label, values in raw:
                if value_at(values, path[:depth], _ABSENT) is not _ABSENT:
                    return label
        return ""


def read_sources(
    arguments: CommandLine | Sequence[str] = (),
    *,
    initial: Initial | None = None,
    dotenv_path: Path | None = None,
    use_dotenv: bool = True,
) -> ConfigSources:
    """Read the command line, a config from Python, `env.yaml`, and all files that these name.

    The secrets among them are known to this process before anything of them can be part of an error message.
    """
    line = arguments if isinstance(arguments, CommandLine) else parse_command_line(arguments)
    settings = []
    dotenv_file = find_dotenv(dotenv_path) if use_dotenv else None
    if dotenv_file is not None:
        settings.append(Source(str(dotenv_file), load_file(dotenv_file)))
    dotenv = _raw(settings[0].config) if settings else {}
    sources = ConfigSources((), tuple(settings), line.overrides, dotenv, dotenv_file)
    if callable(initial):
        given = sources.merge(missing_ok=True)
        set_process_secrets(process_secrets() | find_secrets(given, dotenv))
        initial = initial(given)
    if initial is not None:
        values = _raw(initial) if isinstance(initial, DictConfig) else dict(initial)
        own = Source(PYTHON, OmegaConf.create(values))  # a copy without flags such as read-only
        sources = replace(sources, settings=(*settings, own))
    settings_config = sources.merge(missing_ok=True)
    set_process_secrets(process_secrets() | find_secrets(settings_config, dotenv))
    named_in = sources.origin_of((CONFIG_PATHS_KEY_NAME,))
    files = load_files(_config_paths(settings_config, named_in), settings=settings_config, named_in=named_in)
    return replace(sources, files=tuple(files))


def apply_directives(config: DictConfig) -> dict[str, str]:
    """Apply, in place, what only configurations of the public NeMo Gym have: `_inherit_from` and its siblings,
    `dummy_model` and `environment_servers`. Return the removed blocks, each with the first that inherits from it."""
    entries = nodes(OmegaConf.to_container(config, resolve=False))
    if not any(path[-1:] in _DIRECTIVE_KEYS or _names_directive(value) for path, value in entries):
        return {}
    removed: dict[str, str] = plugin("config_directives")(config)
    return removed


def _names_directive(value: Any) -> bool:
    return isinstance(value, str) and ("${inherit_from:" in value or "${copy:" in value)


def command_line_config(line: CommandLine) -> DictConfig:
    """The configuration of the command line alone."""
    return ConfigSources(overrides=line.overrides).merge(missing_ok=True)


def apply_overrides(overrides: Sequence[Override], config: DictConfig, *, missing_ok: bool = False) -> None:
    """Apply the command line to `config`, in place and in order. With `missing_ok`, missing keys can be deleted."""
    for override in overrides:
        if override.deletes:
            _delete(override, config, missing_ok=missing_ok)
        else:
            _set(override, config)


def _set(override: Override, config: DictConfig) -> None:
    try:
        OmegaConf.update(config, override.key, override.value)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(f"Cannot apply '{override.shown}': {_first_line(error)}.") from error


def _delete(override: Override, config: DictConfig, *, missing_ok: bool) -> None:
    *outer, last = override.key.split(".")
    parent = OmegaConf.select(config, ".".join(outer)) if outer else config
    keys = _keys_by_text(parent)
    if last not in keys:
        if missing_ok:
            return
        raise ConfigError(f"Cannot apply '{override.shown}': there is no key '{override.key}'.{nearest(last, keys)}")
    found = OmegaConf.to_container(parent, resolve=False)[keys[last]]  # type: ignore[index]
    if override.value is not ANY_VALUE and override.value != found:
        raise ConfigError(f"Cannot apply '{override.shown}': '{override.key}' has another value.")
    del parent[keys[last]]


def _keys_by_text(container: Any) -> dict[str, Any]:
    if isinstance(container, DictConfig):
        return {str(key): key for key in container}
    return {str(index): index for index in range(len(container))} if isinstance(container, ListConfig) else {}


def find_dotenv(path: Path | None = None) -> Path | None:
    """The given file if it exists, else `env.yaml` in the working directory or beside the package."""
    candidates = [path] if path is not None else [root / DOTENV_NAME for root in search_roots()]
    return next((candidate for candidate in candidates if candidate.exists() or candidate.is_symlink()), None)


def load_files(paths: Sequence[str], *, settings: DictConfig, named_in: str) -> list[Source]:
    """The files and all that they include, each once, in the order of merging.

    Listed files keep their order. A file that is only included comes before the first file that includes it. An
    interpolation in the `config_paths` of a file may refer to `settings`.
    """
    listed: dict[Path, str] = {}
    for config_path in paths:
        path = _find_file(config_path, named_in)
        listed.pop(path, None)
        listed[path] = config_path
    seen = set(listed)
    files: list[Source] = []

    def visit(path: Path, config_path: str) -> None:
        config = load_file(path)
        for included in _included_paths(config, settings, label=str(path)):
            included_path = _find_file(included, str(path))
            if included_path not in seen:
                seen.add(included_path)
                visit(included_path, included)
        files.append(Source(str(path), config, config_path))

    for path, config_path in listed.items():
        visit(path, config_path)
    return files


def load_file(path: Path) -> DictConfig:
    """A YAML file whose top level is a mapping."""
    try:
        config = OmegaConf.load(path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        remedy = " Indent with spaces, not tabs." if "'\\t'" in str(error.problem) else ""
        raise ConfigError(f"{path}{place}: invalid YAML: {error.problem}.{remedy}") from error
    except GrammarParseError as error:
        raise ConfigError(
            f"{path}: invalid interpolation at '{error.full_key}'. "
            "Expected ${key}; write '\\${' for a literal '${'."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: cannot be read: it is not UTF-8 text. Save it as UTF-8.") from None
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {_first_line(error)}.") from error
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{path}: found a list at the top level, expected keys and values.")
    if _is_plain_text(config, path):
        raise ConfigError(f"{path}: found text without keys, expected lines like 'key: value', with the space.")
    return config


def _is_plain_text(config: DictConfig, path: Path) -> bool:
    """True if the file is one text, which OmegaConf reads as a key without a value."""
    key = next(iter(config), None)
    return len(config) == 1 and _raw(config)[key] is None and not re.search(r":\s*(#.*)?$", path.read_text(), re.M)


def _find_file(config_path: str, named_in: str) -> Path:
    try:
        path = find(config_path, what="config file")
    except MissingPathError as error:
        raise MissingPathError(f"{error} It is named in {CONFIG_PATHS_KEY_NAME} of {named_in}.") from error
    if not path.is_file():
        raise ConfigError(f"{path} is a folder, expected a YAML file. It is named in config_paths of {named_in}.")
    return path.resolve()


def _included_paths(config: DictConfig, settings: DictConfig, *, label: str) -> list[str]:
    paths = _raw(config).get(CONFIG_PATHS_KEY_NAME)
    if paths is None:
        return []
    context = _merge([Source(label, config), Source("the settings", settings)])
    context[CONFIG_PATHS_KEY_NAME] = paths
    return _config_paths(context, label)


def _config_paths(config: DictConfig, named_in: str) -> list[str]:
    try:
        paths = OmegaConf.select(config, CONFIG_PATHS_KEY_NAME)
        paths = OmegaConf.to_container(paths, resolve=True) if OmegaConf.is_config(paths) else paths
    except OmegaConfBaseException as error:
        raise ConfigError(f"{CONFIG_PATHS_KEY_NAME} of {named_in}: {_first_line(error)}.") from error
    if paths is None:
        return []
    if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
        return paths
    example = paths if isinstance(paths, str) else "a.yaml,b.yaml"
    raise MalformedConfigPathsError(
        f"{CONFIG_PATHS_KEY_NAME} of {named_in} is {paths!r}, expected a list of files. "
        f'Write "+{CONFIG_PATHS_KEY_NAME}=[{example}]", or in YAML {CONFIG_PATHS_KEY_NAME}: [{example}].'
    )


def _merge(sources: Sequence[Source]) -> DictConfig:
    config = OmegaConf.create()
    for source in sources:
        try:
            config.merge_with(source.config)
        except OmegaConfBaseException as error:
            key = dotted(_conflict(_raw(config), _raw(source.config)) or ())
            raise ConfigError(
                f"{source.label}: cannot merge '{key}': it is a list in one source and a mapping in another."
            ) from error
    return config


def _conflict(low: Any, high: Any, path: KeyPath = ()) -> KeyPath | None:
    """The path at which one has a list and the other a mapping."""
    if {type(low), type(high)} == {dict, list}:
        return path
    if not isinstance(low, dict) or not isinstance(high, dict):
        return None
    conflicts = (_conflict(low[key], high[key], (*path, key)) for key in high if key in low)
    return next(filter(None, conflicts), None)


def _raw(config: DictConfig) -> dict[Any, Any]:
    """Plain dicts and lists, with interpolations as they are written."""
    return cast(dict[Any, Any], OmegaConf.to_container(config, resolve=False))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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
