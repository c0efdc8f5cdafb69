"""A model of what nodes carry, fitted to measured points: CPU time and memory of a rollout by turns and payload."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nemo_gym.bench.measure import Measured
from nemo_gym.errors import GymError

HOLD_OUT_EVERY = 3
"""Every third point is not used for the fit, but to check it."""
MIN_POINTS = 9
USABLE_SHARE = 0.7
"""Of CPU time: what is left serves peaks, without which latency grows."""


def cpu_features(measured: Measured) -> list[float]:
    """A rollout costs a constant, so much a turn and a new byte, and so much an item and a byte that is sent again."""
    return _cpu_features(measured.point.turns, measured.point.payload_bytes / 1024)


def _cpu_features(turns: int, payload_kb: float) -> list[float]:
    again = turns * (turns - 1) / 2
    return [1.0, turns, turns * payload_kb, again, again * payload_kb]


def memory_features(measured: Measured) -> list[float]:
    """The processes cost a constant, and each rollout in flight a constant and its conversation."""
    in_flight, point = min(measured.point.in_flight, measured.point.rollouts), measured.point
    return [1.0, in_flight, in_flight * point.turns * (1 + point.payload_bytes / 1024)]


def fit(rows: Sequence[list[float]], values: Sequence[float]) -> list[float]:
    """Coefficients, none negative, with the least squares of the relative errors."""
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
    """The normal equations, with columns scaled to one length and a trace of ridge for those that depend on others."""
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
    """A point that was not used for the fit: what was predicted, and what was measured."""

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
    """What some nodes carry."""

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
        """Fit to two thirds of the points and predict the others."""
        good = [point for point in points if point.cpu_ms > 0 and point.usage.memory_mb > 0]
        used = [point for number, point in enumerate(good) if number % HOLD_OUT_EVERY != HOLD_OUT_EVERY - 1]
        if len(good) < MIN_POINTS:
            raise GymError(
                f"{len(good)} points are too few to fit the model of capacity; expected at least {MIN_POINTS}."
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
        """What nodes with these resources, one worker a core, carry of one kind of rollout."""
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
