"""What processes use: CPU time and memory, as the Linux kernel counts them. And their end."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory held by some processes together. A page that two of them share counts once in `pss`, twice in `rss`."""

    rss_mb: float
    pss_mb: float


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of the processes since they started, to the nanosecond."""
    return sum(time.clock_gettime(_cpu_clock(pid)) for pid in pids)


def tree_cpu_s(pid: int) -> float:
    """As `cpu_s`, of a process and all it ever started, those that have ended included."""
    pids = tree(pid)
    times = [psutil.Process(each).cpu_times() for each in pids]
    return cpu_s(pids) + sum(each.children_user + each.children_system for each in times)


def memory(pids: Iterable[int]) -> Memory:
    """What the processes hold now."""
    used = [psutil.Process(pid).memory_full_info() for pid in pids]
    return Memory(rss_mb=sum(each.rss for each in used) / 1e6, pss_mb=sum(each.pss for each in used) / 1e6)


class Ended(NamedTuple):
    """How a command ended, and what it and its children have used."""

    exit_code: int
    cpu_s: float


class Command:
    """A command that runs. It is stopped if it is left before it has ended."""

    def __init__(self, command: Sequence[str], *, log: Path, **options: Any) -> None:
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, **options)
        self.pid = self._process.pid

    def wait(self) -> Ended:
        _, status, used = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return Ended(self._process.returncode, used.ru_utime + used.ru_stime)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def interrupt_on_sigterm() -> None:
    """Have SIGTERM end this program as Ctrl+C does, so that it stops what it has started, also in the background of a
    shell, where SIGINT is ignored otherwise."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))


def _cpu_clock(pid: int) -> int:
    """What `clock_getcpuclockid` of the C library gives: the number of the clock that counts a process's CPU time."""
    return (~pid << 3) | 2
