"""CPU time and memory of processes, as the Linux kernel counts them, and commands that are measured."""

import os
import resource
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from nemo_gym.compute.pool import available_cores

STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of several processes. A page that two of them share counts once in `pss`, twice in `rss`."""

    rss_mb: float
    pss_mb: float


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_s(pids: Iterable[int]) -> float:
    """Return the user and system time of processes since they started."""
    return sum(time.clock_gettime(_cpu_clock(pid)) for pid in pids)


def tree_cpu_s(pid: int) -> float:
    """Like `cpu_s`, for a process and all its descendants, including those that have ended."""
    pids = tree(pid)
    times = [psutil.Process(each).cpu_times() for each in pids]
    return cpu_s(pids) + sum(each.children_user + each.children_system for each in times)


def memory(pids: Iterable[int]) -> Memory:
    """Return the current memory of processes."""
    used = [psutil.Process(pid).memory_full_info() for pid in pids]
    return Memory(rss_mb=sum(each.rss for each in used) / 1e6, pss_mb=sum(each.pss for each in used) / 1e6)


class Ended(NamedTuple):
    """Exit code of a command, and CPU time of it and its children."""

    exit_code: int
    cpu_s: float


class Command:
    """A running command. Leaving the context stops it."""

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
    """Handle SIGTERM like Ctrl+C, so that this program stops its child processes. SIGINT also works in the
    background of a shell, where it is ignored otherwise."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))


def _cpu_clock(pid: int) -> int:
    """Return the CPU time clock of a process, like `clock_getcpuclockid` of the C library."""
    return (~pid << 3) | 2


SAMPLE_EVERY_S = 0.25
WINDOW = 4
"""Samples per rate of CPU use: one second."""
MIN_WINDOW_S = 0.4


@dataclass(slots=True)
class Usage:
    """Maximum resource usage of a group of processes."""

    memory_mb: float = 0.0
    """Memory of all processes. Shared memory counts once."""
    open_files: int = 0
    """Maximum open files of one process."""
    busiest_process: float = 0.0
    """Maximum cores used by one process, over a second."""
    cores: float = 0.0
    """Maximum cores used by all processes, over a second."""
    busy_machine: float = 0.0
    """Share of all cores in use on the machine, over the whole time."""


@dataclass
class Watcher:
    """A context manager that samples process trees in a thread."""

    roots: Callable[[], Sequence[int]]
    has_begun: Callable[[], bool] = lambda: True
    """CPU use counts only after this is true, so that imports of a command do not count."""
    usage: Usage = field(default_factory=Usage)
    _seen: deque[tuple[float, dict[int, float]]] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._started = _busy_and_all_s()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._thread.join()
        busy_s, all_s = (after - before for after, before in zip(_busy_and_all_s(), self._started, strict=True))
        self.usage.busy_machine = busy_s / max(all_s, 1e-9)

    def _watch(self) -> None:
        while not self._stopped.wait(SAMPLE_EVERY_S):
            with suppress(psutil.Error, OSError):
                self._sample([pid for root in self.roots() for pid in tree(root)])

    def _sample(self, pids: Iterable[int]) -> None:
        now, used = time.monotonic(), {pid: cpu_s([pid]) for pid in pids}
        usage = self.usage
        usage.memory_mb = max(usage.memory_mb, memory(used).pss_mb)
        usage.open_files = max([usage.open_files, *(psutil.Process(pid).num_fds() for pid in used)])
        if not self._seen and not self.has_begun():
            return
        self._seen.append((now, used))
        then, before = self._seen[0]
        if now - then >= MIN_WINDOW_S:
            rates = [(used[pid] - before.get(pid, 0.0)) / (now - then) for pid in used]
            usage.busiest_process = max(usage.busiest_process, *rates)
            usage.cores = max(usage.cores, sum(rates))


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources of this machine."""

    cores: int
    memory_mb: float
    open_files: int

    @classmethod
    def here(cls) -> "Machine":
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = 2**30 if hard == resource.RLIM_INFINITY else hard
        return cls(available_cores(), _mb(), files)


def _busy_and_all_s() -> tuple[float, float]:
    """Return the CPU time of all cores since the machine was started: used, and total."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0), sum(times)


def _mb() -> float:
    """Return the memory of this machine, or of its container."""
    total = psutil.virtual_memory().total
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total / 1e6
