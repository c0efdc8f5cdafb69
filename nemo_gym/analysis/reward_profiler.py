"""Figures of stored rollouts by task and by agent, in the shape that public tools read."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.common.atomic_files import atomic_write, read_jsonl, write_json
from nemo_gym.common.paths import find
from nemo_gym.config.keys import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.output_files import sibling_path
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, results_of, task_index_of
from nemo_gym.server.aggregate_metrics import compute_aggregate_metrics

RolloutKey = tuple[int, int]
"""The index of the task and that of the rollout."""
_OF_THE_COLLECTOR = ("_task_index", REPEAT_INDEX_KEY_NAME, "_attempts", "_retries", "_seconds")


class RewardProfileConfig(CommandConfig):
    """Write the figures of stored rollouts, by task to `<rollouts>_reward_profiling.jsonl` and by agent to
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
    """Joins rows as they were sent with the records made of them."""

    def align_rows_and_results(
        self, rows: Sequence[JsonObject], results: Sequence[JsonObject], allow_partial_rollouts: bool = False
    ) -> list[tuple[JsonObject, JsonObject]]:
        """Each row with its record, in the order of the rows. Rows without one are left out if that is allowed."""
        known = _by_key(results, "record")
        wanted = _by_key(rows, "materialized input row")
        missing = [key for key in wanted if key not in known]
        if missing and not allow_partial_rollouts:
            raise ValueError(f"{len(missing)} of {len(wanted)} rows have no rollout, first {missing[0]}")
        return [(row, known[key]) for key, row in wanted.items() if key in known]

    def profile_from_data(
        self, rows: Sequence[JsonObject], results: Sequence[JsonObject], allow_partial_rollouts: bool = False
    ) -> tuple[list[JsonObject], list[JsonObject]]:
        """The figures of each task and of each agent."""
        pairs = self.align_rows_and_results(rows, results, allow_partial_rollouts)
        expected: dict[int, int] = defaultdict(int)
        for task, _ in _by_key(rows, "materialized input row"):
            expected[task] += 1
        by_agent: dict[str, list[tuple[JsonObject, JsonObject]]] = defaultdict(list)
        for row, record in pairs:
            by_agent[_agent_of(row) or _agent_of(record) or ""].append((row, record))
        groups: list[JsonObject] = []
        agents: list[JsonObject] = []
        for agent, found in by_agent.items():
            samples = {_key(row)[0]: row for row, _ in reversed(found)}
            figures = compute_aggregate_metrics([_measured(record) for _, record in found])
            for group in figures.group_level_metrics:
                task = group[TASK_INDEX_KEY_NAME]
                groups.append({**group, "sample": samples[task], **_completion(group["num_rollouts"], expected[task])})
            agents.append({AGENT_REF_KEY_NAME: {"name": agent}, **figures.agent_metrics})
        return groups, agents

    def profile_completion_summary(self, group_level: Sequence[JsonObject]) -> JsonObject:
        """How many of the expected rollouts there are, over all tasks."""
        have = sum(group["num_rollouts"] for group in group_level)
        return {
            "num_rollouts": have,
            **_completion(have, sum(group["expected_num_rollouts"] for group in group_level)),
        }

    def prepare_for_serialization(self, figures: Sequence[JsonObject]) -> list[JsonObject]:
        """The figures without histograms, which are no JSON."""
        return [{name: value for name, value in each.items() if not name.startswith("histogram")} for each in figures]

    def write_to_disk(
        self, group_level: Sequence[JsonObject], agent_level: Sequence[JsonObject], base_path: str | Path
    ) -> tuple[Path, Path]:
        """The files beside `base_path` that they were written to."""
        groups = sibling_path(Path(base_path), "reward_profiling", ".jsonl")
        agents = sibling_path(Path(base_path), "agent_metrics", ".json")
        with atomic_write(groups) as file:
            file.writelines(orjson.dumps(each) + b"\n" for each in self.prepare_for_serialization(group_level))
        write_json(agents, self.prepare_for_serialization(agent_level))
        return groups, agents


def _by_key(records: Sequence[JsonObject], what: str) -> dict[RolloutKey, JsonObject]:
    found: dict[RolloutKey, JsonObject] = {}
    for record in records:
        key = _key(record)
        if key in found:
            raise ValueError(f"Duplicate {what} for rollout key {key}")
        found[key] = record
    return found


def _key(record: Mapping[str, Any]) -> RolloutKey:
    rollout = record.get(ROLLOUT_INDEX_KEY_NAME, record.get(REPEAT_INDEX_KEY_NAME))
    return task_index_of(record) or 0, rollout or 0


def _agent_of(record: Mapping[str, Any]) -> str | None:
    reference = record.get(AGENT_REF_KEY_NAME)
    return reference.get("name") if isinstance(reference, dict) else None


def _measured(record: JsonObject) -> JsonObject:
    """What the verifier and the agent say, not what the row or the collector adds."""
    task, rollout = _key(record)
    kept = {name: value for name, value in results_of(record).items() if name not in _OF_THE_COLLECTOR}
    return {**kept, TASK_INDEX_KEY_NAME: task, ROLLOUT_INDEX_KEY_NAME: rollout}


def _completion(have: int, expected: int) -> JsonObject:
    return {
        "expected_num_rollouts": expected,
        "missing_num_rollouts": expected - have,
        "reward_profile_completion_pct": 100 * have / expected if expected else 100.0,
    }


def profile_files(config: RewardProfileConfig) -> tuple[JsonObject, tuple[Path, Path]]:
    """Profile stored files: how complete they are, and the files that were written."""
    profiler = RewardProfiler()
    rollouts = find(config.rollouts_jsonl_fpath, what="file of rollouts")
    rows, records = read_jsonl(find(config.input_jsonl_fpath, what="file of rows")), read_jsonl(rollouts)
    try:
        groups, agents = profiler.profile_from_data(rows, records, config.allow_partial_rollouts)
    except ValueError as error:
        hint = " To profile those that there are: +allow_partial_rollouts=true." if "no rollout" in str(error) else ""
        raise ConfigError(f"{config.input_jsonl_fpath} and {rollouts} do not fit: {error}.{hint}") from error
    return profiler.profile_completion_summary(groups), profiler.write_to_disk(groups, agents, rollouts)
