"""Stored rollouts are read line by line, and their rows are found again."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.records import Dataset, StoredLine, StoredRolloutsError, prompt_digest, read_records
from nemo_gym.rollouts.types import hash_row
from nemo_gym.testing import example_row
from tests.jsonl import write_lines


def test_records_come_with_their_place(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "out.jsonl", [{"reward": 1}, "", {"reward": 0}])
    found = list(read_records(path))
    assert [stored.record["reward"] for stored in found] == [1, 0]
    assert [stored.place for stored in found] == [f"{path}, line 1", f"{path}, line 3"]
    assert path.read_bytes()[found[1].offset :] == b'{"reward": 0}\n'


def test_half_a_line_at_the_end_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"reward": 1}\n{"rewa')
    assert len(list(read_records(path))) == 1


@pytest.mark.parametrize("bad", ['{"rewa', "[1]", "7"])
def test_any_other_line_that_is_no_record_is_named(tmp_path: Path, bad: str) -> None:
    path = write_lines(tmp_path / "out.jsonl", [{"reward": 1}, bad, {"reward": 1}])
    with pytest.raises(StoredRolloutsError, match="line 2 is"):
        list(read_records(path))


def test_a_prompt_is_the_same_with_its_defaults_filled_in() -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    asked = {"input": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    echoed = {
        "input": [{"content": "Hi", "role": "user", "type": "message"}],
        "instructions": None,
        "temperature": 0.7,
        "tools": [{**tool, "description": None}],
        "user": None,
    }
    digest = prompt_digest({"responses_create_params": asked})
    assert digest is not None
    assert digest == prompt_digest({"responses_create_params": echoed})
    assert digest != prompt_digest({"responses_create_params": {**asked, "instructions": "Be brief."}})
    assert prompt_digest({"responses_create_params": {"input": 7}}) is None
    assert prompt_digest({}) is None


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
        with pytest.raises(StoredRolloutsError, match="was made of row 1"):
            dataset.index_of(StoredLine(0, "a line", {"_task_index": 1}))


def test_a_row_is_found_by_its_prompt_if_there_is_no_mark(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [example_row("a"), "{broken", example_row("b")])
    with Dataset(str(rows)) as dataset:
        (stored,) = read_records(write_lines(tmp_path / "out.jsonl", [{**example_row("b"), "reward": 1.0}]))
        assert (dataset.index_of(stored), dataset.matched_by_prompt) == (2, 1)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"_task_index": 3}, "was made of row 3; .* has the rows 0 to 2"),
        ({"_task_index": -1}, "made of row -1"),
        ({"_task_index": "1"}, "made of row '1'"),
        ({"_task_index": 1, "_row_hash": "0" * 16}, "row 1 of .*, which has changed since"),
        ({"reward": 1.0}, "line 1 has no `_task_index` .* is that of no row"),
        (example_row("unheard of"), "is that of no row"),
        (example_row("twice"), "is that of rows 1, 2 of .* expected exactly one"),
    ],
)
def test_a_record_whose_row_nobody_can_tell_says_what_is_missing(
    tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    rows = write_lines(
        tmp_path / "rows.jsonl", [example_row("once"), example_row("twice"), example_row("twice", more=1)]
    )
    (stored,) = read_records(write_lines(tmp_path / "out.jsonl", [record]))
    with Dataset(str(rows)) as dataset, pytest.raises(StoredRolloutsError, match=message):
        dataset.index_of(stored)


def test_a_changed_row_is_counted_if_that_is_allowed(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [example_row("a")])
    (stored,) = read_records(write_lines(tmp_path / "out.jsonl", [{"_task_index": 0, "_row_hash": "0" * 16}]))
    with Dataset(str(rows), allow_changed=True) as dataset:
        assert (dataset.index_of(stored), dataset.changed) == (0, 1)
