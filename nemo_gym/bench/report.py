"""Reports of measurements in Markdown, and the capacity model that is fitted to them."""

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata

from nemo_gym.bench.measure import Measured, Point
from nemo_gym.bench.processes import Machine
from nemo_gym.errors import GymError

HOLD_OUT_EVERY = 3
"""Every third measurement is not used for the fit, but to check it."""
MIN_POINTS = 9
USABLE_SHARE = 0.7
"""Share of CPU time to plan with. The rest is for peaks, which would increase latency."""


def cpu_features(measured: Measured) -> list[float]:
    """Return the cost terms of a rollout: constant, per turn, per new KB, per item sent again, per KB sent again."""
    return _cpu_features(measured.point.turns, measured.point.payload_bytes / 1024)


def _cpu_features(turns: int, payload_kb: float) -> list[float]:
    again = turns * (turns - 1) / 2
    return [1.0, turns, turns * payload_kb, again, again * payload_kb]


def memory_features(measured: Measured) -> list[float]:
    """Return the memory terms: constant, per rollout in flight, and per conversation."""
    in_flight, point = min(measured.point.in_flight, measured.point.rollouts), measured.point
    return [1.0, in_flight, in_flight * point.turns * (1 + point.payload_bytes / 1024)]


def fit(rows: Sequence[list[float]], values: Sequence[float]) -> list[float]:
    """Fit non-negative coefficients by least squares of the relative errors."""
    kept = list(range(len(rows[0])))
    while True:
        weighted = [[row[index] / value for index in kept] for row, value in zip(rows, values, strict=True)]
        found = _solve_least_squares(weighted, [1.0] * len(weighted))
        lowest = min(range(len(kept)), key=lambda index: found[index])
        if found[lowest] >= 0 or len(kept) == 1:
            result = [0.0] * len(rows[0])
            for index, value in zip(kept, found, strict=True):
                result[index] = max(0.0, value)
            return result
        del kept[lowest]


def _solve_least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Solve the normal equations, with scaled columns and a small ridge term for dependent columns."""
    width = len(rows[0])
    scale = [math.sqrt(sum(row[index] ** 2 for row in rows)) or 1.0 for index in range(width)]
    scaled = [[row[index] / scale[index] for index in range(width)] for row in rows]
    matrix = [
        [sum(row[a] * row[b] for row in scaled) + (1e-9 if a == b else 0.0) for b in range(width)]
        + [sum(row[a] * value for row, value in zip(scaled, values, strict=True))]
        for a in range(width)
    ]
    for pivot in range(width):
        best = max(range(pivot, width), key=lambda index: abs(matrix[index][pivot]))
        matrix[pivot], matrix[best] = matrix[best], matrix[pivot]
        for index in range(width):
            if index != pivot:
                factor = matrix[index][pivot] / matrix[pivot][pivot]
                matrix[index] = [a - factor * b for a, b in zip(matrix[index], matrix[pivot], strict=True)]
    return [matrix[index][-1] / matrix[index][index] / scale[index] for index in range(width)]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A measurement that was not used for the fit, with its prediction."""

    measured: Measured
    cpu_ms: float
    memory_mb: float

    @property
    def cpu_error(self) -> float:
        return self.cpu_ms / self.measured.cpu_ms - 1

    @property
    def memory_error(self) -> float:
        return self.memory_mb / self.measured.usage.memory_mb - 1


@dataclass(frozen=True, slots=True)
class Capacity:
    """Predicted capacity of nodes."""

    rollouts_per_s: float
    in_flight: float
    limit: str


