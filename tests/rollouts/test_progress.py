"""The progress of a collection on a terminal."""

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios

import pytest

from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.progress import Progress


@pytest.mark.parametrize(("columns", "shown"), [(80, 80), (0, 80), (200, 200), (40, 40)])
def test_the_bar_fits_the_terminal(columns: int, shown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 columns are a terminal that does not say its size."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    helper = RolloutCollectionHelper()
    helper.total = 20
    helper.running_metrics = RunningMetrics(num_repeats=1)
    helper.running_metrics.add({"reward": 0.5, "_task_index": 0, "_repeat_index": 0})
    helper.found = 1
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        progress = Progress(helper, is_quiet=False)
        progress.start()
        progress.close()
        terminal.flush()
    seen = b""
    with contextlib.suppress(OSError):  # which is how a terminal ends
        while part := os.read(reader, 65536):
            seen += part
    os.close(reader)
    text = seen.decode()
    lines = [line.strip("\n") for line in text.split("\r") if line.strip()]
    assert max(map(len, lines)) <= shown
    last = lines[-1]
    assert "1/20" in last
    if shown >= 80:
        assert "reward 0.500, 0 failed, 0 in flight" in last
