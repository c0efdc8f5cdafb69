"""Run our commands as a user does: as programs, in a folder of their own."""

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.polling import PATIENCE_S

BIN = Path(sys.executable).parent


TEST_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
"""The number of this process of those that test at the same time."""
PORTS = range(21_000, 32_000)
"""Below those that the operating system gives away (from 32,768), above those of servers (to 20,000)."""


def _ports() -> Iterator[int]:
    """The ports of this process, whose test processes take turns by their number, from a random one on."""
    own = PORTS[TEST_PROCESS::10]
    start = random.SystemRandom().randrange(len(own))
    return itertools.cycle([*own[start:], *own[:start]])


_own_ports = _ports()


READ_REST_S = 5.0
"""For what an ended command has printed. A process that it left behind may keep the pipe open."""


def free_port() -> int:
    """A port that nobody listens on, and that nobody else is given until the caller does."""
    for port in _own_ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("endless")


def ng(command: str, *arguments: str, cwd: Path, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [str(BIN / command), *arguments], cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )


class Running:
    """A command that goes on, with what it has printed so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line.rstrip())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, words: str, *, timeout_s: float = PATIENCE_S) -> None:
        """Until it has printed `words`."""
        given_up_at = time.monotonic() + timeout_s
        while words not in self.text:
            if self.process.poll() is not None:
                self._reader.join(READ_REST_S)  # its last words may be on their way
            elif time.monotonic() < given_up_at:
                time.sleep(0.02)
                continue
            assert words in self.text, f"it never said {words!r}:\n{self.text}"

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(READ_REST_S)
        return code


@contextmanager
def started(command: str, *arguments: str, cwd: Path) -> Iterator[Running]:
    """Start a command; whatever happens, nothing of it is left afterwards."""
    process = subprocess.Popen(
        [str(BIN / command), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    running = Running(process)
    try:
        yield running
    finally:
        left = [process.pid, *(child.pid for child in running.workers())] if process.poll() is None else []
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # some end by themselves when the first one is gone
                os.kill(pid, signal.SIGKILL)
        process.wait(10)
        if process.stdout:
            running._reader.join(READ_REST_S)
            process.stdout.close()
