"""Metrics in the Prometheus text format. Counting is plain addition; the text is made per request."""

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal, Self

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Bucket bounds for anything from a direct call to a long rollout."""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Histogram:
    """How many values fell between fixed bounds, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class RequestStats:
    """What became of the requests to one endpoint."""

    __slots__ = ("failures", "in_flight", "seconds", "succeeded")

    def __init__(self) -> None:
        self.in_flight = self.succeeded = 0
        self.failures: dict[str, int] = {}
        """By cause."""
        self.seconds = Histogram()
        """How long the requests took."""

    def start(self) -> float:
        """Returns what `end` is to be given."""
        self.in_flight += 1
        return monotonic()

    def end(self, started: float, failure: str | None) -> None:
        seconds, histogram = monotonic() - started, self.seconds
        self.in_flight -= 1
        histogram.counts[bisect_left(SECONDS, seconds)] += 1
        histogram.total += seconds
        if failure is None:
            self.succeeded += 1
        else:
            self.failures[failure] = self.failures.get(failure, 0) + 1

    def outcomes(self, success: str) -> dict[str, int]:
        """How many requests ended how."""
        return {success: self.succeeded, **self.failures}


@dataclass(slots=True)
class Family:
    """All values of one name."""

    name: str
    kind: Kind
    help: str
    lines: list[str] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        self.lines.append(f"{self.name}{_braces(labels)} {_number(value)}")

    def add_histogram(self, histogram: Histogram, **labels: str) -> None:
        count = 0
        for bound, more in zip((*map(_number, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            count += more
            self.lines.append(f"{self.name}_bucket{_braces({**labels, 'le': bound})} {count}")
        self.lines.append(f"{self.name}_sum{_braces(labels)} {_number(histogram.total)}")
        self.lines.append(f"{self.name}_count{_braces(labels)} {count}")


def exposition(families: Iterable[Family]) -> str:
    """The text that Prometheus reads. Families without values are left out, those of one name are joined."""
    joined: dict[str, list[str]] = {}
    for family in families:
        if family.lines:
            head = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
            joined.setdefault(family.name, head).extend(family.lines)
    return "".join(f"{line}\n" for lines in joined.values() for line in lines)


def parse_exposition(text: str) -> list[Family]:
    """The families of a text that `exposition` made."""
    found: list[Family] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, description = line[len("# HELP ") :].partition(" ")
            found.append(Family(name, "gauge", description))
        elif found and line.startswith("# TYPE "):
            found[-1].kind = line.rpartition(" ")[2]  # type: ignore[assignment]
        elif found and line:
            found[-1].lines.append(line)
    return found


def _braces(labels: Mapping[str, str]) -> str:
    listed = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{listed}}}" if listed else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 9))


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
