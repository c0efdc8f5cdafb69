import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.reward_profiler import RewardProfileConfig, profile_files
from nemo_gym.errors import ConfigError
from nemo_gym.reward_profile import RewardProfiler


def row(task: int, rollout: int, **fields: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": "solver"}, **fields}


ROWS = [row(task, rollout, expected=7) for task in (0, 1) for rollout in (0, 1)]
RECORDS = [
    row(1, 0, reward=1.0),
    row(0, 1, reward=0.0, response={"usage": {"input_tokens": 4}}),
    row(0, 0, reward=1.0, expected=7, _row_fields=["expected"], _seconds=2.0),
]


def test_records_are_joined_with_their_rows_and_counted() -> None:
    groups, agents = RewardProfiler().profile_from_data(ROWS, RECORDS, allow_partial_rollouts=True)
    first, second = groups
    assert (first["mean/reward"], first["num_rollouts"], first["expected_num_rollouts"]) == (0.5, 2, 2)
    assert first["sample"] == ROWS[0]
    assert [info["rollout_id"] for info in first["rollout_infos"]] == ["0:0", "0:1"]
    assert (second["missing_num_rollouts"], second["reward_profile_completion_pct"]) == (1, 50.0)
    (agent,) = agents
    assert agent["agent_ref"] == {"name": "solver"}
    assert agent["mean/reward"] == pytest.approx(2 / 3)
    assert not {"mean/expected", "mean/_seconds"} & agent.keys()
    summary = RewardProfiler().profile_completion_summary(groups)
    assert summary["reward_profile_completion_pct"] == 75.0


def test_rows_without_a_rollout_and_doubles_are_refused() -> None:
    profiler = RewardProfiler()
    with pytest.raises(ValueError, match=r"1 of 4 rows have no rollout, first \(1, 1\)"):
        profiler.profile_from_data(ROWS, RECORDS)
    with pytest.raises(ValueError, match=r"Duplicate materialized input row for rollout key \(0, 0\)"):
        profiler.align_rows_and_results([ROWS[0], ROWS[0]], RECORDS)


def test_files_are_profiled(tmp_path: Path) -> None:
    for name, lines in (("in.jsonl", ROWS), ("out.jsonl", RECORDS)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = {"input_jsonl_fpath": str(tmp_path / "in.jsonl"), "rollouts_jsonl_fpath": str(tmp_path / "out.jsonl")}
    with pytest.raises(ConfigError, match="allow_partial_rollouts"):
        profile_files(RewardProfileConfig.model_validate(given))
    summary, files = profile_files(RewardProfileConfig.model_validate({**given, "allow_partial_rollouts": True}))
    assert summary["num_rollouts"] == 3
    assert [file.name for file in files] == ["out_reward_profiling.jsonl", "out_agent_metrics.json"]
    assert len(files[0].read_text().splitlines()) == 2


def test_histograms_are_not_written() -> None:
    assert RewardProfiler().prepare_for_serialization([{"histogram/reward": object(), "a": 1}]) == [{"a": 1}]
