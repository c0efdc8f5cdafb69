"""`ng list`: what there is to run, one line each."""

import shutil
import sys
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, get_args

from nemo_gym.cli.catalog import ALIASES, agents_in, entries
from nemo_gym.cli.command import command, read_parameters
from nemo_gym.cli.output import print_result
from nemo_gym.cli.tree import listed
from nemo_gym.common.words import shorten
from nemo_gym.config.types import CommandConfig, ServerType

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
def list_all() -> None:
    """List environments, agents, models and datasets."""
    wanted = read_parameters(ListConfig).kind
    found = {kind: list(_items(kind)) for kind in KINDS if wanted in (None, kind)}
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
        yield from ({"name": name, "description": "a configuration"} for name in listed(["list", kind]))


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
