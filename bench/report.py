"""The results of a benchmark run as a Markdown page."""

import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata

from bench.others import OtherCost
from bench.rollout_cost import ONE_TURN, RolloutCost
from nemo_gym.bench.report import table

TARGETS = {True: (3.0, 4.0), False: (5.0, 6.5)}
"""Bare requests a rollout may cost, in one process and through `ng_run`: of one turn, and of two turns with a tool."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Time and machine at the start of the run."""

    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    python: str = platform.python_version()
    aiohttp: str = field(default_factory=lambda: metadata.version("aiohttp"))
    cores: int = len(os.sched_getaffinity(0))
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """Average number of busy processes in the last minute."""

    def __str__(self) -> str:
        return f"{self.date}, Python {self.python}, aiohttp {self.aiohttp}, {self.cores} cores, load {self.load:.1f}"


@dataclass(frozen=True, slots=True)
class Results:
    """All measurements of a run."""

    machine: Machine
    rows: int
    costs: list[RolloutCost]
    others: list[OtherCost] = field(default_factory=list)


def as_markdown(results: Results) -> str:
    """Return the page."""
    ready = min(cost.ready_cpu_s for cost in results.costs)
    idle = max(cost.idle_pss_mb for cost in results.costs)
    about = (
        f"{results.machine}. Made by `make bench`: {results.rows:,} rollouts of each kind by the real "
        "`ng_collect_rollouts`, alone and with `ng_run`. CPU time of all processes, start-up subtracted. The endpoint "
        "is a raw asyncio protocol; its CPU time does not count in either. The unit is one aiohttp request to the "
        "same endpoint, 64 at once, in the same run."
    )
    head = ["rollout", "bare request", "one process", "target", "through `ng_run`", "target"]
    rows = [_row(cost) for cost in results.costs]
    start = (
        f"`ng_run` is ready after {ready:.2f} s of CPU time and takes {idle:.0f} MB (PSS, all processes) when idle."
    )
    page = f"# Cost of a rollout\n\n{about}\n\n{table(head, rows)}\n\n{start}\n"
    return page if not results.others else f"{page}\n{_others(results)}\n"


def _others(results: Results) -> str:
    """Return the cost of the one-turn rollout in other frameworks, measured in the same way."""
    [own] = [cost for cost in results.costs if cost.name == ONE_TURN.name] or results.costs[:1]
    rows = [["this project, one process", f"{own.one_process_us:,.0f} µs", f"{own.one_process:.2f}", "1"]]
    for other in results.others:
        ratio = other.us / own.one_process_us
        rows.append([other.name, f"{other.us:,.0f} µs", f"{other.us / own.bare_us:,.2f}", f"{ratio:,.0f}"])
    return table(["one-turn rollout", "CPU", "bare requests", "ratio"], rows)


def _row(cost: RolloutCost) -> list[str]:
    one, through = TARGETS[cost.name == ONE_TURN.name]
    return [
        *(cost.name, f"{cost.bare_us:.0f} µs"),
        *(f"{cost.one_process_us:.0f} µs = {cost.one_process:.2f}", _met(cost.one_process, one)),
        *(f"{cost.ng_run_us:.0f} µs = {cost.ng_run:.2f}", _met(cost.ng_run, through)),
    ]


def _met(found: float, most: float) -> str:
    return f"≤ {most:g}: {'met' if found <= most else '**missed**'}"
