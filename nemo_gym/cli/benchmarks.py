"""Benchmarks: write their rows, and collect with the dataset that an agent names."""

import glob
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.cli.command import command, read_command_line, read_parameters
from nemo_gym.common import event_loop
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR, find, search_roots
from nemo_gym.config.checks import server_blocks
from nemo_gym.config.types import CommandConfig, DatasetConfig, DatasetType
from nemo_gym.data.collate import concatenate
from nemo_gym.data.prepare_script import RESULT
from nemo_gym.data.prompts import materialize_prompts as render
from nemo_gym.errors import ConfigError, GymError, MissingPathError
from nemo_gym.rollouts.aggregation import write_aggregate_metrics
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.runtime.venvs import VenvSettings, python_for


class PrepareBenchmarkConfig(CommandConfig):
    """Write the rows of the benchmarks in a configuration, with the script that each of them names.

    Examples:

    ```bash
    ng_prepare_benchmark "+config_paths=[benchmarks/my_benchmark/config.yaml]"
    ```
    """

    prepare_script_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the `prepare` functions."""

    use_cached_prepared_benchmarks: bool = False
    """Leave a file that is there as it is."""


@command(PrepareBenchmarkConfig)
def prepare_benchmark() -> None:
    """Write the rows of benchmarks."""
    config = read_command_line()
    options = PrepareBenchmarkConfig.read(config)
    found = datasets_of(config, "benchmark")
    if not found:
        raise ConfigError("The configuration has no dataset of type benchmark. Give its files with +config_paths.")
    for agent, dataset in found:
        print(f"{agent}: {dataset.name} in {_prepare(dataset, options, VenvSettings.of(dict(config)))}")


def _prepare(dataset: DatasetConfig, options: PrepareBenchmarkConfig, venvs: VenvSettings) -> Path:
    path = Path(dataset.jsonl_fpath)
    if options.use_cached_prepared_benchmarks and path.is_file():
        return path
    if dataset.prepare_script is None:
        raise ConfigError(f"The benchmark '{dataset.name}' has no prepare_script.")
    script = find(dataset.prepare_script, what="prepare_script")
    roots = os.pathsep.join(map(str, search_roots()))
    done = subprocess.run(
        [
            *(python_for(script.parent, venvs) or sys.executable, "-m", "nemo_gym.data.prepare_script"),
            *(str(script), json.dumps(options.prepare_script_args)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, EXTRA_ROOTS_ENV_VAR: roots},
        check=False,
    )
    written = [line.removeprefix(RESULT) for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if done.returncode or not written:
        raise GymError(f"{script} failed with exit code {done.returncode}. Its output is above.")
    wanted = (path if path.is_absolute() else Path.cwd() / path).resolve()
    if Path(written[-1]).resolve() != wanted and not _is_below_a_root(Path(written[-1]), path):
        raise GymError(
            f"{script} wrote {written[-1]}, but the jsonl_fpath of '{dataset.name}' is {dataset.jsonl_fpath}."
        )
    return Path(written[-1])


def _is_below_a_root(found: Path, wanted: Path) -> bool:
    return any(found.resolve() == (root / wanted).resolve() for root in search_roots())


def datasets_of(config: DictConfig, kind: DatasetType) -> list[tuple[str, DatasetConfig]]:
    """The datasets of a type, each with the agent that has it."""
    agents = [server for server in server_blocks(config).servers if server.SERVER_TYPE == "responses_api_agents"]
    return [(agent.name, each) for agent in agents for each in agent.datasets or () if each.type == kind]


def use_dataset_of_agent(config: DictConfig) -> None:
    """Without an input, collect with the agent's dataset of the type `split`: its rows, prompt and repeats."""
    if config.get("input_jsonl_fpath") is not None:
        return
    kind: Any = config.get("split") or "benchmark"
    agent = config.get("agent_name")
    found = [pair for pair in datasets_of(config, kind) if agent in (None, pair[0])]
    if not found and not config.get("split"):
        return
    if len(found) != 1:
        names = ", ".join(f"{name}: {each.name}" for name, each in found) or "none"
        raise ConfigError(
            f"Expected one dataset of type {kind}, found {names}. Give +agent_name or +input_jsonl_fpath."
        )
    ((name, dataset),) = found
    try:
        path = find(dataset.jsonl_fpath, what="dataset")
    except MissingPathError as error:
        hint = " Write it with `ng_prepare_benchmark` and the same config_paths." if dataset.prepare_script else ""
        raise MissingPathError(f"{error}{hint}") from error
    given = {"agent_name": name, "input_jsonl_fpath": str(path), "num_repeats": dataset.num_repeats}
    for key, value in {**given, "prompt_config": dataset.prompt_config}.items():
        if config.get(key) is None and value is not None:
            config[key] = value


class AggregateRolloutsConfig(CommandConfig):
    """Ask an agent's environment for its figures over rollouts that are on disk. Needs the servers, as
    `ng_collect_rollouts` does."""

    agent_name: str | None = None
    """Name of the agent. If not set, every record must have an `agent_ref`."""

    rollouts_jsonl_fpath: str
    """Scored rollouts. The figures go to `<name>_aggregate_metrics.json` beside it. Several files, of shards, are
    separated by commas or matched by a pattern; then give output_jsonl_fpath too."""

    output_jsonl_fpath: str | None = None
    """The figures go beside this file."""

    merge_shards: bool = False
    """Also write all rollouts to output_jsonl_fpath."""


@command(AggregateRolloutsConfig)
def aggregate_rollouts() -> int:
    """Compute an environment's own figures over stored rollouts."""
    config = read_command_line()
    options = AggregateRolloutsConfig.read(config)
    written = event_loop.run(_aggregate(config, options))
    if written is not None:
        print(f"Figures in {written}")
    return int(written is None)


async def _aggregate(config: DictConfig, options: AggregateRolloutsConfig) -> Path | None:
    shards = _shards(options.rollouts_jsonl_fpath)
    if options.output_jsonl_fpath is None and (len(shards) > 1 or options.merge_shards):
        raise ConfigError(f"There are {len(shards)} files of rollouts. Say where the figures go: +output_jsonl_fpath.")
    output = Path(options.output_jsonl_fpath or shards[0])
    if options.merge_shards:
        output.parent.mkdir(parents=True, exist_ok=True)
        concatenate(shards, output)
    async with connect_servers(config) as client:
        agent = options.agent_name
        return await write_aggregate_metrics(output, client, agent_name=agent, always=True, inputs=shards)


def _shards(given: str) -> list[Path]:
    """The files that a list of paths and patterns means."""
    found = [Path(path) for part in given.split(",") for path in sorted(glob.glob(part.strip())) or [part.strip()]]
    return [find(path, what="rollouts file") for path in found]


class MaterializePromptsConfig(CommandConfig):
    """Fill a prompt file in with the fields of every row."""

    input_jsonl_fpath: str
    """Rows without an `input`."""

    prompt_config: str
    """YAML with `user` and, if wanted, `system`."""

    output_jsonl_fpath: str
    """Where the rows go."""


@command(MaterializePromptsConfig)
def materialize_prompts() -> None:
    """Fill in a prompt for every row."""
    options = read_parameters(MaterializePromptsConfig)
    try:
        count = render(options.input_jsonl_fpath, options.prompt_config, options.output_jsonl_fpath)
    except KeyError as error:
        raise ConfigError(str(error.args[0])) from error
    print(f"{count} rows in {options.output_jsonl_fpath}")
