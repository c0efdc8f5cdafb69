"""Metrics over all rollouts of an agent."""

from typing import Any

import pytest

from nemo_gym.server.aggregate_metrics import compute_aggregate_metrics

RECORDS: list[dict[str, Any]] = [
    {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1, "n": 3, "ok": True, "text": "x",
     "response": {"usage": {"input_tokens": 5}}},
    {"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": 0, "n": 1, "ok": False},
    {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 1, "n": 2, "ok": True},
]  # fmt: skip


def test_every_number_has_its_statistics_by_task_and_over_all() -> None:
    found = compute_aggregate_metrics(RECORDS)
    agent, (first, second) = found.agent_metrics, found.group_level_metrics
    assert agent["mean/reward"] == pytest.approx(2 / 3)
    assert (agent["mean/n"], agent["std/n"], agent["mean/input_tokens"]) == (2, 1, 5)
    assert agent["mean/ok"] == pytest.approx(2 / 3)
    assert "std/input_tokens" not in agent
    assert first["std/reward"] == pytest.approx(0.7071, abs=1e-4)
    assert (second["std/reward"], second["_ng_task_index"], second["num_rollouts"]) == (0, 1, 1)
    assert [info["rollout_id"] for info in first["rollout_infos"]] == ["0:0", "0:1"]
    assert first["rollout_infos"][0]["input_tokens"] == 5
    assert set(found.key_metrics) == {"mean/reward", "mean/n", "mean/ok", "mean/input_tokens"}


def test_the_hooks_add_metrics_and_choose_among_them() -> None:
    def compute(tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        assert [len(task) for task in tasks] == [2, 1]
        return {"own": 7, "per_task_metrics": [{"_ng_task_index": 1, "hard": True}]}

    found = compute_aggregate_metrics(RECORDS, compute, lambda metrics: {"own": metrics["own"]})
    assert (found.agent_metrics["own"], found.key_metrics) == (7, {"own": 7})
    assert "hard" not in found.group_level_metrics[0]
    assert found.group_level_metrics[1]["hard"] is True


def test_records_without_indices_are_rollouts_of_one_task_but_one_index_twice_is_an_error() -> None:
    assert compute_aggregate_metrics([{"reward": 1}, {"reward": 0}]).group_level_metrics[0]["num_rollouts"] == 2
    assert compute_aggregate_metrics([]).agent_metrics == {}
    with pytest.raises(ValueError, match=r"\(1, 0\)"):
        compute_aggregate_metrics([RECORDS[2], RECORDS[2]])


def test_masked_records_only_count_as_such() -> None:
    records = [{"_ng_task_index": index, "reward": 1.0, "mask_sample": index > 0} for index in range(3)]
    found = compute_aggregate_metrics(records)
    coverage = {"measured_rollouts": 1, "masked_rollouts": 2, "measured_tasks": 1, "fully_masked_tasks": 2}
    named = {f"coverage/{name}": count for name, count in coverage.items()}
    assert {"mean/reward": 1.0, **named} == found.key_metrics
    assert found.agent_metrics.items() >= named.items()
    assert compute_aggregate_metrics(records[1:]).agent_metrics.keys() == named.keys()


def test_each_repeat_has_its_metrics_and_they_are_compared() -> None:
    rewards = {(0, 0): 1.0, (1, 0): 0.0, (0, 1): 1.0, (1, 1): 1.0, (0, 2): 0.0}
    records = [
        {"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": reward}
        for (task, repeat), reward in rewards.items()
    ]
    found = compute_aggregate_metrics(records, None, None, lambda tasks: {"tasks": len(tasks)})
    means = [each["mean/reward"] for each in found.repeat_level_metrics]
    counts = [(each["sample_count"], each["missing_count"], each["tasks"]) for each in found.repeat_level_metrics]
    assert (means, counts) == ([0.5, 1.0, 0.0], [(2, 0, 2), (2, 0, 2), (1, 1, 1)])
    first, last = found.repeat_level_metrics[0], found.repeat_level_metrics[-1]
    assert (first["p25/reward"], first["sem/reward"]) == (0.25, 0.5)
    assert first["ci_high_95/reward"] == pytest.approx(0.5 + 12.706 * 0.5, rel=1e-4)
    assert "sem/reward" not in last
    assert found.agent_metrics["mean_across_repeats/mean/reward"] == 0.5
    assert found.agent_metrics["max_across_repeats/tasks"] == 2
    assert compute_aggregate_metrics(records[:2]).repeat_level_metrics == []
