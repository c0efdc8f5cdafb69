"""The demo shows a mix of rewards, or with the scripted model at least one of each."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_gym as gym
from nemo_gym.cli.demo import REPLIES, ROWS, Questions, report
from nemo_gym.testing import rows_of


@pytest.mark.slow
def test_the_demo_solves_a_third_and_says_what_to_type_next(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.demo"], cwd=tmp_path, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    solved = re.search(r"^(\d+) of 16 rollouts solved\.$", done.stdout, re.MULTILINE)
    assert solved is not None
    assert int(solved[1]) >= 6
    assert "A failed one:" in done.stdout
    assert "ng eval mcqa --model local" in done.stdout
    records = rows_of(tmp_path / "results/demo/rollouts.jsonl")
    assert all(record["reward"] == 0 for record in records if record["response"]["incomplete_details"])


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        *(("It has 8 legs.", 1.0), ("A spider has eight legs.", 1.0), ("**Eight**", 1.0)),
        *(("8 or 10 legs.", 0.0), ("Eighty legs.", 0.0), ("Four, and four more make eight.", 0.0), ("", 0.0)),
    ],
)
def test_an_answer_counts_in_any_form_and_only_alone(reply: str, reward: float) -> None:
    (spider,) = (row for row in ROWS if "spider" in row["prompt"])
    result = gym.evaluate(Questions, [spider], model=gym.Scripted([{"say": reply}]), progress=False)
    assert [rollout.reward for rollout in result.rollouts] == [reward]


def test_both_kinds_of_conversation_are_shown() -> None:
    result = gym.evaluate(Questions, ROWS, model=gym.Scripted(REPLIES), progress=False)
    lines = list(report(list(result.rollouts)))
    assert "1 of 8 rollouts solved." in lines[0]
    assert lines.index("A solved one:") < lines.index("A failed one:")
    assert "  expected   Paris" in lines
