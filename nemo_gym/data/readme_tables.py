"""Tables of environments in the README, generated from their configurations."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.common.paths import FOLDER_ALIASES
from nemo_gym.data.generate import GENERATOR, load_generator
from nemo_gym.errors import ConfigError

COUNTED_ROWS = 5000
"""Maximum number of generated rows that are counted."""
DIFFICULTIES = range(1, 6)
EXAMPLE_PREFIX = "example_"
HUGGING_FACE = "https://huggingface.co/datasets"
EXAMPLE_HEADS = ("Name", "Demonstrates", "Config", "README", "Rows from a seed")
TRAINING_HEADS = (
    *("Resource Server", "Domain", "Dataset", "Description", "Value", "Config"),
    *("Train", "Validation", "License", "Rows from a seed"),
)
_ALIASES = frozenset(Path(alias).name for alias in FOLDER_ALIASES)


@dataclass(frozen=True)
class EnvironmentConfig:
    """One configuration of an environment."""

    folder: Path
    path: Path
    server: dict[str, Any]
    datasets: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return self.folder.name.removeprefix(EXAMPLE_PREFIX).replace("_", " ").title()

    @property
    def link(self) -> str:
        return f"resources_servers/{self.folder.name}/configs/{self.path.name}"

    @property
    def repo_id(self) -> str | None:
        """Hugging Face repository of its training data."""
        found = [each.get("huggingface_identifier") or {} for each in self.datasets if each["type"] == "train"]
        return next((each["repo_id"] for each in found if each.get("repo_id")), None)


def updated_readme(text: str, root: Path) -> str:
    """Return the README with both tables updated from the configurations below `root`."""
    configs = list(environment_configs(root))
    examples = [each for each in configs if each.folder.name.startswith(EXAMPLE_PREFIX)]
    training = [each for each in configs if not each.folder.name.startswith(EXAMPLE_PREFIX)]
    text = _replaced(text, "EXAMPLE_ONLY_SERVERS", _table(EXAMPLE_HEADS, sorted(map(_example_cells, examples))))
    rows = sorted(map(_training_cells, training), key=lambda cells: (cells[1], cells))
    return _replaced(text, "TRAINING_SERVERS", _table(TRAINING_HEADS, rows))


def update_readme(path: Path, root: Path) -> bool:
    """Write the tables into the README. Return True if it changed."""
    old = path.read_text()
    new = updated_readme(old, root)
    if new != old:
        with atomic_write(path) as file:
            file.write(new.encode())
    return new != old


def environment_configs(root: Path) -> Iterator[EnvironmentConfig]:
    """Yield one configuration per environment: with published data or, without any, the one named like the folder."""
    for folder in sorted((root / "resources_servers").glob("*/")):
        found = [each for path in sorted((folder / "configs").glob("*.yaml")) if (each := _read(folder, path))]
        own = [each for each in found if each.path.stem not in _ALIASES]
        published = [each for each in own if each.repo_id]
        named = [each for each in own if each.path.stem == folder.name]
        yield from published or named[:1] or own[:1]


def _read(folder: Path, path: Path) -> EnvironmentConfig | None:
    blocks = [block for block in (yaml.safe_load(path.read_text()) or {}).values() if isinstance(block, dict)]
    servers = [block["resources_servers"] for block in blocks if "resources_servers" in block]
    own = [inner[folder.name] for inner in servers if folder.name in inner]
    if not own:
        return None
    agents = [inner for block in blocks for inner in (block.get("responses_api_agents") or {}).values()]
    datasets = [dataset for agent in agents for dataset in agent.get("datasets") or ()]
    return EnvironmentConfig(folder, path, own[0], datasets)


def _example_cells(config: EnvironmentConfig) -> tuple[str, ...]:
    domain = config.server.get("domain")
    shown = config.server.get("description") or (f"{domain.title()} example" if domain else "Example resource server")
    readme = f"resources_servers/{config.folder.name}/README.md"
    links = (f"<a href='{config.link}'>{config.path.name}</a>", f"<a href='{readme}'>README</a>")
    return config.name, shown, *links, generated_row_count(config.folder)


def _training_cells(config: EnvironmentConfig) -> tuple[str, ...]:
    types = {each["type"] for each in config.datasets}
    licenses = [each["license"] for each in config.datasets if each["type"] == "train" and each.get("license")]
    repo_id = config.repo_id
    dataset = f"<a href='{HUGGING_FACE}/{repo_id}'>{repo_id.rpartition('/')[2]}</a>" if repo_id else "-"
    return (
        *(config.name, config.server["domain"], dataset),
        *(config.server.get("description") or "-", config.server.get("value") or "-"),
        f"<a href='{config.link}'>config</a>",
        *("✓" if kind in types else "-" for kind in ("train", "validation")),
        *(licenses[0] if licenses else "-", generated_row_count(config.folder)),
    )


def generated_row_count(folder: Path) -> str:
    """Return the number of rows that `generate_rows` yields over all difficulties, up to a limit."""
    if not (folder / GENERATOR).is_file():
        return "-"
    generate, count = load_generator(folder), 0
    for difficulty in DIFFICULTIES:
        left = COUNTED_ROWS + 1 - count
        try:
            for _ in islice(generate(0, left, difficulty), left):
                count += 1
        except ConfigError:  # there are no more of this difficulty
            continue
        return f"over {COUNTED_ROWS:,}"
    return f"about {count:,}"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _replaced(text: str, name: str, table: str) -> str:
    start, end = f"<!-- START_{name}_TABLE -->", f"<!-- END_{name}_TABLE -->"
    before, found_start, rest = text.partition(start)
    _, found_end, after = rest.partition(end)
    if not found_start or not found_end:
        raise ConfigError(f"The README has no {start} and {end} to put the table between.")
    return f"{before}{start}\n{table}\n{end}{after}"
