"""Functions of rollout collection that folders of the public NeMo Gym call."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_gym.analysis.observations import AgentObservationBundle, TrajectoryRecord
from nemo_gym.common.statistics import quantile
from nemo_gym.compat.episodes import TASK_ID_FIELDS
from nemo_gym.config.keys import (
    ALIASES_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_TERMINAL_KEY,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.server.rollout_prefix import maybe_rollout_id_from_run_body

TRAJECTORY_KEY, PERF_KEY = "ng_trajectory", "ng_perf"
REPAIRABLE_CLASSES = frozenset(("timeout_exceeded", "timeout", "reference_missing", "eval_missing"))
"""Failures that a later run may not have: a longer limit, or files that are there by then."""
MIN_LATENCIES = 5


def is_terminal_failure(record: Mapping[str, Any], *, retry_terminal_timeouts: bool = False) -> bool:
    """True for a failure that is not to be tried again."""
    if not record.get(NG_TERMINAL_KEY):
        return False
    return not (retry_terminal_timeouts and record.get(NG_FAILURE_CLASS_KEY) in REPAIRABLE_CLASSES)


def observed_elapsed(record: Mapping[str, Any]) -> float | None:
    """Return how long a rollout took, if its record says so."""
    response = record.get("response")
    metadata = response.get("metadata") if isinstance(response, Mapping) else None
    for source in (record, metadata if isinstance(metadata, Mapping) else {}):
        try:
            return float(source["elapsed_seconds"])
        except (KeyError, TypeError, ValueError):
            continue
    return None


class DispatchLatencyTracker:
    """How long rollouts take, to know which can still be started."""

    def __init__(self) -> None:
        self._latencies: list[float] = []
        self.drained = 0
        """The number of rollouts that were not started for lack of time."""

    def record(self, seconds: float) -> None:
        self._latencies.append(seconds)

    def record_drained(self, count: int = 1) -> None:
        self.drained += count

    def quantile(self, share: float) -> float | None:
        """Return the latency that this share of rollouts stays below."""
        return quantile(sorted(self._latencies), share) if self._latencies else None

    def drain_margin(self, configured: float | None = None) -> float | None:
        """Return how long before the end no rollout is started any more."""
        if configured is not None:
            return configured
        return self.quantile(0.75) if len(self._latencies) >= MIN_LATENCIES else None

    def summary(self) -> JsonObject:
        """Return the metrics of all rollouts so far."""
        mean = statistics.fmean(self._latencies) if self._latencies else None
        quantiles = {f"p{round(100 * share)}": self.quantile(share) for share in (0.5, 0.75, 0.9)}
        return {"count": len(self._latencies), "mean": mean, **quantiles, "drained": self.drained}


def migrate_invalid_judge_main_rows(path: str | Path) -> int:
    """Do nothing: our records have no reward if the judge failed."""
    return 0


def attach_ng_perf(
    result: JsonObject, *, observability_enabled: bool = True, rollout_latency_ms: float | None = None
) -> None:
    """Add turns, tool calls, tokens and time of a rollout to its record."""
    if not observability_enabled:
        return
    response = result.get("response")
    response = response if isinstance(response, Mapping) else {}
    items = response.get("output") or []
    kinds = [item.get("type") for item in items if isinstance(item, Mapping)]
    usage = response.get("usage") or {}
    given = (usage.get("input_tokens_details") or {}).get("cached_tokens")
    thought = (usage.get("output_tokens_details") or {}).get("reasoning_tokens")
    tokens = {
        "prompt_tokens": usage.get("input_tokens"),
        "cached_prompt_tokens": given,
        "completion_tokens": usage.get("output_tokens"),
        "reasoning_tokens": thought,
        "total_latency_ms": rollout_latency_ms,
    }
    result[PERF_KEY] = {
        "num_turns": max(1, kinds.count("message")) if kinds else 0,
        "num_tool_calls": kinds.count("function_call"),
        "token_observability_coverage": 1.0 if usage else 0.0,
        **{name: value for name, value in tokens.items() if value is not None},
    }


def trajectory_identity(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the ids of a row's task and rollout."""
    task = next((row[name] for name in (*TASK_ID_FIELDS, TASK_INDEX_KEY_NAME) if row.get(name) is not None), None)
    rollout = row.get(ROLLOUT_INDEX_KEY_NAME)
    return str(task), maybe_rollout_id_from_run_body(row) or str(rollout)


def build_trajectory_record(row: Mapping[str, Any], result: Mapping[str, Any]) -> TrajectoryRecord | None:
    """Return the trajectory that an agent's observations describe, or the one that it has made itself."""
    task_id, rollout_id = trajectory_identity(row)
    given = result.get(TRAJECTORY_KEY)
    calls = (result.get("ng_model_call_capture") or {}).get("calls") or []
    if given is not None:
        record = TrajectoryRecord.model_validate(given).model_dump()
        turns = [{**turn, "task_id": task_id, "rollout_id": rollout_id} for turn in record["turns"]]
        ids = {"task_id": task_id, "rollout_id": rollout_id, "model_calls": record["model_calls"] or calls}
        return TrajectoryRecord.model_validate({**record, **ids, "turns": turns})
    observed = result.get("ng_agent_observations")
    if observed is None:
        return None
    bundle = AgentObservationBundle.model_validate(observed)
    by_kind: dict[str, list[Any]] = {}
    for each in bundle.records:
        by_kind.setdefault(each.kind, []).append(each)
    return TrajectoryRecord.model_validate(
        {
            "task_id": task_id,
            "rollout_id": rollout_id,
            "invocations": [each.model_dump() for each in by_kind.get("agent_invocation", [])],
            "tool_calls": [each.model_dump() for each in by_kind.get("tool_call", [])],
            "model_calls": calls,
            "gaps": [gap.model_dump() for gap in bundle.gaps],
        }
    )


def attach_trajectory_record(row: Mapping[str, Any], result: JsonObject) -> None:
    """Add the trajectory of a rollout to its record."""
    record = build_trajectory_record(row, result)
    if record is not None:
        result[TRAJECTORY_KEY] = record.model_dump(mode="json")


def environment_servers_by_agent(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the environment servers of each agent."""
    found: dict[str, list[str]] = {}
    for name, agent in (config.get(ALIASES_KEY_NAME) or {}).items():
        found.setdefault(agent, []).append(name)
    return found


def environment_server_for_agent(config: Mapping[str, Any], agent: str) -> str:
    """Return the environment server that plays the rows of an agent."""
    found = environment_servers_by_agent(config).get(agent, [])
    if len(found) != 1:
        raise ValueError(f"The agent '{agent}' has {len(found)} environment servers; expected one.")
    return found[0]
