"""How long a call takes beyond what the model takes, with few and with many in flight."""

from dataclasses import dataclass
from statistics import quantiles

from bench.load import Call, Load, Settings, drive
from bench.stacks import bare_client, held_stack
from bench.stub import says, serving_stub


@dataclass(frozen=True, slots=True)
class Overhead:
    """Milliseconds above model latency."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Latency:
    """A bare request and a rollout in one process, at one number in flight."""

    in_flight: int
    bare: Overhead
    rollout: Overhead


async def measure_latency(settings: Settings) -> list[Latency]:
    """Measure both at each load, one after the other."""
    latency_s = settings.latency_s
    async with (
        serving_stub(says(settings.reply_chars), latency_s=latency_s) as stub,
        bare_client(stub) as bare,
        held_stack(stub) as rollout,
    ):
        return [
            Latency(
                in_flight=load.in_flight,
                bare=await _overhead(bare, load, latency_s=latency_s),
                rollout=await _overhead(rollout, load, latency_s=latency_s),
            )
            for load in settings.latency_loads
        ]


async def _overhead(call: Call, load: Load, *, latency_s: float) -> Overhead:
    """The first calls open the connections, so they do not count."""
    await drive(call, Load(load.in_flight, load.in_flight))
    above_ms = [(taken_s - latency_s) * 1e3 for taken_s in await drive(call, load)]
    percentiles = quantiles(above_ms, n=100, method="inclusive")
    return Overhead(p50_ms=percentiles[49], p99_ms=percentiles[98])
