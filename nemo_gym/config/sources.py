"""Where a configuration comes from, and what wins.

From low to high: the files of `config_paths` (a later one wins over an earlier one, and a file over those that it
includes, unless they are listed too), `env.yaml`, what Python passes in, the command line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from nemo_gym.common.paths import find, search_roots
from nemo_gym.config.error_messages import KeyPath, Where
from nemo_gym.config.keys import CONFIG_PATHS_KEY_NAME
from nemo_gym.config.overrides import Override, apply_overrides, parse_overrides
from nemo_gym.config.secrets import find_secrets, process_secrets, set_process_secrets
from nemo_gym.errors import ConfigError, MissingPathError

DOTENV_NAME = "env.yaml"
COMMAND_LINE = "the command line"
PYTHON = "the config passed in from Python"


@dataclass(frozen=True)
class Source:
    """One thing that was merged, and how a user knows it."""

    label: str
    config: DictConfig = field(repr=False)

    given: str = ""
    """Of a file of `config_paths`, the path as it was written there."""


@dataclass(frozen=True)
class Sources:
    """All that is merged into one configuration, what wins last."""

    files: tuple[Source, ...] = ()
    settings: tuple[Source, ...] = ()
    overrides: tuple[Override, ...] = ()

    dotenv: Mapping[Any, Any] = field(default_factory=dict, repr=False)
    """The content of `env.yaml`."""

    def merged(self, *, missing_ok: bool = False) -> DictConfig:
        """The one configuration, with `config_paths` naming all the files in the order they were merged.

        The command line may delete what is not there if `missing_ok`.
        """
        config = _merged((*self.files, *self.settings))
        apply_overrides(self.overrides, config, missing_ok=missing_ok)
        if self.files:
            config[CONFIG_PATHS_KEY_NAME] = [file.given for file in self.files]
        return config

    def where(self, path: KeyPath) -> str:
        """The source of a value, or of the nearest thing around it; empty if nobody knows."""
        command_line = Source(COMMAND_LINE, Sources(overrides=self.overrides).merged(missing_ok=True))
        raw = [
            (source.label, _written(source.config))
            for source in (command_line, *reversed(self.settings), *reversed(self.files))
        ]
        for depth in range(len(path), 0, -1):
            for label, values in raw:
                if _holds(values, path[:depth]):
                    return label
        return ""

    def below(self, outer: KeyPath) -> Where:
        """As `where`, for paths that start at `outer`."""
        return lambda path: self.where((*outer, *path))


def read_sources(
    arguments: Sequence[str] = (),
    *,
    initial: Mapping[str, Any] | DictConfig | None = None,
    dotenv_path: Path | None = None,
    use_dotenv: bool = True,
) -> Sources:
    """Read everything that a command line, a config from Python and `env.yaml` lead to."""
    settings = []
    dotenv = find_dotenv(dotenv_path) if use_dotenv else None
    if dotenv is not None:
        settings.append(Source(str(dotenv), load_file(dotenv)))
    dotenv_values = _written(settings[0].config) if settings else {}
    if initial is not None:
        values = _written(initial) if isinstance(initial, DictConfig) else dict(initial)
        settings.append(Source(PYTHON, OmegaConf.create(values)))  # a copy without flags such as read-only
    sources = Sources(settings=tuple(settings), overrides=tuple(parse_overrides(arguments)), dotenv=dotenv_values)
    above = sources.merged(missing_ok=True)
    set_process_secrets(process_secrets() | find_secrets(above, dotenv_values))
    named_in = sources.where((CONFIG_PATHS_KEY_NAME,))
    files = load_files(_config_paths(above, named_in), above=above, named_in=named_in)
    return replace(sources, files=tuple(files))


def command_line_config(arguments: Sequence[str]) -> DictConfig:
    """What the command line alone says."""
    return Sources(overrides=tuple(parse_overrides(arguments))).merged(missing_ok=True)


def find_dotenv(path: Path | None = None) -> Path | None:
    """The user's own settings: the file given, or `env.yaml` in the working directory or beside the package."""
    candidates = [path] if path is not None else [root / DOTENV_NAME for root in search_roots()]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def load_files(paths: Sequence[str], *, above: DictConfig, named_in: str) -> list[Source]:
    """The files and all that they include, each once, in the order of merging.

    The files listed keep their order. One that is only included comes before the first that includes it. `above` holds
    the settings that an interpolation in the `config_paths` of a file may name.
    """
    listed: dict[Path, str] = {}
    for given in paths:
        path = _find_file(given, named_in)
        listed.pop(path, None)
        listed[path] = given
    seen = set(listed)
    files: list[Source] = []

    def visit(path: Path, given: str) -> None:
        config = load_file(path)
        for included in _included_paths(config, above, label=str(path)):
            included_path = _find_file(included, str(path))
            if included_path not in seen:
                seen.add(included_path)
                visit(included_path, included)
        files.append(Source(str(path), config, given))

    for path, given in listed.items():
        visit(path, given)
    return files


