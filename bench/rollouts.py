"""CPU time per rollout, in rounds that measure everything in turn: what disturbs a round disturbs all of it."""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

from bench.load import Call, Cost, Load, Settings, cost_of
from bench.stacks import bare_client, held_stack, served_stack
from bench.stub import calls_a_tool_and_says, says, serving_stub

BARE = "bare request"
ONE_PROCESS = "rollout, one process"
OVER_HTTP = "rollout, over HTTP"
TWO_TURNS = "rollout of two turns with a tool call, one process"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something to measure, and the other processes that it keeps busy."""

    call: Call
    others: list[int]
    load: Load


@dataclass(frozen=True, slots=True)
class Figure:
    """The medians over all rounds of one scenario."""

    rounds: int
    all_ms: float
    own_ms: float
    calls_per_s: float
    ratio: float
    """CPU time of all processes, as a multiple of that of a bare request in the same round."""
    own_ratio: float
    """The same, of the calling process alone."""


async def measure_rollouts(settings: Settings) -> dict[str, Figure]:
    """Measure all scenarios in so many rounds, or until it takes too long."""
    bare, rollout = (Load(count, settings.in_flight) for count in (settings.count, max(1, settings.count // 2)))
    async with AsyncExitStack() as exits:
        enter = exits.enter_async_context
        stub = await enter(serving_stub(says(settings.reply_chars)))
        tool_stub = await enter(serving_stub(calls_a_tool_and_says(settings.reply_chars)))
        served = await enter(served_stack(stub))
        scenarios = {
            BARE: Scenario(await enter(bare_client(stub)), stub.pids, bare),
            ONE_PROCESS: Scenario(await enter(held_stack(stub)), stub.pids, rollout),
            OVER_HTTP: Scenario(served.call, [*stub.pids, *served.pids], rollout),
            TWO_TURNS: Scenario(await enter(held_stack(tool_stub)), tool_stub.pids, rollout),
        }
        await _round(scenarios)
        found: list[dict[str, Cost]] = []
        started = time.perf_counter()
        while not found or (len(found) < settings.rounds and time.perf_counter() - started < settings.rounds_s):
            found.append(await _round(scenarios))
        return summarised(found)


async def _round(scenarios: dict[str, Scenario]) -> dict[str, Cost]:
    return {name: await cost_of(each.call, each.load, others=each.others) for name, each in scenarios.items()}


def summarised(rounds: list[dict[str, Cost]]) -> dict[str, Figure]:
    """The medians of each scenario. A ratio is taken within a round, then its median over the rounds."""
    return {name: _figure([costs[name] for costs in rounds], [costs[BARE] for costs in rounds]) for name in rounds[0]}


def _figure(costs: list[Cost], bare: list[Cost]) -> Figure:
    pairs = list(zip(costs, bare, strict=True))
    return Figure(
        rounds=len(costs),
        all_ms=median(cost.all_ms for cost in costs),
        own_ms=median(cost.own_ms for cost in costs),
        calls_per_s=median(cost.calls_per_s for cost in costs),
        ratio=median(cost.all_ms / limit.all_ms for cost, limit in pairs),
        own_ratio=median(cost.own_ms / limit.own_ms for cost, limit in pairs),
    )
