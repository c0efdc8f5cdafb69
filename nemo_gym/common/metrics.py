"""Metrics of a process for Prometheus: families of samples, their text, what every process reports of itself, and how
busy stages and workers are by their metrics.

Counting is plain addition in `statistics`; samples are made when somebody asks. The processes of a
run pass them on as JSON.
"""

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypedDict

import msgspec

from nemo_gym.common.statistics import Histogram

Kind = Literal["counter", "gauge", "histogram"]

LAG_EVERY_S = 0.25
"""Short enough to see every stall of a second, long enough to cost next to nothing."""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_STARTED_AT = time.time()


class Sample(NamedTuple):
    """One value of a family."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct):
    """All samples of one metric."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample] = []

    def add(self, value: float, **labels: str) -> None:
        self.samples.append(Sample(self.name, labels, value))

    def add_histogram(self, histogram: Histogram, **labels: str) -> None:
        count = 0
        for bound, more in zip((*map(_number, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            count += more
            self.samples.append(Sample(f"{self.name}_bucket", {**labels, "le": bound}, count))
        self.samples.append(Sample(f"{self.name}_sum", labels, histogram.total))
        self.samples.append(Sample(f"{self.name}_count", labels, count))


encode_families = msgspec.json.encode
decode_families = msgspec.json.Decoder(list[Family]).decode


def exposition(families: Iterable[Family]) -> bytes:
    """Return the text that Prometheus reads. Families without samples are left out, those of one name are joined."""
    joined: dict[str, list[str]] = {}
    for family in families:
        if family.samples:
            head = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
            lines = (f"{name}{_braces(labels)} {_number(value)}" for name, labels, value in family.samples)
            joined.setdefault(family.name, head).extend(lines)
    return "".join(f"{line}\n" for lines in joined.values() for line in lines).encode()


def _braces(labels: Mapping[str, str]) -> str:
    listed = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{listed}}}" if listed else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 9))


class LoopLag:
    """Measures how late a timer of the running event loop is called, again and again."""

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
    """Yield CPU time, memory, open files and threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found: Sequence[tuple[str, Kind, str, float]] = (
        ("process_cpu_seconds_total", "counter", "CPU time used.", used.ru_utime + used.ru_stime),
        ("process_resident_memory_bytes", "gauge", "Memory used.", _resident_bytes()),
        ("process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/dev/fd"))),
        ("process_max_fds", "gauge", "Most file descriptors it may open.", soft),
        ("process_start_time_seconds", "gauge", "When it started, as Unix time.", _STARTED_AT),
        ("nemo_gym_process_threads", "gauge", "Python threads.", threading.active_count()),
    )
    for name, kind, text, value in found:
        if value != resource.RLIM_INFINITY:
            yield Family(name, kind, text, [Sample(name, labels, value)])


def _resident_bytes() -> int:
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS has no /proc and counts bytes
    return peak if sys.platform == "darwin" else peak * 1024


# How busy servers are


STAGES = ("seed", "model", "tool", "verify")
"""The stages of a rollout, in their order. Requests to agents are of the stages `rollout` and `agent`."""
_WORKER_LOAD = {
    "nemo_gym_rollouts_in_flight": "rollouts",
    "process_cpu_seconds_total": "cpu_seconds",
    "process_resident_memory_bytes": "memory_bytes",
    "process_open_fds": "open_files",
    "nemo_gym_worker_up": "is_up",
}
"""The metrics that say how busy a worker is, with the names under which a live run reports them."""


def worker_loads(families: Iterable[Family]) -> list[dict[str, Any]]:
    """Return how busy each worker is."""
    workers: dict[str, dict[str, float]] = defaultdict(dict)
    for family in families:
        for _, labels, value in family.samples if family.name in _WORKER_LOAD else ():
            load, name = workers[labels["worker"]], _WORKER_LOAD[family.name]
            load[name] = load.get(name, 0.0) + value
    return [{"worker": name, **load} for name, load in sorted(workers.items())]


class StageLoad(TypedDict):
    """The requests of one stage: how many are in flight, how many ended, and the seconds that these took."""

    in_flight: int
    requests: int
    seconds: float


def stage_loads(families: Iterable[Family]) -> dict[str, StageLoad]:
    """Sum the requests of all servers and workers by the stage of a rollout."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    for family in families:
        samples[family.name] += family.samples
    loads = {stage: StageLoad(in_flight=0, requests=0, seconds=0.0) for stage in STAGES} if samples else {}
    stages: dict[tuple[str, str], str] = {}
    for name, labels, value in samples["nemo_gym_stage_seconds"]:
        stage = stages[labels["server"], labels["path"]] = labels["stage"]
        load = loads.setdefault(stage, StageLoad(in_flight=0, requests=0, seconds=0.0))
        if name.endswith("_sum"):
            load["seconds"] += value
        elif name.endswith("_count"):
            load["requests"] += int(value)
    for _, labels, value in samples["nemo_gym_requests_in_flight"]:
        loads[stages[labels["server"], labels["path"]]]["in_flight"] += int(value)
    return loads
