"""What processes use: CPU time and memory, as the Linux kernel counts them under /proc."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_OWN_TIMES_AT, _REAPED_TIMES_AT = slice(11, 13), slice(13, 15)
"""Where /proc/<pid>/stat has user and system time, counted from behind the command's name."""


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
    """User and system time of the processes since they started, in steps of a clock tick (10 ms as a rule)."""
    return sum(sum(_times(pid)[_OWN_TIMES_AT]) for pid in pids) / _TICKS_PER_S


def tree_cpu_s(pid: int) -> float:
    """As `cpu_s`, of a process and all it ever started, those that have ended included."""
    pids = tree(pid)
    reaped = sum(sum(_times(each)[_REAPED_TIMES_AT]) for each in pids) / _TICKS_PER_S
    return cpu_s(pids) + reaped


def memory(pids: Iterable[int]) -> Memory:
    """What the processes hold now."""
    used = [_rollup(pid) for pid in pids]
    return Memory(*(sum(each[key] for each in used) * 1024 / 1e6 for key in ("Rss", "Pss")))


def _times(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/stat").read_text()
    return [int(field) if field.lstrip("-").isdigit() else 0 for field in text.rpartition(")")[2].split()]


def _rollup(pid: int) -> dict[str, int]:
    """Sizes in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
