"""What the processes of a sandbox use, read from /proc, and killing them all."""

from __future__ import annotations

import os
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
KILL = 9
KILL_ROUNDS = 200


class Process:
    __slots__ = ("cpu_s", "is_zombie", "memory", "parent", "pid")

    def __init__(self, pid: int, parent: int, cpu_s: float, memory: int, is_zombie: bool) -> None:
        self.pid, self.parent, self.cpu_s, self.memory, self.is_zombie = pid, parent, cpu_s, memory, is_zombie


def processes(root: int | None) -> list[Process]:
    """All processes of this PID namespace but pid 1 and this one; with `root`, the descendants of that process."""
    found = [process for pid in os.listdir("/proc") if pid.isdigit() and (process := _process(int(pid)))]
    if root is None:
        own = os.getpid()
        return [process for process in found if process.pid not in (1, own)]
    family, grew = {root}, True
    while grew:
        children = {process.pid for process in found if process.parent in family} - family
        family |= children
        grew = bool(children)
    return [process for process in found if process.pid in family and process.pid != root]


def _process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    cpu = sum(map(int, fields[11:15])) * TICK_S  # also of its children that have ended
    return Process(pid, int(fields[1]), cpu, int(fields[21]) * PAGE, fields[0] in (b"Z", b"X"))


def kill_processes(root: int | None, keep: set[int]) -> None:
    """Kill everything but `keep`, again and again, until nothing new appears."""
    for _ in range(KILL_ROUNDS):
        alive = [process for process in processes(root) if process.pid not in keep and not process.is_zombie]
        if not alive:
            return
        for process in alive:
            kill(process.pid)
        time.sleep(0.001)
    if root is None:
        kill(-1)  # all but this process, in one system call that no fork can overtake


def end_descendants() -> None:
    """Kill all descendants of this child subreaper. One that forks while /proc is read can be missed there, but while
    any is left, this process has a child."""
    while _has_child():
        kill_processes(os.getpid(), keep=set())


def _has_child() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill(pid: int, number: int = KILL) -> None:
    """Send a signal to a process, if it is still there."""
    try:
        os.kill(pid, number)
    except OSError:
        return


def inodes_used(path: str) -> int:
    counts = os.statvfs(path)
    return counts.f_files - counts.f_ffree


def is_folder_full(path: str, *, max_bytes: int, max_files: int) -> bool:
    """True if there is more below a folder than may be. Counting stops there."""
    total, count, folders = 0, 0, [path]
    while folders and total <= max_bytes and count <= max_files:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue
        count += len(entries)
        for entry in entries:
            try:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
            except OSError:
                continue
    return total > max_bytes or count > max_files
