"""Put load on something, and see what it costs: CPU time of all processes that take part, and seconds of each call."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench.processes import cpu_s

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Load:
    """How many calls, and how many of them at once."""

    count: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to measure."""

    rounds: int
    rounds_s: float
    """After this no further round is begun, so that a busy machine gives fewer rounds instead of a longer run."""
    count: int
    """Bare requests a round; rollouts are half as many."""
    in_flight: int
    starts: int
    latency_loads: tuple[Load, ...]
    latency_s: float
    """How long the model takes where latency is measured."""
    reply_chars: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call cost, on average."""

    all_ms: float
    """CPU time of all processes."""
    own_ms: float
    """The part of it spent in this process."""
    calls_per_s: float


async def drive(call: Call, load: Load) -> list[float]:
    """Make the calls, and give the seconds that each took."""
    todo = iter(range(load.count))
    taken_s: list[float] = []

    async def worker() -> None:
        for _ in todo:
            started = time.perf_counter()
            await call()
            taken_s.append(time.perf_counter() - started)

    async with asyncio.TaskGroup() as workers:
        for _ in range(load.in_flight):
            workers.create_task(worker())
    return taken_s


async def cost_of(call: Call, load: Load, *, others: Sequence[int]) -> Cost:
    """Drive the load, with an eye on this process and on the `others` that serve it."""
    own, rest, started = time.process_time(), cpu_s(others), time.perf_counter()
    await drive(call, load)
    wall_s, own_s, rest_s = time.perf_counter() - started, time.process_time() - own, cpu_s(others) - rest
    return Cost(
        all_ms=(own_s + rest_s) / load.count * 1e3, own_ms=own_s / load.count * 1e3, calls_per_s=load.count / wall_s
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
