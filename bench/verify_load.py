"""`python -m bench.verify_load`: replies that a verifier scores per CPU-second, and the lag of the event loop while
all of them wait at once."""

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bench.verifiers import VERIFIERS
from nemo_gym.bench.processes import tree_cpu_s
from nemo_gym.client.server_client import ServerReply
from nemo_gym.common import event_loop
from nemo_gym.common.statistics import quantile
from nemo_gym.compute.pool import Compute
from nemo_gym.testing import running_servers

LOOK_EVERY_S = 0.002
LONGEST_S = 600.0
WARM_UP_ROWS = 20


@dataclass(frozen=True, slots=True)
class VerifyLoad:
    """Measurements of a verifier."""

    verifier: str
    count: int
    per_cpu_s: float
    """Rows scored per second of CPU time, over all processes."""
    bare_per_cpu_s: float
    """The same for bare calls of the function, in one process and without a server."""
    own_ms: float
    """CPU time of the server's own process per row."""
    lag_p50_ms: float
    lag_p99_ms: float
    lag_most_ms: float


async def measure_verify_load(name: str, *, count: int) -> VerifyLoad:
    """Score `count` rows, all requested before the first few are done."""
    verifier = VERIFIERS[name]
    async with Compute(workers=1) as compute:
        bare_s = await compute.run(verifier.bare, count, timeout_s=LONGEST_S)
    rows = [verifier.row(number) for number in range(count)]
    async with asyncio.timeout(LONGEST_S), running_servers([verifier.server]) as client:

        async def verify(row: dict[str, Any]) -> None:
            await client.call(name, "/verify", row, answer=ServerReply, cause="verifier")

        await asyncio.gather(*(verify(verifier.row(-number)) for number in range(1, WARM_UP_ROWS)))
        own, everything = time.process_time(), tree_cpu_s(os.getpid())
        async with lateness() as late_s, asyncio.TaskGroup() as group:
            for row in rows:
                group.create_task(verify(row))
                await asyncio.sleep(0)  # as requests come: each on its own
        own_s, all_s = time.process_time() - own, tree_cpu_s(os.getpid()) - everything
    p50_s, p99_s, most_s = (quantile(late_s, share) for share in (0.5, 0.99, 1.0))
    return VerifyLoad(
        verifier=name,
        count=count,
        per_cpu_s=count / all_s,
        bare_per_cpu_s=count / bare_s,
        own_ms=own_s / count * 1e3,
        lag_p50_ms=p50_s * 1e3,
        lag_p99_ms=p99_s * 1e3,
        lag_most_ms=most_s * 1e3,
    )


@asynccontextmanager
async def lateness() -> AsyncIterator[list[float]]:
    """Measure the lag of the event loop at short intervals."""
    late_s: list[float] = []

    async def look() -> None:
        while True:
            asked = time.perf_counter() + LOOK_EVERY_S
            await asyncio.sleep(LOOK_EVERY_S)
            late_s.append(max(0.0, time.perf_counter() - asked))

    looking = asyncio.create_task(look())
    try:
        yield late_s
    finally:
        looking.cancel()


HEAD = """\
| verifier | rows at once | rows per CPU-second | bare calls per CPU-second | own CPU ms a row | loop late ms, p50 | p99 | most |
| --- | --- | --- | --- | --- | --- | --- | --- |"""  # noqa: E501 - a line of Markdown


def as_row(load: VerifyLoad) -> str:
    """One line of a Markdown table under `HEAD`."""
    return (
        f"| {load.verifier} | {load.count} | {load.per_cpu_s:.0f} | {load.bare_per_cpu_s:.0f} | {load.own_ms:.2f} "
        f"| {load.lag_p50_ms:.1f} | {load.lag_p99_ms:.1f} | {load.lag_most_ms:.1f} |"
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.verify_load", description=__doc__)
    parser.add_argument("verifiers", nargs="*", default=list(VERIFIERS), help=f"of: {', '.join(VERIFIERS)}")
    parser.add_argument("--count", type=int, default=1000, help="how many rows are scored, all asked for at once")
    options = parser.parse_args()
    print(HEAD)
    for name in options.verifiers:
        print(as_row(event_loop.run(measure_verify_load(name, count=options.count))))


if __name__ == "__main__":
    main()
