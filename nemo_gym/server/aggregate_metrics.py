"""Metrics that environments compute over all rollouts of an agent.

A collection calls `/aggregate_metrics` when it ends. Environments add metrics of their own in `compute_metrics`."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from nemo_gym.common.statistics import describe_columns
from nemo_gym.config.keys import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.llm_api.base import FailFastModel, JsonObject
from nemo_gym.server.endpoint import Endpoint

_INDICES = (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)


class AggregateMetricsRequest(FailFastModel):
    """Scored records, without their conversations."""

    verify_responses: list[JsonObject]


class AggregateMetrics(BaseModel):
    """Metrics of each task, of the agent, and those to look at first."""

    group_level_metrics: list[JsonObject] = Field(default_factory=list)
    agent_metrics: JsonObject = Field(default_factory=dict)
    key_metrics: JsonObject = Field(default_factory=dict)


class AggregateMetricsEndpoint(Endpoint):
    """Takes the records of a whole collection in one body."""

    limits_keys = False


class AggregateMetricsMixin:
    """The hooks of environments and agents."""

    def compute_metrics(self, tasks: list[list[JsonObject]]) -> JsonObject:
        """Return metrics of your own over the records of each task. The key `per_task_metrics` goes to the tasks."""
        return {}

    def get_key_metrics(self, agent_metrics: JsonObject) -> JsonObject:
        """Return the metrics to look at first."""
        return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Return the metrics over the records of this server."""
        return compute_aggregate_metrics(body.verify_responses, self.compute_metrics, self.get_key_metrics)

    def has_own_metrics(self) -> bool:
        """True if the class has hooks of its own, so that a collection asks for its metrics."""
        names = ("compute_metrics", "get_key_metrics")
        return any(getattr(type(self), name) is not getattr(AggregateMetricsMixin, name) for name in names)


def compute_aggregate_metrics(
    verify_responses: Sequence[JsonObject],
    compute_metrics_fn: Callable[[list[list[JsonObject]]], JsonObject] | None = None,
    get_key_metrics_fn: Callable[[JsonObject], JsonObject] | None = None,
) -> AggregateMetrics:
    """Return mean, max, min, median and standard deviation of every number, by task and over all, and what the hooks
    add."""
    if not verify_responses:
        return AggregateMetrics()
    tasks = _by_task(verify_responses)
    agent_metrics = describe_columns(list(map(_numbers, verify_responses)))
    groups = {index: _group(index, rollouts) for index, rollouts in tasks.items()}
    if compute_metrics_fn is not None:
        own = dict(compute_metrics_fn([list(rollouts.values()) for rollouts in tasks.values()]))
        for entry in own.pop("per_task_metrics", ()):
            groups.get(entry.get(TASK_INDEX_KEY_NAME), {}).update(entry)
        agent_metrics |= own
    key_metrics = (get_key_metrics_fn or AggregateMetricsMixin().get_key_metrics)(agent_metrics)
    return AggregateMetrics(
        group_level_metrics=list(groups.values()), agent_metrics=agent_metrics, key_metrics=key_metrics
    )


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
        name: value + 0 for name, value in fields.items() if isinstance(value, int | float) and name not in _INDICES
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
