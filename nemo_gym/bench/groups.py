"""The group benchmark: how long a trainer waits for complete groups if latencies have a long tail, and how many model
calls ways to wait less make for nothing."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

from nemo_gym.bench.endpoint import Endpoint, EndpointSpec, serving_endpoint
from nemo_gym.bench.measure import MODEL_CONFIG, Environment
from nemo_gym.bench.report import table
from nemo_gym.training import RolloutSession, Source

GROUP_SIZE = 8
MAX_IN_FLIGHT = 4096


@dataclass(frozen=True, slots=True)
class Way:
    """A way to wait for groups."""

    name: str
    more_groups: float = 0.0
    """Groups that are begun beyond those of a step, as a share of them. They are used in the next step."""
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GroupsMeasured:
    """The measurements of one way."""

    way: str
    seconds: float
    """The mean of the steps."""
    wasted_calls: int
    """Model calls of rollouts that nobody uses."""
    calls: int


def ways_of(seconds: float) -> list[Way]:
    """Ways to wait less, if waiting for all groups takes so long."""
    slow_s = round(seconds / 2, 1)
    return [
        Way("over_sample=1", options={"over_sample": 1}),
        Way(f"hedge_after_s={slow_s:g}", options={"hedge_after_s": slow_s}),
        Way("1/8 more groups in flight", 0.125),
        Way(f"1/8 more groups, hedge_after_s={slow_s:g}", 0.125, {"hedge_after_s": slow_s}),
        Way("1/8 more groups, over_sample=1", 0.125, {"over_sample": 1}),
    ]


@contextmanager
def session_at(
    config_paths: Sequence[str], spec: EndpointSpec, *, num_workers: int | None = None, **options: Any
) -> Iterator[tuple[RolloutSession, Endpoint]]:
    """A session of servers whose model is simulated."""
    with serving_endpoint(spec) as endpoint:
        config = {
            "config_paths": [*config_paths, MODEL_CONFIG],
            "policy_base_url": endpoint.url,
            "policy_api_key": "none",
            "policy_model_name": "simulated",
            "num_workers": num_workers,
        }
        with RolloutSession(config, **options) as session:
            yield session, endpoint


def measure_groups(environment: Environment, spec: EndpointSpec, *, groups: int, steps: int) -> list[GroupsMeasured]:
    """Measure the time to complete groups, in each way. The ways take turns, since each step depends on its slowest
    rollouts, and the machine may be busy with something else."""
    with session_at(environment.config_paths, spec) as (session, endpoint):
        row = {**environment.rows[0], "agent_ref": {"type": "responses_api_agents", "name": environment.agent_name}}
        session.submit(row).result()
        wait_for_all = Way("wait for all")
        first = _measure(session, endpoint, row, wait_for_all, groups, spec.turns)
        ways = [wait_for_all, *ways_of(first.seconds)]
        measured = [[_measure(session, endpoint, row, way, groups, spec.turns) for way in ways] for _ in range(steps)]
        return [_mean(of_way) for of_way in zip(*measured, strict=True)]


def _mean(measured: Sequence[GroupsMeasured]) -> GroupsMeasured:
    wasted, calls = sum(each.wasted_calls for each in measured), sum(each.calls for each in measured)
    return GroupsMeasured(measured[0].way, fmean(each.seconds for each in measured), wasted, calls)


def _measure(
    session: RolloutSession, endpoint: Endpoint, row: dict[str, Any], way: Way, groups: int, turns: int
) -> GroupsMeasured:
    begun = groups + round(groups * way.more_groups)
    before, started = endpoint.stats().requests, time.monotonic()
    options = {"group_size": GROUP_SIZE, "max_in_flight": MAX_IN_FLIGHT, **(way.options or {})}
    stream = iter(session.groups({"rows": Source([row] * begun)}, **options))
    taken = [*islice(stream, groups)]
    seconds = time.monotonic() - started
    taken += stream  # those of the next step
    calls = endpoint.stats().requests - before
    return GroupsMeasured(way.name, seconds, calls - len(taken) * GROUP_SIZE * turns, calls)


def groups_table(measured: Sequence[GroupsMeasured]) -> str:
    first = measured[0].seconds
    rows = [
        [each.way, f"{each.seconds:.1f}", f"{each.seconds / first - 1:+.0%}", f"{each.wasted_calls / each.calls:.1%}"]
        for each in measured
    ]
    return table(["way to wait", "seconds", "against the first", "calls for nothing"], rows)
