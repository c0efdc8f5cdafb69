"""What processes use: CPU time and memory, as the Linux kernel counts them."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_REAPED_TIMES_AT = slice(13, 15)
"""Where /proc/<pid>/stat has user and system time of children that have ended, counted from behind the name."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory held by some processes together. A page that two of them share counts once in `pss`, twice in `rss`."""

    rss_mb: float
    pss_mb: float


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return [pid, *(descendant for child in children for descendant in tree(child))]


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of the processes since they started, to the nanosecond."""
    return sum(time.clock_gettime(_cpu_clock(pid)) for pid in pids)


def tree_cpu_s(pid: int) -> float:
    """As `cpu_s`, of a process and all it ever started, those that have ended included."""
    pids = tree(pid)
    reaped_ticks = sum(int(ticks) for each in pids for ticks in _stat(each)[_REAPED_TIMES_AT])
    return cpu_s(pids) + reaped_ticks / _TICKS_PER_S


def memory(pids: Iterable[int]) -> Memory:
    """What the processes hold now."""
    used = [_rollup(pid) for pid in pids]
    return Memory(*(sum(each[key] for each in used) * 1024 / 1e6 for key in ("Rss", "Pss")))


def _cpu_clock(pid: int) -> int:
    """What `clock_getcpuclockid` of the C library gives: the number of the clock that counts a process's CPU time."""
    return (~pid << 3) | 2


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _rollup(pid: int) -> dict[str, int]:
    """Sizes in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
