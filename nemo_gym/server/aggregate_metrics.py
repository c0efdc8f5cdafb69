"""Metrics that environments compute over all rollouts of an agent.

A collection calls `/aggregate_metrics` when it ends. Environments add metrics of their own in `compute_metrics`."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from pydantic import BaseModel, Field

from nemo_gym.common.statistics import Moments, describe_columns, mean_interval, number_columns
from nemo_gym.config.keys import MASK_SAMPLE, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.llm_api.base import FailFastModel, JsonObject
from nemo_gym.server.endpoint import Endpoint

_NOT_METRICS = (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, MASK_SAMPLE)


class AggregateMetricsRequest(FailFastModel):
    """Scored records, without their conversations."""

    verify_responses: list[JsonObject]


class AggregateMetrics(BaseModel):
    """Metrics of each task, of the agent, and those to look at first."""

    group_level_metrics: list[JsonObject] = Field(default_factory=list)
    agent_metrics: JsonObject = Field(default_factory=dict)
    key_metrics: JsonObject = Field(default_factory=dict)
    repeat_level_metrics: list[JsonObject] = Field(default_factory=list)
    """Metrics over the tasks in each repeat, if there are several."""


class AggregateMetricsEndpoint(Endpoint):
    """Takes the records of a whole collection in one body."""

    limits_keys = False


class AggregateMetricsMixin:
    """The hooks of environments and agents."""

    def compute_metrics(self, tasks: list[list[JsonObject]]) -> JsonObject:
        """Return metrics of your own over the records of each task. The key `per_task_metrics` goes to the tasks."""
        return {}

    def compute_repeat_metrics(self, tasks: list[list[JsonObject]]) -> JsonObject:
        """Return metrics of your own over the records of one repeat, a list for each task."""
        return {}

    def get_key_metrics(self, agent_metrics: JsonObject) -> JsonObject:
        """Return the metrics to look at first."""
        return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Return the metrics over the records of this server."""
        hooks = (self.compute_metrics, self.get_key_metrics, self.compute_repeat_metrics)
        return compute_aggregate_metrics(body.verify_responses, *hooks)

    def has_own_metrics(self) -> bool:
        """True if the class has hooks of its own, so that a collection asks for its metrics."""
        names = ("compute_metrics", "compute_repeat_metrics", "get_key_metrics")
        return any(getattr(type(self), name) is not getattr(AggregateMetricsMixin, name) for name in names)


def compute_aggregate_metrics(
    verify_responses: Sequence[JsonObject],
    compute_metrics_fn: Callable[[list[list[JsonObject]]], JsonObject] | None = None,
    get_key_metrics_fn: Callable[[JsonObject], JsonObject] | None = None,
    compute_repeat_metrics_fn: Callable[[list[list[JsonObject]]], JsonObject] | None = None,
) -> AggregateMetrics:
    """Return mean, max, min, median and standard deviation of every number, by task, by repeat and over all, and what
    the hooks add. Records with `mask_sample` only count as such."""
    measured = [record for record in verify_responses if record.get(MASK_SAMPLE) is not True]
    tasks, coverage = _by_task(measured), _coverage(verify_responses, measured)
    if not measured:
        return AggregateMetrics(agent_metrics=coverage, key_metrics=dict(coverage))
    agent_metrics = describe_columns(list(map(_numbers, measured)))
    groups = {index: _group(index, rollouts) for index, rollouts in tasks.items()}
    if compute_metrics_fn is not None:
        own = dict(compute_metrics_fn([list(rollouts.values()) for rollouts in tasks.values()]))
        for entry in own.pop("per_task_metrics", ()):
            groups.get(entry.get(TASK_INDEX_KEY_NAME), {}).update(entry)
        agent_metrics |= own
    repeats, across = _repeats(tasks, compute_repeat_metrics_fn or AggregateMetricsMixin().compute_repeat_metrics)
    agent_metrics |= across | coverage
    key_metrics = (get_key_metrics_fn or AggregateMetricsMixin().get_key_metrics)(agent_metrics)
    return AggregateMetrics(
        group_level_metrics=list(groups.values()),
        agent_metrics=agent_metrics,
        key_metrics={**key_metrics, **coverage},
        repeat_level_metrics=repeats,
    )


