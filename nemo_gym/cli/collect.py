"""Collect rollouts and show progress; and what benchmarks need before and after: their rows and their metrics."""

import contextlib
import glob
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from nemo_gym.cli.command import config_command, print_result, wants_json
from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import atomic_write, concatenate
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR, find, search_roots
from nemo_gym.common.words import count_of
from nemo_gym.config.checks import server_blocks
from nemo_gym.config.keys import AGENT_REF_KEY_NAME, SKILLS_REF_KEY_NAME
from nemo_gym.config.types import CommandConfig, DatasetConfig, DatasetType
from nemo_gym.errors import INVALID_ROW, AggregationError, ConfigError, GymError, MissingPathError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.prompts import apply_prompt_to_row, load_prompt_config
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.dataset import agents_of, check_rows_name_agents
from nemo_gym.rollouts.metrics import FailureMessages, RunningMetrics, short_message, write_aggregate_metrics
from nemo_gym.rollouts.store import collated_inputs_path, failures_path
from nemo_gym.rollouts.types import NoResult, Outcome, Scored
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.runtime.venvs import VenvSettings, python_for

LINE_EVERY_S = 10.0
BAR_EVERY_S = 0.1
MAX_MESSAGES = 5
"""How many different failure messages are shown at the end."""


class Progress:
    """Shows how many rollouts are done, mean reward, failures and their most frequent cause, in flight, rate and time
    left: as a bar on a terminal, otherwise as a line every few seconds. With -q, only the failures at the end."""

    def __init__(self, helper: RolloutCollectionHelper) -> None:
        self._helper = helper
        self._scored = self._failed = self._invalid_rows = 0
        self._first_invalid = ""
        self.messages = FailureMessages()
        self._started = time.monotonic()
        self._next_at = self._started + LINE_EVERY_S
        self._is_quiet = not logging.getLogger().isEnabledFor(logging.INFO)
        self._open = contextlib.ExitStack()
        self._bar: Any = None
        if sys.stderr.isatty() and not self._is_quiet:
            from tqdm import tqdm
            from tqdm.contrib.logging import logging_redirect_tqdm

            self._bar = tqdm(desc="Collecting rollouts", unit="rollout", dynamic_ncols=True, mininterval=0)
            self._open.enter_context(logging_redirect_tqdm())  # log lines go above the bar
            self._next_at = self._started

    def start(self) -> None:
        """The time until now, in which servers have started, does not count for the rate."""
        self._started = time.monotonic()
        if self._bar is not None:
            self._bar.unpause()

    def __call__(self, outcome: Outcome) -> None:
        if isinstance(outcome, Scored):
            self._scored += 1
        elif outcome.is_final:
            self._add_failure(outcome)
        else:
            return
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + (LINE_EVERY_S if self._bar is None else BAR_EVERY_S)
            self._show()

    def close(self) -> None:
        self._open.close()
        if self._done:
            self._show()
        if self._bar is not None:
            self._bar.close()

    def _show(self) -> None:
        if self._bar is None:
            self._print()
            return
        self._bar.total = self._helper.total
        self._bar.initial = self._helper.found  # which do not count for the rate
        self._bar.set_postfix_str(self._figures(), refresh=False)
        self._bar.update(self._done - self._bar.n)

    def show_failures(self, output: Path) -> None:
        """Print why rollouts failed, most frequent message first."""
        if not self._failed:
            return
        print(f"{self._failed} of {count_of(self._done, 'rollout')} failed:", file=sys.stderr)
        found = self.messages.most_common(MAX_MESSAGES + 1)
        for message, count in found[:MAX_MESSAGES]:
            print(f"  {count}× {message}", file=sys.stderr)
        if self._invalid_rows:
            print(f"{count_of(self._invalid_rows, 'invalid row')}, first: {self._first_invalid}", file=sys.stderr)
        more = "More causes and all" if len(found) > MAX_MESSAGES else "All"
        print(f"{more} failed attempts: {failures_path(output)}", file=sys.stderr)

    def _add_failure(self, failure: NoResult) -> None:
        self._failed += 1
        self.messages.add(failure)
        if failure.code == INVALID_ROW and failure.id.repeat_index == 0:  # all rollouts of such a row fail
            self._invalid_rows += 1
            self._first_invalid = self._first_invalid or short_message(failure)

    @property
    def _done(self) -> int:
        return self._helper.found + self._scored + self._failed

    def _figures(self) -> str:
        metrics = self._helper.running_metrics
        mean = None if metrics is None else metrics.mean_reward()
        reward = "-" if mean is None else f"{mean:.3f}"
        return f"reward {reward}, {self._failures()}, {self._helper.in_flight} in flight"

    def _failures(self) -> str:
        if not self._failed:
            return "0 failed"
        message, count = self.messages.most_common(1)[0]
        return f"{self._failed} failed: {message} ({count}×)"

    def _print(self) -> None:
        if self._is_quiet:
            return
        rate = (self._scored + self._failed) / max(time.monotonic() - self._started, 1e-9)
        total = max(self._helper.total, self._done)
        left = f", {timedelta(seconds=round((total - self._done) / rate))} left" if rate else ""
        status = f"{self._done} of {total}, {self._figures()}, {rate:.3g} a second{left}"
        print(f"Collecting rollouts: {status}", file=sys.stderr)


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
    metrics = collect_with_progress(config, options)
    return int(metrics.failed.total() > options.tolerated_failures)


