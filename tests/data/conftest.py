"""Commands in the process of the tests."""

import io
import sys
from pathlib import Path
from typing import Protocol

import pytest

import nemo_gym.cli
from tests.data.datasets import Ended


class NgHere(Protocol):
    def __call__(self, name: str, *arguments: str, answer: str = "") -> Ended: ...


@pytest.fixture
def ng_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> NgHere:
    """Run a command in this process, which saves its start-up. `answer` is what is typed."""

    def run(name: str, *arguments: str, answer: str = "") -> Ended:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        capsys.readouterr()
        code = 0
        try:
            getattr(nemo_gym.cli, name.removeprefix("ng_"))()
        except SystemExit as ended:
            code = int(ended.code or 0)
        shown = capsys.readouterr()
        return Ended(code, shown.out, shown.err)

    return run
