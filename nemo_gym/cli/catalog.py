"""The environments, agents, models and datasets of this machine, found by their folders; and `ng list`, which lists
them."""

import ast
import contextlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import yaml

from nemo_gym.cli.command import command, print_result
from nemo_gym.common.paths import FOLDER_ALIASES, find, nearest, search_roots
from nemo_gym.common.words import shorten
from nemo_gym.compat.gym_command import listed
from nemo_gym.config.keys import ServerType
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError, MissingPathError

ALIASES = {Path(alias).name: Path(folder).name for alias, folder in FOLDER_ALIASES.items()}


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """A dataset that a configuration names."""

    name: str
    type: str
    path: str

    @property
    def is_on_disk(self) -> bool:
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
    listed = ", ".join(str(path) for path in own) or "none"
    raise ConfigError(
        f"{entry.folder} has no config that is named like it. Give one of its configs instead: {listed}."
    )


def agents_in(config: Path) -> list[EnvironmentAgent]:
    """The agents that a config file defines."""
    return list(_agents_in(_read(config)))


def _agents_in(blocks: dict[str, Any]) -> Iterator[EnvironmentAgent]:
    for name, block in blocks.items():
        inner = block.get("responses_api_agents") if isinstance(block, dict) else None
        for settings in inner.values() if isinstance(inner, dict) else ():
            if isinstance(settings, dict):
                reference = settings.get("resources_server")
                environment = reference.get("name") if isinstance(reference, dict) else None
                yield EnvironmentAgent(name, environment, list(_datasets_in(settings)))


def _datasets_in(settings: dict[str, Any]) -> Iterator[DatasetEntry]:
    for each in settings.get("datasets") or ():
        if isinstance(each, dict) and isinstance(each.get("jsonl_fpath"), str):
            yield DatasetEntry(str(each.get("name", "")), str(each.get("type", "")), each["jsonl_fpath"])


def _entry(kind: ServerType, folder: Path) -> Entry:
    configs = sorted((folder / "configs").glob("*.yaml"))
    return Entry(kind, folder.name, folder, configs)


def _described(configs: list[Path]) -> str:
    """The description of the environment in one of its configs."""
    for config in configs:
        for block in _read(config).values():
            inner = block.get("resources_servers") if isinstance(block, dict) else None
            for settings in inner.values() if isinstance(inner, dict) else ():
                if isinstance(settings, dict) and settings.get("description"):
                    return str(settings["description"])
    return ""


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


# ng list

MAX_COLUMNS = 1000
Kind = Literal["environments", "agents", "models", "datasets"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_FOLDERS: dict[Kind, ServerType] = {
    "environments": "resources_servers",
    "agents": "responses_api_agents",
    "models": "responses_api_models",
}


class ListConfig(CommandConfig):
    """List the environments, agents, models and datasets that there are, one line each.

    Examples:

    ```bash
    ng list
    ng list datasets
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("kind",)

    kind: Kind | None = None
    """What to list. By default everything."""


@command(ListConfig)
def list_all(options: ListConfig) -> None:
    """List environments, agents, models and datasets."""
    found = {kind: list(_items(kind)) for kind in KINDS if options.kind in (None, kind)}
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else MAX_COLUMNS
    lines = []
    for kind, items in found.items():
        width = max((len(item["name"]) for item in items), default=0)
        lines += ["", f"{kind.capitalize()}:"]
        lines += [shorten(f"  {item['name']:<{width}}  {item['description']}", columns).rstrip() for item in items]
    print_result(found, "\n".join(lines[1:]))


def _items(kind: Kind) -> Iterator[dict[str, Any]]:
    if kind == "datasets":
        yield from _datasets()
        return
    yield from ({"name": each.name, "description": each.description} for each in entries(_FOLDERS[kind]))
    if kind == "environments":
        yield from ({"name": name, "description": "a configuration"} for name in listed(["list", "environments"]))


def _datasets() -> Iterator[dict[str, Any]]:
    """Each as `<environment>/<dataset>`; for an environment of several configs, as `<config>/<dataset>`."""
    seen = set()
    for environment in entries("resources_servers"):
        own = [path for path in environment.configs if path.stem not in ALIASES]
        for config in own:
            for agent in agents_in(config):
                for each in agent.datasets:
                    name = f"{environment.name if len(own) == 1 else config.stem}/{each.name}"
                    if name not in seen:
                        seen.add(name)
                        text = f"{each.type}, {'on disk' if each.is_on_disk else 'not on disk'}"
                        yield {"name": name, "description": text, "path": each.path}