def collect_with_progress(config: DictConfig, options: RolloutCollectionConfig) -> RunningMetrics:
    """Collect, show progress, and print the metrics."""
    helper = RolloutCollectionHelper()
    progress = Progress(helper)
    try:
        return event_loop.run(_collect(config, options, helper, progress))
    finally:
        progress.close()
        output = Path(options.output_jsonl_fpath)
        if helper.metrics is not None:  # also if the file of metrics cannot be written
            _show(helper.metrics, output, progress, helper.aggregation_error)
        progress.show_failures(output)
        if helper.aggregation_error is not None:
            print(helper.aggregation_error, file=sys.stderr)
            again = f"ng_aggregate_rollouts +rollouts_jsonl_fpath={output}"
            print(f"The rollouts are on disk. Compute the metrics with the same servers: {again}", file=sys.stderr)


async def _collect(
    config: DictConfig, options: RolloutCollectionConfig, helper: RolloutCollectionHelper, progress: Progress
) -> RunningMetrics:
    async with connect_servers(config) as client:
        settings: Any = OmegaConf.to_container(client.global_config_dict, resolve=True)
        progress.start()
        return await helper.run_from_config(options, client=client, settings=settings, report=progress)


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


@config_command(PrepareBenchmarkConfig)
def prepare_benchmark(options: PrepareBenchmarkConfig, config: DictConfig) -> None:
    """Write the rows of benchmarks."""
    found = datasets_of(config, "benchmark")
    if not found:
        raise ConfigError("The configuration has no dataset of type benchmark. Give its files with +config_paths.")
    for agent, dataset in found:
        print(f"{agent}: {dataset.name} in {_prepare(dataset, options, VenvSettings.of(dict(config)))}")


def _prepare(dataset: DatasetConfig, options: PrepareBenchmarkConfig, venvs: VenvSettings) -> Path:
    from nemo_gym.data.prepare import RESULT  # takes long to import, and collecting does not need it

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


class AggregateRolloutsConfig(CommandConfig):
    """Ask an agent's environment for its metrics over rollouts that are on disk. Needs the servers, as
    `ng_collect_rollouts` does."""

    agent_name: str | None = None
    """Name of the agent. If not set, the only one of the configuration, or else the `agent_ref` of each record."""

    rollouts_jsonl_fpath: str
    """Scored rollouts. The metrics go to `<name>_aggregate_metrics.json` beside it. Several files, of shards, are
    separated by commas or matched by a pattern; then give output_jsonl_fpath too."""

    output_jsonl_fpath: str | None = None
    """The metrics go beside this file."""

    merge_shards: bool = False
    """Also write all rollouts to output_jsonl_fpath."""


@config_command(AggregateRolloutsConfig)
def aggregate_rollouts(options: AggregateRolloutsConfig, config: DictConfig) -> int:
    """Compute an environment's own metrics over stored rollouts."""
    written = event_loop.run(_aggregate(config, options))
    if written is not None:
        print(f"Metrics in {written}")
    return int(written is None)


async def _aggregate(config: DictConfig, options: AggregateRolloutsConfig) -> Path | None:
    shards = _shards(options.rollouts_jsonl_fpath)
    if options.output_jsonl_fpath is None and (len(shards) > 1 or options.merge_shards):
        raise ConfigError(f"There are {len(shards)} files of rollouts. Say where the metrics go: +output_jsonl_fpath.")
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
