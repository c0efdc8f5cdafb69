"""Commands that a measurement runs."""

import sys
from pathlib import Path

import psutil

from nemo_gym.bench.processes import Command
from tests.polling import until_sync


def test_a_command_says_how_it_ended_and_what_it_used(tmp_path: Path) -> None:
    with Command([sys.executable, "-c", "print(sum(range(10**6))); exit(3)"], log=tmp_path / "log.txt") as command:
        ended = command.wait()
    assert (ended.exit_code, ended.cpu_s > 0) == (3, True)
    assert (tmp_path / "log.txt").read_text().strip() == "499999500000"


def test_a_command_that_is_left_before_its_end_is_stopped(tmp_path: Path) -> None:
    sleeping = "import time; print('ready', flush=True); time.sleep(600)"
    with Command([sys.executable, "-c", sleeping], log=tmp_path / "log.txt") as command:
        until_sync((tmp_path / "log.txt").read_text)
    assert not psutil.pid_exists(command.pid)
