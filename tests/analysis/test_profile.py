"""Every row that has rollouts gets their metrics, and nothing that is missing goes unsaid."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.analysis.profile import (
    ProfileConfig,
    RewardProfileConfig,
    RewardProfilingMetrics,
    profile_files,
    profile_rewards,
    profile_rollouts,
)
from nemo_gym.errors import ConfigError
from nemo_gym.reward_profile import RewardProfiler
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.store import StoredRolloutsError
from nemo_gym.rollouts.types import hash_row
from nemo_gym.testing import example_row, rows_of, running_servers
from tests.commands import ng
from tests.jsonl import write_lines
from tests.stacks import scripted_servers, weather

ROWS = [example_row(prompt, level=level) for level, prompt in enumerate("abc")]
FILES = {"input": "rows", "rollouts": "rollouts", "output": "profiled"}


def config_in(folder: Path, records: list[dict[str, Any]], rows: list[Any] = ROWS, **options: Any) -> ProfileConfig:
    for name, lines in (("rows", rows), ("rollouts", records)):
        write_lines(folder / f"{name}.jsonl", lines)
    paths = {f"{name}_jsonl_fpath": str(folder / f"{file}.jsonl") for name, file in FILES.items()}
    return ProfileConfig.model_validate({**paths, **options})


def rewarded(*rewards: tuple[int, float]) -> list[dict[str, Any]]:
    return [{**ROWS[task], "reward": reward, "_task_index": task} for task, reward in rewards]


def test_each_row_with_rollouts_gets_their_metrics_in_the_order_of_the_dataset(tmp_path: Path) -> None:
    config = config_in(tmp_path, rewarded((2, 0.0), (0, 1.0), (2, 1.0), (0, 1.0)), pass_threshold=0.5)
    found = profile_rollouts(config)
    first, second = rows_of(config.output_jsonl_fpath)
    metrics = {"avg_reward": 1.0, "std_reward": 0.0, "min_reward": 1.0, "max_reward": 1.0, "total_samples": 2}
    rate = {"pass_rate": 1.0, "pass_rate_total": 2, "pass_rate_passed": 2, "pass_threshold": 0.5}
    assert first == {**ROWS[0], **metrics, **rate}
    assert (second["level"], second["avg_reward"], second["std_reward"], second["pass_rate"]) == (2, 0.5, 0.5, 0.5)
    assert (found.rows, found.rows_without_rollouts, found.matched_by_prompt) == (2, 1, 0)
    summary = json.loads((tmp_path / "profiled_metrics.json").read_text())
    assert summary == found.metrics.summary()
    assert summary["pass@2"]["mean"] == 1.0


def test_it_is_complete_without_repeats_and_without_a_threshold(tmp_path: Path) -> None:
    config = config_in(tmp_path, rewarded((0, 1.0), (1, 0.25), (2, 0.0)))
    profile_rollouts(config)
    rows = rows_of(config.output_jsonl_fpath)
    assert [(row["avg_reward"], row["total_samples"]) for row in rows] == [(1.0, 1), (0.25, 1), (0.0, 1)]
    assert not any("pass_rate" in row or "pass_threshold" in row for row in rows)


async def test_rollouts_without_marks_are_found_by_their_prompt(tmp_path: Path) -> None:
    """With what a real stack answers, defaults filled in and temperature overridden."""
    config = config_in(tmp_path, [])
    collection = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=config.input_jsonl_fpath,
        output_jsonl_fpath=config.rollouts_jsonl_fpath,
        num_repeats=2,
        responses_create_params={"temperature": 0.5},
    )
    servers = scripted_servers(weather(), [{"say": "Hm."}])
    async with running_servers(servers) as client:
        await RolloutCollectionHelper().run_from_config(collection, client=client)
    marked = rows_of(config.rollouts_jsonl_fpath)
    profile_rollouts(config)
    expected = rows_of(config.output_jsonl_fpath)
    bare = [{name: value for name, value in record.items() if not name.startswith("_")} for record in marked]
    write_lines(Path(config.rollouts_jsonl_fpath), bare)
    found = profile_rollouts(config)
    assert found.matched_by_prompt == 6
    assert rows_of(config.output_jsonl_fpath) == expected
    assert found.metrics.summary()["tasks"] == 3


def test_a_record_without_a_reward_is_no_reward_of_zero(tmp_path: Path) -> None:
    config = config_in(tmp_path, [*rewarded((0, 1.0)), {"_task_index": 0}, {"_task_index": 1, "reward": None}])
    found = profile_rollouts(config)
    assert (found.rows, found.records_without_reward) == (1, 2)
    assert rows_of(config.output_jsonl_fpath)[0]["total_samples"] == 1


@pytest.mark.parametrize("records", [[], [{"_task_index": 0}]])
def test_no_rollouts_are_an_error_and_no_empty_file(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    config = config_in(tmp_path, records)
    with pytest.raises(StoredRolloutsError, match="holds no scored rollout"):
        profile_rollouts(config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rollouts.jsonl", "rows.jsonl"]


def test_rollouts_of_rows_that_are_gone_are_left_out_if_that_is_allowed(tmp_path: Path) -> None:
    records = [
        {**record, "_row_hash": hash_row(json.dumps(ROWS[task]).encode())}
        for task, record in enumerate(rewarded((0, 1.0), (1, 0.5), (2, 0.0)))
    ]
    config = config_in(tmp_path, records, rows=[ROWS[2], ROWS[1]])
    with pytest.raises(StoredRolloutsError, match=r"row 0, .*\+allow_changed_rows=true"):
        profile_rollouts(config)
    found = profile_rollouts(config.model_copy(update={"allow_changed_rows": True}))
    assert (found.rows, found.records_without_row) == (2, 1)
    rows = rows_of(config.output_jsonl_fpath)
    assert [(row["level"], row["avg_reward"]) for row in rows] == [(2, 0.0), (1, 0.5)]


@pytest.mark.parametrize("name", ["rows", "rollouts"])
def test_what_is_read_is_not_written_over(tmp_path: Path, name: str) -> None:
    config = config_in(tmp_path, rewarded((0, 1.0)), output_jsonl_fpath=str(tmp_path / f"{name}.jsonl"))
    before = (tmp_path / f"{name}.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="is what the command reads"):
        profile_rollouts(config)
    assert (tmp_path / f"{name}.jsonl").read_bytes() == before


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(-10, 10))
def test_the_metrics_of_a_row_are_those_of_its_rewards(rewards: list[float], threshold: float) -> None:
    mean = sum(rewards) / len(rewards)
    found = profile_rewards(rewards, pass_threshold=threshold)
    assert found.avg_reward == pytest.approx(mean, abs=1e-9)
    variance = sum((reward - mean) ** 2 for reward in rewards) / len(rewards)
    assert found.std_reward == pytest.approx(variance**0.5, abs=1e-6)
    assert (found.min_reward, found.max_reward) == (min(rewards), max(rewards))
    passed = [reward for reward in rewards if reward >= threshold]
    assert (found.pass_rate_total, found.pass_rate_passed) == (len(rewards), len(passed))
    assert found.pass_rate == pytest.approx(statistics.fmean(reward >= threshold for reward in rewards))


def test_metrics_without_a_threshold_have_no_pass_rate() -> None:
    dumped = profile_rewards([1.0]).model_dump(exclude_none=True)
    assert list(dumped) == ["avg_reward", "std_reward", "min_reward", "max_reward", "total_samples"]
    assert RewardProfilingMetrics(**dumped).pass_rate is None


def test_as_a_user_types_it(tmp_path: Path) -> None:
    config_in(tmp_path, [{**record, "_task_index": None} for record in rewarded((0, 1.0), (2, 0.0))])
    arguments = [f"+{name}_jsonl_fpath={file}.jsonl" for name, file in FILES.items()]
    done = ng("ng_profile", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "profiled.jsonl" in done.stdout
    assert "reward" in done.stdout
    assert "1 rows have no rollout" in done.stderr
    assert "2 records have no _task_index" in done.stderr
    write_lines(tmp_path / "rows.jsonl", ROWS[1:2])
    failed = ng("ng_profile", *arguments, cwd=tmp_path)
    assert (failed.returncode, "Traceback" in failed.stderr) == (2, False)
    assert "is that of no row" in failed.stderr


def sent(task: int, rollout: int, **fields: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": "solver"}, **fields}


SENT_ROWS = [sent(task, rollout, expected=7) for task in (0, 1) for rollout in (0, 1)]
SENT_RECORDS = [
    sent(1, 0, reward=1.0),
    sent(0, 1, reward=0.0, response={"usage": {"input_tokens": 4}}),
    sent(0, 0, reward=1.0, expected=7, _row_fields=["expected"], _seconds=2.0),
]


def test_records_are_joined_with_their_rows_and_counted() -> None:
    groups, agents = RewardProfiler().profile_from_data(SENT_ROWS, SENT_RECORDS, allow_partial_rollouts=True)
    first, second = groups
    assert (first["mean/reward"], first["num_rollouts"], first["expected_num_rollouts"]) == (0.5, 2, 2)
    assert first["sample"] == SENT_ROWS[0]
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
    with pytest.raises(ValueError, match=r"1 of 4 .*\(1, 1\)"):
        profiler.profile_from_data(SENT_ROWS, SENT_RECORDS)
    with pytest.raises(ValueError, match=r"Duplicate .*\(0, 0\)"):
        profiler.align_rows_and_results([SENT_ROWS[0], SENT_ROWS[0]], SENT_RECORDS)


def test_files_are_profiled(tmp_path: Path) -> None:
    for name, lines in (("in.jsonl", SENT_ROWS), ("out.jsonl", SENT_RECORDS)):
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
