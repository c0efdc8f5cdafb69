"""The rows of stored rollouts are found again, also in a dataset that has changed since."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.dataset_rows import ChangedRows, Dataset, RowNotFoundError
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.store import StoredLine, StoredRolloutsError, read_records
from nemo_gym.rollouts.types import hash_row
from nemo_gym.testing import example_row
from tests.jsonl import write_lines

A, B, C, D = (example_row(prompt, answer=prompt) for prompt in "abcd")
CORRECTED_A = {**A, "answer": "the right one"}


def record_of(row: dict[str, Any], index: int) -> dict[str, Any]:
    """What the collector writes of a row."""
    return {**row, "reward": 1.0, "_task_index": index, "_row_hash": hash_row(json.dumps(row).encode())}


def found_rows(folder: Path, rows: list[dict[str, Any]], records: list[dict[str, Any]]) -> list[int | str]:
    """For each record the index of its row if changed rows are allowed, or the error."""
    rollouts = write_lines(folder / "out.jsonl", records)
    with Dataset(str(write_lines(folder / "rows.jsonl", rows))) as dataset:
        changed, found = ChangedRows(dataset, rollouts), list[int | str]()
        for stored in read_records(rollouts):
            try:
                found.append(changed.index_of(stored))
            except RolloutError as error:
                found.append(f"{error.cause}: {error}")
        return found


def test_a_row_is_found_by_its_mark_past_empty_lines(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [example_row("a"), "", example_row("b")])
    marked = write_lines(
        tmp_path / "out.jsonl", [{"_task_index": 1, "_row_hash": hash_row(json.dumps(example_row("b")).encode())}]
    )
    with Dataset(str(rows)) as dataset:
        (stored,) = read_records(marked)
        assert (len(dataset), dataset.index_of(stored), dataset.row(1)) == (2, 1, example_row("b"))
        assert dataset.matched_by_prompt == 0


def test_a_row_is_found_by_its_task_in_a_file_with_a_line_for_each_rollout(tmp_path: Path) -> None:
    path = tmp_path / "out_materialized_inputs.jsonl"
    rows = [{"_ng_task_index": task, "_ng_rollout_index": rollout} for task in (0, 2) for rollout in (0, 1)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with Dataset(str(path)) as dataset:
        found = dataset.index_of(StoredLine(0, "a line", {"_task_index": 2, "_row_hash": "of the row as it was"}))
        assert dataset.row(found) == rows[2]
        with pytest.raises(StoredRolloutsError, match="row 1"):
            dataset.index_of(StoredLine(0, "a line", {"_task_index": 1}))


def test_a_row_is_found_by_its_prompt_if_there_is_no_mark(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [example_row("a"), "{broken", example_row("b")])
    with Dataset(str(rows)) as dataset:
        (stored,) = read_records(write_lines(tmp_path / "out.jsonl", [{**example_row("b"), "reward": 1.0}]))
        assert (dataset.index_of(stored), dataset.matched_by_prompt) == (2, 1)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"_task_index": 3}, "row 3; .* rows 0 to 2"),
        ({"_task_index": -1}, "row -1"),
        ({"_task_index": "1"}, "row '1'"),
        ({"_task_index": 1, "_row_hash": "0" * 16}, "row 1, .* not in .*rows.jsonl"),
        ({"reward": 1.0}, "line 1 has no `_task_index` .* is that of no row"),
        (example_row("unheard of"), "is that of no row"),
        (example_row("twice"), "is that of rows 1, 2 of .* expected exactly one"),
    ],
)
def test_a_record_whose_row_is_unknown_says_what_is_missing(
    tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    rows = write_lines(
        tmp_path / "rows.jsonl", [example_row("once"), example_row("twice"), example_row("twice", more=1)]
    )
    (stored,) = read_records(write_lines(tmp_path / "out.jsonl", [record]))
    with Dataset(str(rows)) as dataset, pytest.raises(StoredRolloutsError, match=message):
        dataset.index_of(stored)


def test_a_row_that_was_moved_is_found_by_its_hash(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [D, C, B, A])
    rollouts = write_lines(tmp_path / "out.jsonl", [record_of(row, index) for index, row in enumerate((A, B, C))])
    with Dataset(str(rows)) as dataset:
        assert [dataset.index_of(stored) for stored in read_records(rollouts)] == [3, 2, 1]


def test_of_equal_rows_the_one_in_its_place_is_taken(tmp_path: Path) -> None:
    records = [record_of(A, index) for index in (0, 1, 2, 7)]
    assert found_rows(tmp_path, [B, A, A], records) == [1, 1, 2, 1]


def test_a_row_that_was_changed_is_the_one_in_its_place_if_that_is_allowed(tmp_path: Path) -> None:
    records = [record_of(row, index) for index, row in enumerate((A, B))]
    assert found_rows(tmp_path, [CORRECTED_A, B], records) == [0, 1]
    with Dataset(str(tmp_path / "rows.jsonl")) as dataset, pytest.raises(RowNotFoundError, match="is not in"):
        dataset.index_of(next(iter(read_records(tmp_path / "out.jsonl"))))


def test_a_row_that_was_changed_is_found_beside_rows_that_were_moved(tmp_path: Path) -> None:
    records = [record_of(row, index) for index, row in enumerate((A, B, C))]
    assert found_rows(tmp_path, [CORRECTED_A, C, B], records) == [0, 2, 1]


def test_a_row_that_was_removed_is_never_taken_for_the_one_in_its_place(tmp_path: Path) -> None:
    records = [record_of(row, index) for index, row in enumerate((A, B, C))]
    removed, *others = found_rows(tmp_path, [B, C], records)
    assert others == [0, 1]
    assert str(removed).startswith(f"input: {tmp_path / 'out.jsonl'}, line 1 ")
    assert "row 0" in str(removed)


def test_a_row_is_not_taken_for_one_without_rollouts_if_rows_were_moved(tmp_path: Path) -> None:
    removed, moved = found_rows(tmp_path, [D, A], [record_of(B, 0), record_of(A, 2)])
    assert moved == 1
    assert "rows were moved" in str(removed)


def test_a_row_with_only_failures_is_known_too(tmp_path: Path) -> None:
    write_lines(tmp_path / "out_failures.jsonl", [{"cause": "model", "row": B, **record_of(B, 1)}])
    (removed,) = found_rows(tmp_path, [B], [record_of(A, 0)])
    assert "other rollouts" in str(removed)


def test_a_row_at_an_index_that_the_dataset_does_not_have_is_not_found(tmp_path: Path) -> None:
    (removed,) = found_rows(tmp_path, [A], [record_of(B, 5)])
    assert "it has no row 5 either" in str(removed)
