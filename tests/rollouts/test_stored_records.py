"""A rollout that is in a file twice counts once, and a warning says how to remove its second line."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.analysis.compare import read_tasks
from nemo_gym.analysis.export import ExportConfig, export_rollouts
from nemo_gym.analysis.profile import ProfileConfig, profile_rollouts
from nemo_gym.analysis.reverify import ReverifyReport, completable
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.metrics import write_aggregate_metrics
from nemo_gym.rollouts.store import RepeatedLines
from nemo_gym.rollouts.types import hash_row
from nemo_gym.testing import example_row, running_servers, says
from tests.jsonl import write_lines
from tests.stacks import counter, scripted_servers

ROWS = [example_row(f"add {number}", initial_count=0, expected_count=0) for number in range(2)]


def record_of(index: int, said: str = "Done.") -> dict[str, Any]:
    row_hash = hash_row(json.dumps(ROWS[index]).encode())
    identity = {"_task_index": index, "_repeat_index": 0, "_row_hash": row_hash}
    return {**ROWS[index], "response": says(said), "reward": 1.0, **identity}


def exported(rollouts: Path) -> int:
    paths = {"rollouts_jsonl_fpath": str(rollouts), "output_jsonl_fpath": str(rollouts.with_name("sft.jsonl"))}
    return export_rollouts(ExportConfig.model_validate({**paths, "select": "all"})).examples


def profiled(rollouts: Path) -> int:
    rows = write_lines(rollouts.with_name("rows.jsonl"), ROWS)
    files = {"input": rows, "rollouts": rollouts, "output": rollouts.with_name("profiled.jsonl")}
    config = {f"{name}_jsonl_fpath": str(path) for name, path in files.items()}
    return profile_rollouts(ProfileConfig.model_validate(config)).metrics.scored


def compared(rollouts: Path) -> int:
    return sum(len(task.rewards) for task in read_tasks(rollouts).values())


def verified_again(rollouts: Path) -> int:
    return len(list(completable(rollouts, ReverifyReport(tolerance=0))))


@pytest.mark.parametrize("count", [exported, profiled, compared, verified_again])
def test_a_line_that_is_there_twice_is_one_rollout(
    tmp_path: Path, count: Callable[[Path], int], caplog: pytest.LogCaptureFixture
) -> None:
    once = [record_of(0), record_of(1)]
    rollouts = write_lines(tmp_path / "out.jsonl", [*once, *once, record_of(0)])
    assert count(rollouts) == 2
    assert caplog.text.count("3 lines of") == 1
    assert "sed -i '3,5d'" in caplog.text


@pytest.mark.parametrize("count", [exported, profiled, compared, verified_again])
def test_rollouts_with_other_responses_or_without_identity_are_not_repeated(
    tmp_path: Path, count: Callable[[Path], int], caplog: pytest.LogCaptureFixture
) -> None:
    bare = {name: value for name, value in record_of(1).items() if not name.startswith("_")}
    rollouts = write_lines(tmp_path / "out.jsonl", [record_of(0), record_of(0, "Done again."), bare, bare])
    assert count(rollouts) == 4
    assert not caplog.records


async def test_metrics_of_environments_count_a_rollout_once(tmp_path: Path) -> None:
    output = write_lines(tmp_path / "out.jsonl", [record_of(0), record_of(0), record_of(1)])
    async with running_servers(scripted_servers(counter(), [])) as client:
        written = await write_aggregate_metrics(output, client, agent_name="agent", always=True)
    assert written is not None
    (aggregate,) = orjson.loads(written.read_bytes())
    assert [task["num_rollouts"] for task in aggregate["group_level_metrics"]] == [1, 1]


@pytest.mark.parametrize("repeats", [1, 2])
async def test_a_resumed_collection_counts_a_rollout_once(
    tmp_path: Path, repeats: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that is no longer asked for, because there are fewer repeats now."""
    output = tmp_path / "out.jsonl"
    config = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(write_lines(tmp_path / "rows.jsonl", ROWS)),
        output_jsonl_fpath=str(output),
        num_repeats=2,
    )
    helper = RolloutCollectionHelper()
    async with running_servers(scripted_servers(counter(), [{"say": "Done."}])) as client:
        before = (await helper.run_from_config(config, client=client)).summary()
        output.write_bytes(output.read_bytes() * 2)
        config = config.model_copy(update={"num_repeats": repeats})
        after = (await helper.run_from_config(config, client=client)).summary()
    assert {**after, "stages": {}} == {**before, "stages": {}}
    assert helper.found == 4
    assert "4 lines of" in caplog.text
    assert "sed -i '5,8d'" in caplog.text


def test_the_command_in_the_warning_removes_the_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "with a blank.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(1, 10)))
    repeated = RepeatedLines()
    for number in (9, 3, 4, 6):
        repeated.add(number)
    repeated.warn(path)
    command = caplog.messages[0].partition("To remove them: ")[2]
    subprocess.run(["sh", "-c", command], check=True)
    assert path.read_text().split() == ["1", "2", "5", "7", "8"]


def test_of_many_places_the_first_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    repeated = RepeatedLines()
    for number in range(2, 20, 2):
        repeated.add(number)
    repeated.warn(tmp_path / "out.jsonl")
    assert "9 lines of" in caplog.text
    assert "sed -i '2d;4d;6d;8d;10d'" in caplog.text