@dataclass(frozen=True, slots=True)
class CapacityModel:
    """Coefficients of `cpu_features` in ms, and of `memory_features` in MB."""

    cpu: list[float]
    memory: list[float]
    held_out: list[HeldOut]

    @classmethod
    def of(cls, points: Sequence[Measured]) -> "CapacityModel":
        """Fit to two thirds of the measurements and predict the others."""
        good = [point for point in points if point.cpu_ms > 0 and point.usage.memory_mb > 0]
        used = [point for number, point in enumerate(good) if number % HOLD_OUT_EVERY != HOLD_OUT_EVERY - 1]
        if len(good) < MIN_POINTS:
            raise GymError(
                f"{len(good)} measurements are too few to fit the capacity model; expected at least {MIN_POINTS}."
            )
        cpu = fit([cpu_features(point) for point in used], [point.cpu_ms for point in used])
        memory = fit([memory_features(point) for point in used], [point.usage.memory_mb for point in used])
        others = [point for point in good if not any(point is each for each in used)]
        held_out = [
            HeldOut(point, _dot(cpu, cpu_features(point)), _dot(memory, memory_features(point))) for point in others
        ]
        return cls(cpu, memory, held_out)

    def capacity(
        self,
        *,
        nodes: int,
        cores: int,
        memory_mb: float,
        open_files: int,
        turns: int,
        payload_bytes: int,
        latency_s: float,
    ) -> Capacity:
        """Predict the capacity of nodes with these resources, and one worker per core, for one kind of rollout."""
        payload = payload_bytes / 1024
        cpu_ms = _dot(self.cpu, _cpu_features(turns, payload))
        base_mb, own_mb, conversation_mb = self.memory
        in_flight_mb = own_mb + conversation_mb * turns * (1 + payload)
        seconds = turns * latency_s + cpu_ms / 1000
        limits = {
            "CPU time": USABLE_SHARE * cores * 1000 / cpu_ms * seconds,
            "memory": max(0.0, memory_mb - base_mb * cores) / max(in_flight_mb, 1e-9),
            "open files": cores * open_files / 2,
        }
        limit = min(limits, key=lambda name: limits[name])
        return Capacity(nodes * limits[limit] / seconds, nodes * limits[limit], limit)


def _dot(coefficients: Sequence[float], features: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(coefficients, features, strict=True))


SATURATED = 0.85
"""Share of a limit above which more load makes everything slower."""


def shares_of_limits(measured: Measured, machine: Machine) -> dict[str, float]:
    """Return the share of each limit that was used at the peak."""
    own, endpoint = measured.usage, measured.endpoint_usage
    return {
        "one event loop": own.busiest_process,
        "all cores": (own.cores + endpoint.cores) / machine.cores,
        "memory": (own.memory_mb + endpoint.memory_mb) / machine.memory_mb,
        "open files": own.open_files / machine.open_files,
        "the simulated endpoint": endpoint.busiest_process,
    }


def first_limit(shares: dict[str, float], measured: Measured) -> str:
    """Describe the resource that saturates first."""
    name = max(shares, key=lambda resource: shares[resource])
    if shares[name] >= SATURATED:
        return f"{name} ({shares[name]:.0%})"
    if measured.usage.busy_machine >= SATURATED:
        return f"other work on this machine ({measured.usage.busy_machine:.0%} of all cores are busy)"
    if measured.most_in_flight < 0.95 * min(measured.point.in_flight, measured.point.rollouts):
        return f"none; {measured.most_in_flight:,} were in flight at most (next: {name}, {shares[name]:.0%})"
    return f"none: the model's latency (next: {name}, {shares[name]:.0%})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def about(machine: Machine) -> str:
    """Describe time, versions and machine of a measurement."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    versions = f"nemo-gym {metadata.version('nemo-gym')}, Python {platform.python_version()}"
    return (
        f"{now}, {versions}, {machine.cores} cores, {machine.memory_mb / 1000:.1f} GB of memory, "
        f"{machine.open_files:,} open files a process, load {os.getloadavg()[0]:.1f}."
    )


def shown(point: Point) -> str:
    """Describe a load."""
    turns = f"{point.turns} {'turn' if point.turns == 1 else 'turns'}"
    return f"{point.in_flight:,} in flight, {turns}, {size(point.payload_bytes)}"


def capacity_table(points: Sequence[Measured], machine: Machine) -> str:
    """Return a table with one line per load: the share of each limit, and what saturates first."""
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
    """Format a number of bytes."""
    for unit, name in ((2**20, "MB"), (2**10, "KB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} B"


def model_page(model: CapacityModel) -> str:
    """Describe the fitted model, and its errors on held-out measurements."""
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
    """Return a table of the predicted capacity of nodes like this machine, for the measured kinds of rollout."""
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