def _coverage(records: Sequence[JsonObject], measured: Sequence[JsonObject]) -> JsonObject:
    """Count the records with and without `mask_sample`, if there are both or only those with it."""
    if len(records) == len(measured):
        return {}
    tasks, of_measured = ({record.get(TASK_INDEX_KEY_NAME) or 0 for record in some} for some in (records, measured))
    return {
        "coverage/measured_rollouts": len(measured),
        "coverage/masked_rollouts": len(records) - len(measured),
        "coverage/measured_tasks": len(of_measured),
        "coverage/fully_masked_tasks": len(tasks - of_measured),
    }


def _repeats(
    tasks: Mapping[int, Mapping[int, JsonObject]], hook: Callable[[list[list[JsonObject]]], JsonObject]
) -> tuple[list[JsonObject], JsonObject]:
    """Return the metrics of each repeat, and those over the repeats. With one repeat there are none."""
    indices = sorted({index for rollouts in tasks.values() for index in rollouts})
    if len(indices) < 2:
        return [], {}
    repeats: list[JsonObject] = []
    compared: list[JsonObject] = []
    for index in indices:
        records = [rollouts[index] for rollouts in tasks.values() if index in rollouts]
        counts = {"sample_count": len(records), "missing_count": len(tasks) - len(records)}
        described = _described(number_columns([_numbers(record) for record in records]))
        own = hook([[record] for record in records])
        means = {name: value for name, value in described.items() if name.startswith("mean/")}
        repeats.append({ROLLOUT_INDEX_KEY_NAME: index, **counts, **described, **own})
        compared.append({**means, **own})
    across = _described(number_columns(compared), of="_across_repeats", error="se", has_quartiles=False)
    return repeats, across


def _described(
    columns: Mapping[str, Sequence[float]],
    *,
    of: str = "",
    error: str = "sem",
    has_quartiles: bool = True,
) -> JsonObject:
    """Describe each column. A standard error and an interval need two values."""
    found: JsonObject = {}
    for name, values in columns.items():
        moments = Moments.of(values)
        metrics = {"mean": moments.mean, "median": median(values), "std": moments.deviation()}
        metrics |= {"min": moments.min, "max": moments.max}
        if has_quartiles:
            low, _, high = (
                quantiles(values, n=4, method="inclusive") if len(values) > 1 else (*values, *values, *values)
            )
            metrics |= {"p25": low, "p75": high}
        if moments.total > 1:
            deviation = moments.deviation() / math.sqrt(moments.total)
            low, high = mean_interval(moments.mean, deviation, moments.total)
            metrics |= {error: deviation, "ci_low_95": low, "ci_high_95": high}
        found |= {f"{kind}{of}/{name}": value for kind, value in metrics.items()}
    return found


def _by_task(records: Iterable[JsonObject]) -> dict[int, dict[int, JsonObject]]:
    """Return records by task and rollout index. Those without a rollout index count from 0; two records with the same
    index are an error."""
    tasks: dict[int, dict[int, JsonObject]] = defaultdict(dict)
    for record in records:
        task, index = record.get(TASK_INDEX_KEY_NAME) or 0, record.get(ROLLOUT_INDEX_KEY_NAME)
        rollout = len(tasks[task]) if index is None else index
        if rollout in tasks[task]:
            raise ValueError(f"Duplicate materialized input row for rollout key {(task, rollout)}")
        tasks[task][rollout] = record
    return dict(sorted(tasks.items()))


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record and of its usage; true counts as 1."""
    response = record.get("response")
    usage = response.get("usage") if isinstance(response, Mapping) else None
    fields = {**record, **(usage if isinstance(usage, Mapping) else {})}
    return {
        name: value + 0
        for name, value in fields.items()
        if isinstance(value, int | float) and name not in _NOT_METRICS
    }


def _group(task: int, rollouts: Mapping[int, JsonObject]) -> JsonObject:
    numbers = {rollout: _numbers(record) for rollout, record in rollouts.items()}
    return {
        **describe_columns(list(numbers.values())),
        TASK_INDEX_KEY_NAME: task,
        "sample": {"agent_ref": {"name": "agent"}},
        "num_rollouts": len(rollouts),
        "expected_num_rollouts": len(rollouts),
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
        "rollout_infos": [
            {"rollout_id": f"{task}:{rollout}", TASK_INDEX_KEY_NAME: task, ROLLOUT_INDEX_KEY_NAME: rollout, **fields}
            for rollout, fields in sorted(numbers.items())
        ],
    }