def load_file(path: Path) -> DictConfig:
    """A YAML file whose top level is a mapping."""
    try:
        config = OmegaConf.load(path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{place}: not valid YAML: {error.problem}.") from error
    except GrammarParseError as error:
        raise ConfigError(
            f"{path}: the interpolation at '{error.full_key}' cannot be read. "
            "Expected ${key}; where '${' is meant literally, write '\\${'."
        ) from None
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{path}: cannot be read: {reason}.") from error
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{path}: found a list at the top level, expected keys and values.")
    return config


def _find_file(given: str, named_in: str) -> Path:
    try:
        path = find(given, what="config file")
    except MissingPathError as error:
        raise MissingPathError(f"{error} It is named in {CONFIG_PATHS_KEY_NAME} of {named_in}.") from error
    if not path.is_file():
        raise ConfigError(f"{path} is a folder, expected a YAML file. It is named in config_paths of {named_in}.")
    return path.resolve()


def _included_paths(config: DictConfig, above: DictConfig, *, label: str) -> list[str]:
    paths = _written(config).get(CONFIG_PATHS_KEY_NAME)
    if paths is None:
        return []
    context = _merged([Source(label, config), Source("the settings above it", above)])
    context[CONFIG_PATHS_KEY_NAME] = paths
    return _config_paths(context, label)


def _config_paths(config: DictConfig, named_in: str) -> list[str]:
    try:
        paths = OmegaConf.select(config, CONFIG_PATHS_KEY_NAME)
        paths = OmegaConf.to_container(paths, resolve=True) if OmegaConf.is_config(paths) else paths
    except OmegaConfBaseException as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{CONFIG_PATHS_KEY_NAME} of {named_in}: {reason}.") from error
    if paths is None:
        return []
    if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
        return paths
    example = paths if isinstance(paths, str) else "a.yaml,b.yaml"
    raise ConfigError(
        f"{CONFIG_PATHS_KEY_NAME} of {named_in} is {paths!r}, expected a list of files. "
        f'Write "+{CONFIG_PATHS_KEY_NAME}=[{example}]", or in YAML {CONFIG_PATHS_KEY_NAME}: [{example}].'
    )


def _merged(sources: Sequence[Source]) -> DictConfig:
    config = OmegaConf.create()
    for source in sources:
        try:
            config.merge_with(source.config)
        except OmegaConfBaseException as error:
            key = ".".join(map(str, _conflict(_written(config), _written(source.config)) or ()))
            raise ConfigError(
                f"{source.label}: cannot merge '{key}': it is a list in one source and has keys in another."
            ) from error
    return config


def _conflict(low: Any, high: Any, path: KeyPath = ()) -> KeyPath | None:
    """Where one has a list and the other a mapping."""
    if {type(low), type(high)} == {dict, list}:
        return path
    if not isinstance(low, dict) or not isinstance(high, dict):
        return None
    conflicts = (_conflict(low[key], high[key], (*path, key)) for key in high if key in low)
    return next(filter(None, conflicts), None)


def _written(config: DictConfig) -> dict[Any, Any]:
    """The values as they were written, interpolations and all."""
    return cast(dict[Any, Any], OmegaConf.to_container(config, resolve=False))


def _holds(values: Any, path: KeyPath) -> bool:
    try:
        for key in path:
            values = values[key]
    except (KeyError, IndexError, TypeError):
        return False
    return True
