from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.compare import CompareConfig, Comparison, compare_rollouts
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.store import StoredRolloutsError
from nemo_gym.testing import example_row, says
from tests.commands import ng
from tests.jsonl import write_lines


def record(task: int, reward: float, *, repeat: int = 0, hashed: bool = True) -> dict[str, Any]:
    row = {**example_row(f"question {task}"), "response": says("x"), "reward": reward}
    return row | {"_task_index": task, "_repeat_index": repeat} | ({"_row_hash": f"{task:016x}"} if hashed else {})


def compared(folder: Path, before: list[Any], after: list[Any], **options: Any) -> Comparison:
    names = [str(write_lines(folder / name, each)) for name, each in (("a.jsonl", before), ("b.jsonl", after))]
    return compare_rollouts(CompareConfig(before=names[0], after=names[1], **options))


@pytest.mark.parametrize("hashed", [True, False])
def test_the_difference_is_paired_by_task(tmp_path: Path, hashed: bool) -> None:
    before = [record(task, reward, hashed=hashed) for task, reward in enumerate((0, 0, 1, 0.5))]
    after = [record(task, reward, hashed=hashed) for task, reward in enumerate((1, 0, 0, 1))][::-1]
    found = compared(tmp_path, before, [*after, record(9, 1, hashed=hashed)])
    assert (found.tasks, found.only_before, found.only_after) == (4, 0, 1)
    assert (found.rewards.mean_before, found.rewards.mean_after) == (0.375, 0.5)
    assert found.rewards.difference.mean == pytest.approx(0.125)
    low, high = found.rewards.difference.interval_95 or (0, 0)
    assert low < 0 < high
    assert (found.rewards.up, found.rewards.down) == (2, 1)
    assert [flip.task_index for flip in found.gained] == [0, 3]
    assert [(flip.task_index, flip.prompt) for flip in found.lost] == [(2, "question 2")]


def test_repeats_are_averaged_and_half_of_them_are_enough_to_pass(tmp_path: Path) -> None:
    before = [record(0, reward, repeat=repeat) for repeat, reward in enumerate((1, 0, 0, 0))]
    after = [record(0, reward, repeat=repeat) for repeat, reward in enumerate((1, 1, 0, 0))]
    found = compared(tmp_path, before, after)
    assert (found.gained[0].before, found.gained[0].after) == (0.25, 0.5)


@pytest.mark.parametrize(("up", "down", "p"), [(5, 0, 0.0625), (0, 0, 1.0), (3, 3, 1.0), (9, 1, 0.021484375)])
def test_the_sign_test_counts_uneven_splits(tmp_path: Path, up: int, down: int, p: float) -> None:
    rewards = [(0, 1)] * up + [(1, 0)] * down + [(1, 1)]
    found = compared(
        tmp_path,
        [record(task, one) for task, (one, _) in enumerate(rewards)],
        [record(task, other) for task, (_, other) in enumerate(rewards)],
    )
    assert found.rewards.sign_test == pytest.approx(p)


def test_failures_that_were_made_good_do_not_count(tmp_path: Path) -> None:
    failed = {"_row_hash": "0" * 16, "_repeat_index": 0, "is_final": True, "cause": "model"}
    write_lines(tmp_path / "b_failures.jsonl", [failed | {"_task_index": task} for task in (0, 5)])
    found = compared(tmp_path, [record(0, 1)], [record(0, 1)])
    assert (found.failed_before, found.failed_after) == (0, 1)


def test_runs_without_a_common_task_are_not_compared(tmp_path: Path) -> None:
    with pytest.raises(StoredRolloutsError, match="have no task in common"):
        compared(tmp_path, [record(0, 1)], [record(1, 1)])


def test_the_command_prints_at_most_70_columns(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [record(task, 0) for task in range(12)])
    write_lines(tmp_path / "b.jsonl", [record(task, 1) for task in range(12)])
    done = ng("ng", "compare", "a.jsonl", "b.jsonl", "--max-flips", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 70
    assert lines[-1] == "  ... and 10 more (--max-flips)"


def test_plots_have_the_name_of_what_they_are() -> None:
    with pytest.raises(ConfigError, match=r"\.svg"):
        CompareConfig.read({"before": "a", "after": "b", "plots_fpath": "plots.png"})


def test_one_task_is_written_in_the_singular(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [record(0, 0), record(1, 1)])
    write_lines(tmp_path / "b.jsonl", [record(0, 1), record(1, 0)])
    printed = ng("ng_compare", "a.jsonl", "b.jsonl", cwd=tmp_path).stdout
    assert "1 task now passes:" in printed
    assert "1 task now fails:" in printed
