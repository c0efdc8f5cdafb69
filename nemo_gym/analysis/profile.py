"""Profiles of stored rollouts: how hard each row of a dataset is for a model, and the files that public tools read."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
from pydantic import BaseModel

from nemo_gym.analysis.dataset_rows import Dataset, RowNotFoundError
from nemo_gym.analysis.plots import RolloutPlots, figure, stages_of
from nemo_gym.common.atomic_files import atomic_write, check_writable, read_jsonl, write_json
from nemo_gym.common.paths import find
from nemo_gym.common.statistics import PASS_THRESHOLD, Moments
from nemo_gym.config.keys import AGENT_REF_KEY_NAME, TASK_INDEX_FIELD, TASK_INDEX_KEY_NAME
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.metrics import RunningMetrics, strip_record
from nemo_gym.rollouts.store import (
    StoredLine,
    StoredRolloutsError,
    metrics_path,
    plots_path,
    read_rollouts,
    sibling_path,
)
from nemo_gym.rollouts.types import agent_of, results_of, rollout_key
from nemo_gym.server.aggregate_metrics import compute_aggregate_metrics

SHOWN_ROWS = 5


class ProfileConfig(CommandConfig):
    """Write each row of a dataset with the metrics of its rollouts, and print the metrics of all rollouts.

    Rows without a rollout are omitted. The metrics of all rollouts are also written to `<output>_metrics.json`, and
    plots of them to `<output>_plots.svg`.
    """

    input_jsonl_fpath: str
    """The dataset that the rollouts were collected from."""

    rollouts_jsonl_fpath: str
    """What `ng_collect_rollouts` wrote."""

    output_jsonl_fpath: str
    """Output file for the rows with their metrics. An existing file is overwritten."""

    pass_threshold: float | None = None
    """Minimum reward that counts as a pass. If not set, rows have no pass rate, and pass@k counts rewards of 1."""

    allow_changed_rows: bool = False
    """Leave out the rollouts of rows that were changed or removed since they were collected, instead of stopping."""


class RewardProfilingMetrics(BaseModel):
    """The metrics of one row. The pass rate is there if a threshold was given."""

    avg_reward: float
    std_reward: float
    """Of the rollouts as the whole population."""
    min_reward: float
    max_reward: float
    total_samples: int
    pass_rate: float | None = None
    pass_rate_total: int | None = None
    pass_rate_passed: int | None = None
    pass_threshold: float | None = None


def profile_rewards(rewards: Sequence[float], *, pass_threshold: float | None = None) -> RewardProfilingMetrics:
    """Return the metrics of one row from the rewards of its rollouts."""
    found = Moments.of(rewards)
    metrics = RewardProfilingMetrics(
        avg_reward=found.mean,
        std_reward=found.deviation(of_population=True),
        min_reward=found.min,
        max_reward=found.max,
        total_samples=found.total,
    )
    if pass_threshold is None:
        return metrics
    passed = sum(reward >= pass_threshold for reward in rewards)
    rate = {"pass_rate": passed / len(rewards), "pass_rate_total": len(rewards), "pass_rate_passed": passed}
    return metrics.model_copy(update={**rate, "pass_threshold": pass_threshold})


class ProfiledRow(NamedTuple):
    """One row of the dataset, and the metrics of its rollouts."""

    row_index: int
    metrics: RewardProfilingMetrics


class Profiled(NamedTuple):
    """The metrics of all rollouts, and how many records and rows could not be used."""

    metrics: RunningMetrics
    metrics_path: Path
    plots_path: Path
    hardest: list[ProfiledRow]
    """The rows with the lowest mean reward."""
    most_uncertain: list[ProfiledRow]
    """The rows whose rewards differ most between repeats."""
    rows: int
    rows_without_rollouts: int
    records_without_reward: int
    records_without_row: int
    """Those of rows that were changed or removed."""
    matched_by_prompt: int


def _index_of(stored: StoredLine, dataset: Dataset, config: ProfileConfig) -> int | None:
    """Return the row of a record; None if it may be left out because its row is not in the dataset."""
    try:
        return dataset.index_of(stored)
    except RowNotFoundError:
        if config.allow_changed_rows:
            return None
        raise


def profile_rollouts(config: ProfileConfig) -> Profiled:
    """Write the rows with their metrics. If there is none to write, an error says why."""
    output, rollouts = Path(config.output_jsonl_fpath), find(config.rollouts_jsonl_fpath, what="file of rollouts")
    threshold = config.pass_threshold
    metrics = RunningMetrics(pass_threshold=PASS_THRESHOLD if threshold is None else threshold)
    rewards: dict[int, list[float]] = {}
    plotted = RolloutPlots(metrics)
    unrewarded = without_row = 0
    with Dataset(config.input_jsonl_fpath) as dataset:
        check_writable(output, overwrite=True, sources=(dataset.path, rollouts))
        for stored in read_rollouts(rollouts):
            index, reward = _index_of(stored, dataset, config), stored.record.get("reward")
            if index is None:
                without_row += 1
                continue
            if not isinstance(reward, int | float):
                unrewarded += 1
                continue
            rewards.setdefault(index, []).append(reward)
            metrics.add({**stored.record, TASK_INDEX_FIELD: index})
            plotted.add(stored.record)
        if not rewards:
            raise StoredRolloutsError(
                f"{rollouts} holds no scored rollout of a row of {dataset.path}; {unrewarded} records have no reward, "
                f"{without_row} are of other rows."
            )
        rows = [
            ProfiledRow(index, profile_rewards(rewards[index], pass_threshold=threshold)) for index in sorted(rewards)
        ]
        with atomic_write(output) as file:
            for row in rows:
                profile = row.metrics.model_dump(exclude_none=True)
                file.write(orjson.dumps({**dataset.row(row.row_index), **profile}) + b"\n")
        write_json(metrics_path(output), metrics.summary())
        with atomic_write(plots_path(output)) as file:
            file.write(figure(plotted.panels(stages_of(rollouts))).encode())
        return Profiled(
            metrics,
            metrics_path(output),
            plots_path(output),
            sorted(rows, key=lambda row: row.metrics.avg_reward)[:SHOWN_ROWS],
            sorted((row for row in rows if row.metrics.std_reward), key=lambda row: -row.metrics.std_reward)[
                :SHOWN_ROWS
            ],
            len(rows),
            len(dataset) - len(rows),
            unrewarded,
            without_row,
            dataset.matched_by_prompt,
        )


# The files of public tools


class RewardProfileConfig(CommandConfig):
    """Write the metrics of stored rollouts, by task to `<rollouts>_reward_profiling.jsonl` and by agent to
    `<rollouts>_agent_metrics.json`.

    `ng_profile` writes the rows of a dataset with their pass rates, and estimates with errors.
    """

    input_jsonl_fpath: str
    """The rows as they were sent: what `ng_collect_rollouts +materialize_inputs=true` wrote."""

    rollouts_jsonl_fpath: str
    """What `ng_collect_rollouts` wrote."""

    allow_partial_rollouts: bool = False
    """Do not stop if rows have no rollout."""


class RewardProfiler:
    """Joins rows as they were sent with their records, and writes metrics in the form that public tools read."""

    def align_rows_and_results(
        self, rows: Sequence[JsonObject], results: Sequence[JsonObject], allow_partial_rollouts: bool = False
    ) -> list[tuple[JsonObject, JsonObject]]:
        """Return each row with its record, in the order of the rows. Rows without one may be left out."""
        known = _by_key(results, "record")
        wanted = _by_key(rows, "materialized input row")
        missing = [key for key in wanted if key not in known]
        if missing and not allow_partial_rollouts:
            raise ValueError(f"{len(missing)} of {len(wanted)} rows have no rollout, first {missing[0]}")
        return [(row, known[key]) for key, row in wanted.items() if key in known]

    def profile_from_data(
        self, rows: Sequence[JsonObject], results: Sequence[JsonObject], allow_partial_rollouts: bool = False
    ) -> tuple[list[JsonObject], list[JsonObject]]:
        """Return the metrics of each task and of each agent."""
        pairs = self.align_rows_and_results(rows, results, allow_partial_rollouts)
        expected = Counter(rollout_key(row)[0] for row in rows)
        by_agent: dict[str, list[tuple[JsonObject, JsonObject]]] = defaultdict(list)
        for row, record in pairs:
            by_agent[agent_of(row) or agent_of(record) or ""].append((row, record))
        groups: list[JsonObject] = []
        agents: list[JsonObject] = []
        for agent, found in by_agent.items():
            samples = {rollout_key(row)[0]: row for row, _ in reversed(found)}
            metrics = compute_aggregate_metrics([strip_record(results_of(record)) for _, record in found])
            for group in metrics.group_level_metrics:
                task = group[TASK_INDEX_KEY_NAME]
                groups.append({**group, "sample": samples[task], **_completion(group["num_rollouts"], expected[task])})
            agents.append({AGENT_REF_KEY_NAME: {"name": agent}, **metrics.agent_metrics})
        return groups, agents

    def profile_completion_summary(self, group_level: Sequence[JsonObject]) -> JsonObject:
        """Return how many of the expected rollouts there are, over all tasks."""
        have = sum(group["num_rollouts"] for group in group_level)
        return {
            "num_rollouts": have,
            **_completion(have, sum(group["expected_num_rollouts"] for group in group_level)),
        }

    def prepare_for_serialization(self, metrics: Sequence[JsonObject]) -> list[JsonObject]:
        """Return the metrics without histograms, which are not JSON."""
        return [{name: value for name, value in each.items() if not name.startswith("histogram")} for each in metrics]

    def write_to_disk(
        self, group_level: Sequence[JsonObject], agent_level: Sequence[JsonObject], base_path: str | Path
    ) -> tuple[Path, Path]:
        """Write the metrics to two files beside `base_path`, and return their paths."""
        groups = sibling_path(Path(base_path), "reward_profiling", ".jsonl")
        agents = sibling_path(Path(base_path), "agent_metrics", ".json")
        with atomic_write(groups) as file:
            file.writelines(orjson.dumps(each) + b"\n" for each in self.prepare_for_serialization(group_level))
        write_json(agents, self.prepare_for_serialization(agent_level))
        return groups, agents


def _by_key(records: Sequence[JsonObject], what: str) -> dict[tuple[int, int], JsonObject]:
    found: dict[tuple[int, int], JsonObject] = {}
    for record in records:
        key = rollout_key(record)
        if key in found:
            raise ValueError(f"Duplicate {what} for rollout key {key}")
        found[key] = record
    return found


def _completion(have: int, expected: int) -> JsonObject:
    return {
        "expected_num_rollouts": expected,
        "missing_num_rollouts": expected - have,
        "reward_profile_completion_pct": 100 * have / expected if expected else 100.0,
    }


def profile_files(config: RewardProfileConfig) -> tuple[JsonObject, tuple[Path, Path]]:
    """Profile stored files. Return how complete they are, and the files that were written."""
    profiler = RewardProfiler()
    rollouts = find(config.rollouts_jsonl_fpath, what="file of rollouts")
    rows, records = read_jsonl(find(config.input_jsonl_fpath, what="file of rows")), read_jsonl(rollouts)
    try:
        groups, agents = profiler.profile_from_data(rows, records, config.allow_partial_rollouts)
    except ValueError as error:
        hint = " To profile those that there are: +allow_partial_rollouts=true." if "no rollout" in str(error) else ""
        raise ConfigError(f"{config.input_jsonl_fpath} and {rollouts} do not fit: {error}.{hint}") from error
    return profiler.profile_completion_summary(groups), profiler.write_to_disk(groups, agents, rollouts)
