"""The results of a run: what was measured, which targets are met, and how both read as a page."""

import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bench.latency import Latency
from bench.load import Settings
from bench.rollouts import BARE, ONE_PROCESS, OVER_HTTP, TWO_TURNS, Figure
from bench.start import Start

MOST_BARE_REQUESTS = {ONE_PROCESS: 2.5, OVER_HTTP: 5.0}
"""What a rollout may cost: the endpoint's answer, and about as much again to decode, call, verify and encode."""
MOST_START_CPU_S = 3.0
MOST_IDLE_MB = 200.0


@dataclass(frozen=True, slots=True)
class Machine:
    """When and where, as the run begins."""

    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    python: str = platform.python_version()
    cores: int = len(os.sched_getaffinity(0))
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """How many processes others keep busy. More than there are cores, and the figures are those of a full machine."""

    def __str__(self) -> str:
        return f"{self.date}, Python {self.python}, {self.cores} cores"


@dataclass(frozen=True, slots=True)
class Target:
    """A figure, and the most it may be."""

    what: str
    value: float
    most: float
    unit: str
    met: bool


@dataclass(frozen=True, slots=True)
class Results:
    """All that a run found out."""

    machine: Machine
    settings: Settings
    start: Start
    rollouts: dict[str, Figure]
    latency: list[Latency]
    targets: list[Target]


def targets_of(start: Start, rollouts: dict[str, Figure]) -> list[Target]:
    """The figures that have a target."""
    bare = "bare requests of CPU time"
    found = [(name, rollouts[name].ratio, most, bare) for name, most in MOST_BARE_REQUESTS.items()]
    found.append(("start of all servers", start.cpu_s, MOST_START_CPU_S, "s of CPU time"))
    found.append(("idle stack", start.memory.pss_mb, MOST_IDLE_MB, "MB (PSS)"))
    return [Target(what, value, most, unit, value <= most) for what, value, most, unit in found]


def as_markdown(results: Results) -> str:
    """The page."""
    machine, settings = results.machine, results.settings
    parts = [
        "# Benchmark",
        f"{machine} with a load of {machine.load:.1f}. Made by `python -m bench`: the medians of "
        f"{results.rollouts[BARE].rounds} rounds, {settings.in_flight} in flight, replies of {settings.reply_chars} "
        "characters. A ratio compares with a bare aiohttp request to the same endpoint in the same round.",
        _targets(results.targets),
        "## CPU time",
        _rollouts(results.rollouts),
        "## Start",
        _start(results.start),
        f"## Latency above the model's {settings.latency_s:g} s",
        _latency(results.latency),
    ]
    return "\n\n".join(parts) + "\n"


def _targets(targets: list[Target]) -> str:
    rows = [
        [each.what, f"{each.value:.2f} {each.unit}", f"at most {each.most:g}", "met" if each.met else "**missed**"]
        for each in targets
    ]
    return table(["what", "found", "target", ""], rows)


def _rollouts(figures: dict[str, Figure]) -> str:
    head = ["", "CPU ms, all processes", "ratio", "CPU ms, calling process", "ratio", "a second"]
    rows = []
    for name in (BARE, ONE_PROCESS, TWO_TURNS, OVER_HTTP):
        each = figures[name]
        found = f"{each.all_ms:.3f}", f"{each.ratio:.2f}", f"{each.own_ms:.3f}", f"{each.own_ratio:.2f}"
        rows.append([name, *found, f"{each.calls_per_s:.0f}"])
    return table(head, rows)


def _start(start: Start) -> str:
    head = ["CPU s until ready", "ratio to the imports alone", "seconds", "processes", "PSS MB", "RSS MB"]
    row = [
        f"{start.cpu_s:.2f}",
        f"{start.ratio:.2f}",
        f"{start.wall_s:.2f}",
        str(start.processes),
        f"{start.memory.pss_mb:.0f}",
        f"{start.memory.rss_mb:.0f}",
    ]
    return table(head, [row])


def _latency(latency: list[Latency]) -> str:
    head = ["in flight", "bare p50 ms", "rollout p50 ms", "ratio", "bare p99 ms", "rollout p99 ms", "ratio"]
    rows = [
        [
            str(each.in_flight),
            *_compared(each.bare.p50_ms, each.rollout.p50_ms),
            *_compared(each.bare.p99_ms, each.rollout.p99_ms),
        ]
        for each in latency
    ]
    return table(head, rows)


def _compared(bare: float, measured: float) -> list[str]:
    return [f"{bare:.1f}", f"{measured:.1f}", f"{measured / bare:.1f}"]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
