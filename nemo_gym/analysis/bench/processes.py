"""What processes use: CPU time and memory, as the Linux kernel counts them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import psutil


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


def _cpu_clock(pid: int) -> int:
    """What `clock_getcpuclockid` of the C library gives: the number of the clock that counts a process's CPU time."""
    return (~pid << 3) | 2
