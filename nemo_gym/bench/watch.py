"""Watch processes while they work: CPU time, memory and open files, again and again."""

import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from nemo_gym.bench.processes import cpu_s, memory, tree
from nemo_gym.compute.pool import available_cores

SAMPLE_EVERY_S = 0.25
WINDOW = 4
"""Samples that one rate of CPU use is taken over: a second."""
MIN_WINDOW_S = 0.4


@dataclass(slots=True)
class Usage:
    """What a group of processes has used at most."""

    memory_mb: float = 0.0
    """All together; what they share counts once."""
    open_files: int = 0
    """Of the process with the most."""
    busiest_process: float = 0.0
    """Cores that one process has used, over a second."""
    cores: float = 0.0
    """Cores that all have used, over a second."""
    busy_machine: float = 0.0
    """The share of all cores that any process of the machine has used, over the whole time."""


@dataclass
class Watcher:
    """A context manager that samples process trees in a thread."""

    roots: Callable[[], Sequence[int]]
    has_begun: Callable[[], bool] = lambda: True
    """CPU use does not count before, such as that of the imports of a command."""
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
    """What there is to use."""

    cores: int
    memory_mb: float
    open_files: int

    @classmethod
    def here(cls) -> "Machine":
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = 2**30 if hard == resource.RLIM_INFINITY else hard
        return cls(available_cores(), _mb(), files)


def _busy_and_all_s() -> tuple[float, float]:
    """CPU time of all cores since the machine was started: used, and in all."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0), sum(times)


def _mb() -> float:
    """The memory of this machine, or of the container that this process is in."""
    total = psutil.virtual_memory().total
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total / 1e6
