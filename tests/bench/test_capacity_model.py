"""The model of capacity: it finds what made the points, and says what limits a node."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from nemo_gym.bench.measure import WARM_UP_ROLLOUTS, Measured, Point
from nemo_gym.bench.processes import Machine, Usage
from nemo_gym.bench.report import (
    CapacityModel,
    capacity_table,
    cpu_features,
    first_limit,
    fit,
    forecast_table,
    memory_features,
    model_page,
    shares_of_limits,
    size,
)
from nemo_gym.errors import GymError

MACHINE = Machine(cores=4, memory_mb=16_000, open_files=20_000)
CPU, MEMORY = [0.2, 0.3, 0.01, 0.005, 0.0001], [50.0, 0.02, 0.001]


def measured(in_flight: int = 100, turns: int = 1, payload_bytes: int = 1024, **usage: Any) -> Measured:
    """A point that costs exactly what CPU and MEMORY say."""
    point = Point(in_flight, turns, payload_bytes, "constant:1", rollouts=1000)
    found = Measured(point, 1000, {}, 10.0 * turns, 1.0, in_flight, 1.0, 0, 1.0, 1.0, Usage(**usage))
    cpu_ms = sum(a * b for a, b in zip(CPU, cpu_features(found), strict=True))
    memory_mb = sum(a * b for a, b in zip(MEMORY, memory_features(found), strict=True))
    return Measured(
        **{
            **{name: getattr(found, name) for name in Measured.__dataclass_fields__},
            "cpu_s": cpu_ms * (1000 - WARM_UP_ROLLOUTS) / 1000,
            "usage": Usage(**{"memory_mb": memory_mb, **usage}),
        }
    )


POINTS = [
    measured(in_flight, turns, payload)
    for turns, payload, in_flight in itertools.product((1, 5, 20), (1024, 65536), (64, 1024))
]


def test_the_model_finds_what_made_the_points_and_predicts_the_others() -> None:
    model = CapacityModel.of(POINTS)
    assert model.cpu == pytest.approx(CPU, rel=1e-3)
    assert model.memory == pytest.approx(MEMORY, rel=1e-3)
    assert len(model.held_out) == 4
    assert all(abs(each.cpu_error) < 0.01 and abs(each.memory_error) < 0.01 for each in model.held_out)
    assert "+0%" in model_page(model) or "-0%" in model_page(model)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(GymError, match="too few"):
        CapacityModel.of(POINTS[:8])


@given(some.lists(some.floats(0.1, 100), min_size=3, max_size=12))
def test_no_coefficient_is_negative(values: list[float]) -> None:
    rows = [[1.0, float(index), float(index % 3)] for index in range(len(values))]
    assert min(fit(rows, values)) >= 0


@pytest.mark.parametrize(
    ("node", "limit"),
    [
        ({"cores": 1, "memory_mb": 1e6, "open_files": 10**6}, "CPU time"),
        ({"cores": 64, "memory_mb": 4_000, "open_files": 10**6}, "memory"),
        ({"cores": 64, "memory_mb": 1e6, "open_files": 100}, "open files"),
    ],
)
def test_a_node_carries_what_its_scarcest_resource_allows(node: dict[str, int], limit: str) -> None:
    model = CapacityModel.of(POINTS)
    one = model.capacity(nodes=1, turns=2, payload_bytes=1024, latency_s=10.0, **node)
    assert one.limit == limit
    many = model.capacity(nodes=8, turns=2, payload_bytes=1024, latency_s=10.0, **node)
    assert many.in_flight == pytest.approx(8 * one.in_flight)
    assert "8 nodes" in forecast_table(model, POINTS, MACHINE, nodes=8)


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        ({"busiest_process": 0.99}, "one event loop (99%)"),
        ({"memory_mb": 15_900.0}, "memory (99%)"),
        ({"open_files": 19_990}, "open files (100%)"),
        ({"busy_machine": 0.95}, "other work on this machine"),
        ({"busiest_process": 0.3}, "none: the model's latency (next: one event loop, 30%)"),
    ],
)
def test_what_saturates_first_is_named(usage: dict[str, Any], words: str) -> None:
    point = measured(**usage)
    assert words in first_limit(shares_of_limits(point, MACHINE), point)
    assert words in capacity_table([point], MACHINE)


def test_a_load_that_was_not_reached_is_said_so() -> None:
    point = measured()
    fields = {name: getattr(point, name) for name in Measured.__dataclass_fields__} | {"most_in_flight": 10}
    assert "10 were in flight at most" in first_limit(
        shares_of_limits(Measured(**fields), MACHINE), Measured(**fields)
    )


def test_rates_and_shares() -> None:
    point = measured(in_flight=100, turns=2)
    assert point.rate == pytest.approx(1000 / 20)
    assert point.share_of_ideal_rate == pytest.approx(1.0)


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1024, "1 KB"), (2 * 2**20, "2 MB"), (1536, "1.5 KB")])
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
