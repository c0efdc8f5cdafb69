"""The figures as Markdown."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata

from nemo_gym.bench.capacity_model import CapacityModel
from nemo_gym.bench.measure import Measured
from nemo_gym.bench.watch import Machine
from nemo_gym.bench.workload import Point

SATURATED = 0.85
"""A share of a limit above which more load makes everything slower."""


def shares_of_limits(measured: Measured, machine: Machine) -> dict[str, float]:
    """How much of each limit was used at the peak."""
    own, endpoint = measured.usage, measured.endpoint_usage
    return {
        "one event loop": own.busiest_process,
        "all cores": (own.cores + endpoint.cores) / machine.cores,
        "memory": (own.memory_mb + endpoint.memory_mb) / machine.memory_mb,
        "open files": own.open_files / machine.open_files,
        "the simulated endpoint": endpoint.busiest_process,
    }


def first_limit(shares: dict[str, float], measured: Measured) -> str:
    """The resource that is used up first, in words."""
    name = max(shares, key=lambda resource: shares[resource])
    if shares[name] >= SATURATED:
        return f"{name} ({shares[name]:.0%})"
    if measured.usage.busy_machine >= SATURATED:
        return f"other work on this machine ({measured.usage.busy_machine:.0%} of all cores are busy)"
    if measured.most_in_flight < 0.95 * min(measured.point.in_flight, measured.point.rollouts):
        return f"none; {measured.most_in_flight:,} were in flight at most (next: {name}, {shares[name]:.0%})"
    return f"none: the model's latency (next: {name}, {shares[name]:.0%})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def about(machine: Machine) -> str:
    """When and where."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    versions = f"nemo-gym {metadata.version('nemo-gym')}, Python {platform.python_version()}"
    return (
        f"{now}, {versions}, {machine.cores} cores, {machine.memory_mb / 1000:.1f} GB of memory, "
        f"{machine.open_files:,} open files a process, load {os.getloadavg()[0]:.1f}."
    )


def shown(point: Point) -> str:
    """A load in words."""
    turns = f"{point.turns} {'turn' if point.turns == 1 else 'turns'}"
    return f"{point.in_flight:,} in flight, {turns}, {size(point.payload_bytes)}"


def capacity_table(points: Sequence[Measured], machine: Machine) -> str:
    """One line for each point, with the share of each limit and what saturates first."""
    head = [
        *("in flight", "turns", "payload", "latency", "scored", "failed", "rollouts/s", "of ideal", "CPU ms"),
        *("p50 s", "p99 s", "MB", "one loop", "all cores", "memory", "files", "endpoint", "saturates first"),
    ]
    return table(head, [_row(measured, machine) for measured in points])


def _row(measured: Measured, machine: Machine) -> list[str]:
    point, shares = measured.point, shares_of_limits(measured, machine)
    failed = ", ".join(f"{cause} {count}" for cause, count in measured.failed.items()) or "0"
    return [
        *(f"{point.in_flight:,}", str(point.turns), size(point.payload_bytes), point.latency),
        *(f"{measured.scored:,} of {point.rollouts:,}", failed, f"{measured.rate:,.1f}"),
        *(f"{measured.share_of_ideal_rate:.0%}" if measured.mean_latency_s else "-", f"{measured.cpu_ms:.2f}"),
        *(f"{measured.p50_s:.2f}", f"{measured.p99_s:.2f}", f"{measured.usage.memory_mb:.0f}"),
        *(f"{share:.0%}" for share in shares.values()),
        first_limit(shares, measured),
    ]


def size(count: int) -> str:
    """A number of bytes."""
    for unit, name in ((2**20, "MB"), (2**10, "KB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} B"


def model_page(model: CapacityModel) -> str:
    """The fitted model and how well it predicts points that it has not seen."""
    constant, turn, new_kb, old_item, old_kb = model.cpu
    base, in_flight, conversation = model.memory
    lines = [
        f"CPU ms of a rollout = {constant:.3f} + {turn:.3f} * turns + {new_kb:.5f} * KB received "
        f"+ {old_item:.5f} * turns sent again + {old_kb:.6f} * KB sent again",
        f"MB = {base:.0f} + in flight * ({in_flight:.4f} + {conversation:.5f} * turns * (1 + payload KB))",
    ]
    head = ["held out", "CPU ms predicted", "measured", "error", "MB predicted", "measured", "error"]
    rows = [
        [
            shown(each.measured.point),
            *(f"{each.cpu_ms:.2f}", f"{each.measured.cpu_ms:.2f}", f"{each.cpu_error:+.0%}"),
            *(f"{each.memory_mb:.0f}", f"{each.measured.usage.memory_mb:.0f}", f"{each.memory_error:+.0%}"),
        ]
        for each in model.held_out
    ]
    return "\n\n".join([*lines, table(head, rows)])


def forecast_table(model: CapacityModel, points: Sequence[Measured], machine: Machine, *, nodes: int) -> str:
    """What nodes like this machine carry of the kinds of rollout that were measured, by the model."""
    kinds = dict.fromkeys((each.point.turns, each.point.payload_bytes) for each in points)
    latency_s = sum(each.mean_latency_s for each in points) / len(points)
    rows = []
    for turns, payload in kinds:
        carried = model.capacity(
            nodes=nodes,
            cores=machine.cores,
            memory_mb=machine.memory_mb,
            open_files=machine.open_files,
            turns=turns,
            payload_bytes=payload,
            latency_s=latency_s,
        )
        what = [str(turns), size(payload), f"{latency_s:.2f} s"]
        rows.append([*what, f"{carried.rollouts_per_s:,.0f}", f"{carried.in_flight:,.0f}", carried.limit])
    title = f"{nodes} {'node' if nodes == 1 else 'nodes'} like this one, one worker a core, would carry:"
    return f"{title}\n\n{table(['turns', 'payload', 'latency', 'rollouts/s', 'in flight', 'limit'], rows)}"
