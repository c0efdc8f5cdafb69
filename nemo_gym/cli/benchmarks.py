"""Benchmarks: write their rows, and collect with the dataset that an agent names."""

import glob
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from nemo_gym.cli.command import command, read_command_line, read_parameters
from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR, find, search_roots
from nemo_gym.config.checks import server_blocks
from nemo_gym.config.keys import AGENT_REF_KEY_NAME, SKILLS_REF_KEY_NAME
from nemo_gym.config.types import CommandConfig, DatasetConfig, DatasetType
from nemo_gym.data.collate import concatenate
from nemo_gym.data.prepare import RESULT
from nemo_gym.data.prompts import materialize_prompts as render
from nemo_gym.data.skill_folders import load_skill_directory
from nemo_gym.errors import ConfigError, GymError, MissingPathError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.prompts import apply_prompt_to_row, load_prompt_config
from nemo_gym.rollouts.agents import agents_of, check_rows_name_agents
from nemo_gym.rollouts.metrics import write_aggregate_metrics
from nemo_gym.rollouts.output_files import collated_inputs_path
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
            *(python_for(script.parent, venvs) or sys.executable, "-m", "nemo_gym.data.prepare"),
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
    """Without an input, collect with the agents' datasets of the type `split`: their rows, prompts and repeats. With
    `skills.path`, every row names the skills."""
    skills: Any = OmegaConf.select(config, "skills.path")
    if config.get("input_jsonl_fpath") is not None:
        if skills:
            _collate(config, [(config.get("agent_name"), config["input_jsonl_fpath"], None)], skills)
        return
    kind: Any = config.get("split") or "benchmark"
    agent = config.get("agent_name")
    found = [pair for pair in datasets_of(config, kind) if agent in (None, pair[0])]
    if not found and not config.get("split"):
        return
    if len({name for name, _ in found}) != len(found) or not found:
        names = ", ".join(f"{name}: {each.name}" for name, each in found) or "none"
        raise ConfigError(
            f"Expected one dataset of type {kind} for an agent, found {names}. Give +agent_name or +input_jsonl_fpath."
        )
    given: dict[str, Any] = {"num_repeats": {name: dataset.num_repeats for name, dataset in found}}
    if len(found) == 1 and not skills:
        ((name, dataset),) = found
        given = {"agent_name": name, "num_repeats": dataset.num_repeats, "prompt_config": dataset.prompt_config}
        given["input_jsonl_fpath"] = str(_rows_of(dataset))
    for key, value in given.items():
        if config.get(key) is None and value is not None:
            config[key] = value
    if "input_jsonl_fpath" not in given:
        sources = [
            (name, str(_rows_of(each)), config.get("prompt_config") or each.prompt_config) for name, each in found
        ]
        _collate(config, sources, skills)


def _rows_of(dataset: DatasetConfig) -> Path:
    try:
        return find(dataset.jsonl_fpath, what="dataset")
    except MissingPathError as error:
        hint = " Write it with `ng_prepare_benchmark` and the same config_paths." if dataset.prepare_script else ""
        raise MissingPathError(f"{error}{hint}") from error


def _collate(config: DictConfig, sources: Sequence[tuple[str | None, str, str | None]], skills: str | None) -> None:
    """Write one input beside the output: the rows of these agents, files and prompts, with the skills."""
    if config.get("output_jsonl_fpath") is None:
        return
    target = collated_inputs_path(Path(config["output_jsonl_fpath"]))
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        extra = {SKILLS_REF_KEY_NAME: load_skill_directory(find(skills, what="skills.path"))} if skills else {}
        with atomic_write(target) as file:
            for agent, path, prompt in sources:
                reference = {AGENT_REF_KEY_NAME: {"type": "responses_api_agents", "name": agent}} if agent else {}
                template = load_prompt_config(prompt) if prompt else None
                with find(path, what="dataset").open() as lines:
                    for row in map(json.loads, filter(str.strip, lines)):
                        filled = apply_prompt_to_row(row, template) if template else row
                        file.write(encode({**filled, **reference, **extra}) + b"\n")
    except (ValueError, KeyError) as error:
        raise ConfigError(f"The rows cannot be put together in {target}: {error}") from error
    config["input_jsonl_fpath"] = str(target)
    config["prompt_config"] = None if len(sources) > 1 or sources[0][2] else config.get("prompt_config")


class AggregateRolloutsConfig(CommandConfig):
    """Ask an agent's environment for its figures over rollouts that are on disk. Needs the servers, as
    `ng_collect_rollouts` does."""

    agent_name: str | None = None
    """Name of the agent. If not set, the only one of the configuration, or else the `agent_ref` of each record."""

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
        settings: Any = client.global_config_dict
        agents = list(agents_of(settings))
        agent = options.agent_name or (agents[0] if len(agents) == 1 else None)
        if agent is None:
            check_rows_name_agents(shards[0], settings)
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
