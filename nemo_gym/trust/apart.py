"""Run a check in a process of its own, which is killed if the verifier gets stuck where nothing can interrupt it, such
as in the power of two large numbers. The check then starts again without that response."""

import contextlib
import multiprocessing
import os
import pickle
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nemo_gym.errors import GymError
from nemo_gym.trust.report import TrustReport
from nemo_gym.trust.scoring import Beat

STUCK_CPU_S, STUCK_S = 3.0, 20.0
"""CPU and wall time after which a response whose time limit is over is stuck."""
CHECK_EVERY_S = 0.2
MAX_RESTARTS = 4
MEMORY_BYTES = 6 * 2**30
"""Address space of the process beyond what it has at its start: a verifier must not take all memory."""


class StuckError(GymError):
    """The process of a check ended without a report."""


Beats = Callable[[Beat], None]
Job = Callable[[Beats, frozenset[str]], TrustReport]
"""A check: it says what it verifies, skips the responses of these names, and returns its report."""


def run_apart(job: Job) -> TrustReport:
    """Run a check in a forked process. Call it without a running event loop."""
    stuck: list[str] = []
    while True:
        found = _attempt(job, frozenset(stuck))
        if isinstance(found, TrustReport):
            return found
        if isinstance(found, BaseException):
            raise found
        if len(stuck) >= MAX_RESTARTS:
            raise StuckError(f"The verifier gets stuck again and again: {', '.join(stuck)}.")
        stuck.append(found)


def _attempt(job: Job, skipped: frozenset[str]) -> TrustReport | BaseException | str:
    """The report, or the name of the response at which the process got stuck or died."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, sending, skipped))
    process.start()
    sending.close()
    try:
        return _watch(process, receiving)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        receiving.close()


def _watch(process: Any, receiving: Connection) -> TrustReport | BaseException | str:
    beat, since, cpu = Beat("start", 600.0), time.monotonic(), 0.0
    while True:
        if receiving.poll(CHECK_EVERY_S):
            try:
                kind, value = pickle.loads(receiving.recv_bytes())
            except (EOFError, OSError):
                return beat.name
            if kind != "beat":
                return value  # type: ignore[no-any-return]
            beat, since, cpu = value, time.monotonic(), _cpu_of(process.pid)
        elif time.monotonic() - since > beat.timeout_s + 1:
            used = _cpu_of(process.pid) - cpu
            if used > STUCK_CPU_S or time.monotonic() - since > beat.timeout_s + STUCK_S * 6:
                return beat.name


def _cpu_of(pid: int) -> float:
    """CPU seconds of a process, where the system says so."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return time.monotonic()


def _child(job: Job, sending: Connection, skipped: frozenset[str]) -> None:
    def send(kind: str, value: Any) -> None:
        sending.send_bytes(pickle.dumps((kind, value)))

    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))
    try:
        report = job(lambda beat: send("beat", beat), skipped)
    except BaseException as error:
        send("error", error if isinstance(error, GymError) else StuckError(f"{type(error).__name__}: {error}"))
    else:
        send("report", report)
