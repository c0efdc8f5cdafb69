"""What this process uses, as Prometheus names it, and how late its event loop is."""

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from nemo_gym.common.metrics import Family, Histogram

_STARTED_AT = time.time()
LAG_EVERY_S = 0.25
"""Short enough to see every stall of a second, long enough to cost next to nothing."""


class LoopLag:
    """Sets a timer on the running loop again and again, and measures how late it is called."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._set_timer()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self._due = self._loop.time() + LAG_EVERY_S
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        self.seconds.add(max(0.0, self._loop.time() - self._due))
        self._set_timer()


def process_families(**labels: str) -> Iterator[Family]:
    """CPU time, memory, open files and threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _one("process_cpu_seconds_total", "counter", "CPU time used.", used.ru_utime + used.ru_stime, labels)
    yield _one("process_resident_memory_bytes", "gauge", "Memory used.", _resident_bytes(), labels)
    yield _one("process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/dev/fd")), labels)
    if soft != resource.RLIM_INFINITY:
        yield _one("process_max_fds", "gauge", "Most file descriptors it may open.", soft, labels)
    yield _one("process_start_time_seconds", "gauge", "When it started, as Unix time.", _STARTED_AT, labels)
    yield _one("nemo_gym_process_threads", "gauge", "Python threads.", threading.active_count(), labels)


def _one(name: str, kind: str, description: str, value: float, labels: dict[str, str]) -> Family:
    family = Family(name, kind, description)  # type: ignore[arg-type]
    family.add(value, **labels)
    return family


def _resident_bytes() -> int:
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS has no /proc and counts bytes
    return peak if sys.platform == "darwin" else peak * 1024
