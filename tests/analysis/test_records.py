"""Stored rollouts are read line by line."""

from pathlib import Path

import pytest

from nemo_gym.analysis.dataset_rows import prompt_digest
from nemo_gym.rollouts.store import StoredRolloutsError, read_records
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
