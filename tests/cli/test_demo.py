"""The demo shows a mix of rewards, or with the scripted model at least one of each."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.demo import REPLIES, ROWS, report
from nemo_gym.testing import rows_of


@pytest.mark.slow
def test_the_demo_runs_and_says_what_to_type_next(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.demo"], cwd=tmp_path, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ of 16 rollouts solved\.$", done.stdout, re.MULTILINE)
    assert "A failed one:" in done.stdout
    assert "ng eval mcqa --model local" in done.stdout
    records = rows_of(tmp_path / "results/demo/rollouts.jsonl")
    assert all(record["reward"] == 0 for record in records if record["response"]["incomplete_details"])


def test_both_kinds_of_conversation_are_shown() -> None:
    question = rows_of(ROWS)[0]
    message = {"type": "message", "role": "user", "content": "Capital?"}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": REPLIES[0]["say"]}]}
    base = {"responses_create_params": {"input": [message]}, "response": {"output": [answer]}, **{
        key: question[key] for key in ("options", "expected_answer")
    }}  # fmt: skip
    lines = list(report([{**base, "reward": 1.0}, {**base, "reward": 0.0}]))
    assert "1 of 2 rollouts solved." in lines[0]
    assert lines.index("A solved one:") < lines.index("A failed one:")
    assert "  expected      Paris" in lines
