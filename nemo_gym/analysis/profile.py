"""How hard each row of a dataset is for a model, computed from its rollouts."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import NamedTuple

import orjson
from pydantic import BaseModel

from nemo_gym.analysis.dataset_rows import Dataset, RowNotFoundError
from nemo_gym.analysis.plots import RolloutPlots, figure, stages_of
from nemo_gym.analysis.records import StoredLine, StoredRolloutsError, read_rollouts
from nemo_gym.common.atomic_files import atomic_write, check_writable, write_json
from nemo_gym.common.paths import find
from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.config.types import CommandConfig
from nemo_gym.rollouts.metrics import PASS_THRESHOLD, RunningMetrics
from nemo_gym.rollouts.output_files import metrics_path, plots_path

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
    """The figures of one row. The pass rate is there if a threshold was given."""

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
    """The figures of one row from the rewards of its rollouts."""
    figures = RewardProfilingMetrics(
        avg_reward=fmean(rewards),
        std_reward=pstdev(rewards),
        min_reward=min(rewards),
        max_reward=max(rewards),
        total_samples=len(rewards),
    )
    if pass_threshold is None:
        return figures
    passed = sum(reward >= pass_threshold for reward in rewards)
    rate = {"pass_rate": passed / len(rewards), "pass_rate_total": len(rewards), "pass_rate_passed": passed}
    return figures.model_copy(update={**rate, "pass_threshold": pass_threshold})


class ProfiledRow(NamedTuple):
    """One row of the dataset, and the figures of its rollouts."""

    row_index: int
    figures: RewardProfilingMetrics


class Profiled(NamedTuple):
    """What was found, and what of it could not be used."""

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
    """The row of a record; None if it may be left out because its row is not in the dataset."""
    try:
        return dataset.index_of(stored)
    except RowNotFoundError:
        if config.allow_changed_rows:
            return None
        raise


def profile_rollouts(config: ProfileConfig) -> Profiled:
    """Write the rows with their figures. If there is none to write, an error says why."""
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
                figures = row.figures.model_dump(exclude_none=True)
                file.write(orjson.dumps({**dataset.row(row.row_index), **figures}) + b"\n")
        write_json(metrics_path(output), metrics.summary())
        with atomic_write(plots_path(output)) as file:
            file.write(figure(plotted.panels(stages_of(rollouts))).encode())
        return Profiled(
            metrics,
            metrics_path(output),
            plots_path(output),
            sorted(rows, key=lambda row: row.figures.avg_reward)[:SHOWN_ROWS],
            sorted((row for row in rows if row.figures.std_reward), key=lambda row: -row.figures.std_reward)[
                :SHOWN_ROWS
            ],
            len(rows),
            len(dataset) - len(rows),
            unrewarded,
            without_row,
            dataset.matched_by_prompt,
        )
