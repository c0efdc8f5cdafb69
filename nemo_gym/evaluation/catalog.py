"""The environments, agents, models and datasets of this machine, found by their folders."""

import ast
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.common.paths import FOLDER_ALIASES, find, nearest, search_roots
from nemo_gym.config.keys import ServerBlock, ServerType, blocks_in
from nemo_gym.config.types import DatasetConfig
from nemo_gym.data.hubs import pypi
from nemo_gym.errors import ConfigError, MissingPathError
from nemo_gym.runtime.requirements import has_extra

_EXTRA = re.compile(r'^    EXTRA(?:: [^=]+)? = "([\w-]+)"', re.MULTILINE)
ALIASES = {Path(alias).name: Path(folder).name for alias, folder in FOLDER_ALIASES.items()}


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """A dataset that a configuration names."""

    name: str
    type: str
    path: str
    packaged: DatasetConfig | None = None
    """The dataset, if its rows are made of a package."""

    @property
    def is_on_disk(self) -> bool:
        if self.packaged is not None:
            return pypi.rows_path(self.packaged).is_file()
        with contextlib.suppress(MissingPathError):
            return find(self.path).is_file()
        return False


@dataclass(frozen=True, slots=True)
class Entry:
    """One folder with a server."""

    kind: ServerType
    name: str
    folder: Path
    configs: list[Path]

    @property
    def path(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def description(self) -> str:
        """The description in one of its configs or, without one, the first sentence of its app."""
        return _described(self.configs) or _first_sentence(self.folder / "app.py")

    @property
    def missing_extra(self) -> str | None:
        """The optional part that its server class names in `EXTRA`, if this install lacks it."""
        found = _EXTRA.search((self.folder / "app.py").read_text())
        return found[1] if found and not has_extra(found[1]) else None


@dataclass(frozen=True, slots=True)
class EnvironmentAgent:
    """An agent of a configuration, with its datasets."""

    name: str
    environment: str | None
    datasets: list[DatasetEntry] = field(default_factory=list)


def entries(kind: ServerType) -> list[Entry]:
    """The server folders of a kind, by name; one in the working directory hides one beside the package."""
    found: dict[str, Entry] = {}
    for root in search_roots():
        for folder in sorted((root / kind).glob("*/")):
            if folder.name not in found and (folder / "app.py").is_file():
                found[folder.name] = _entry(kind, folder)
    return [found[name] for name in sorted(found)]


def find_environment(name: str) -> Entry:
    """The environment of that name, of that folder, or with a config of that name."""
    known = {entry.name: entry for entry in entries("resources_servers")}
    wanted = name.rstrip("/").removeprefix("resources_servers/")
    if "/" in wanted and (folder := Path(name)).is_dir():
        if not (folder / "app.py").is_file():
            raise ConfigError(
                f"'{name}' is not an environment: the folder has no app.py. `ng list environments` lists them all."
            )
        return _entry("resources_servers", folder.resolve())
    entry = known.get(wanted) or known.get(ALIASES.get(wanted, ""))
    entry = entry or next((one for one in known.values() if wanted in (path.stem for path in one.configs)), None)
    if entry is None:
        short = {one.removeprefix("example_"): one for one in known}
        agents = [one.name for one in entries("responses_api_agents")]
        hint = nearest(wanted, known) or nearest(wanted, short)
        if wanted in agents:
            hint = f" '{wanted}' is an agent, which plays in an environment."
        raise ConfigError(f"There is no environment '{name}'.{hint} `ng list environments` lists them all.")
    return entry


def config_of(entry: Entry, name: str = "") -> Path:
    """The config file of an environment or a model: the one that is asked for, or named like it, or the only one."""
    own = [path for path in entry.configs if path.stem not in ALIASES or path.stem == name]
    for wanted in (name, entry.name, entry.name.removeprefix("example_")):
        for path in own:
            if path.stem == wanted:
                return path
    if len(own) == 1:
        return own[0]
    listed = ", ".join(path.stem for path in own) or "none"
    raise ConfigError(
        f"{entry.folder} has no config that is named like it. Give the name of one that it has: {listed}."
    )


def agents_in(config: Path) -> list[EnvironmentAgent]:
    """The agents that a config file defines."""
    return [
        EnvironmentAgent(block.name, _environment_of(block.config), list(_datasets_in(block.config)))
        for block in blocks_of(config, "responses_api_agents")
    ]


def _environment_of(settings: dict[str, Any]) -> str | None:
    reference = settings.get("resources_server")
    return reference.get("name") if isinstance(reference, dict) else None


def _datasets_in(settings: dict[str, Any]) -> Iterator[DatasetEntry]:
    for each in settings.get("datasets") or ():
        if isinstance(each, dict) and isinstance(each.get("jsonl_fpath"), str):
            packaged = DatasetConfig.model_validate(each) if each.get("pypi_identifier") else None
            yield DatasetEntry(str(each.get("name", "")), str(each.get("type", "")), each["jsonl_fpath"], packaged)


def _entry(kind: ServerType, folder: Path) -> Entry:
    configs = sorted((folder / "configs").glob("*.yaml"))
    return Entry(kind, folder.name, folder, configs)


def blocks_of(config: Path, kind: ServerType) -> Iterator[ServerBlock]:
    """The servers of a kind that a config file defines."""
    return (
        block for block in blocks_in(_read(config)) if block.server_type == kind and isinstance(block.config, dict)
    )


def _described(configs: list[Path]) -> str:
    """The description of the environment in one of its configs."""
    blocks = (block.config for config in configs for block in blocks_of(config, "resources_servers"))
    return next((str(settings["description"]) for settings in blocks if settings.get("description")), "")


def _first_sentence(file: Path) -> str:
    try:
        text = ast.get_docstring(ast.parse(file.read_text())) or ""
    except (OSError, ValueError, SyntaxError):
        return ""
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def _read(config: Path) -> dict[str, Any]:
    """A config file without its interpolations resolved; empty if it cannot be read."""
    try:
        blocks = yaml.safe_load(config.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return blocks if isinstance(blocks, dict) else {}
