"""`python -m bench.in_flight`: a very large number of rollouts in flight, in one collector with workers or through
`ng_run`, with requests for the run's health meanwhile.

The stub has several processes, since each has a limit of open files, and each has its own port, since a machine can
open only 28,000 connections to one address."""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.report import Machine
from bench.rollout_cost import MODEL_CONFIG, ONE_TURN, write_rows
from nemo_gym.bench.endpoint import Endpoint, EndpointSpec, serving_endpoint
from nemo_gym.bench.measure import ng_run
from nemo_gym.bench.processes import memory, tree, tree_cpu_s
from nemo_gym.bench.report import table
from nemo_gym.common.statistics import quantile
from nemo_gym.config.loading import find_open_port

PROBE_EVERY_S = 0.05
PROBE_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Watched:
    most_in_flight: int = 0
    peak_mb: float = 0.0
    cpu_s: float = 0.0
    health_ms: list[float] = field(default_factory=list)


@contextlib.contextmanager
def stubs(count: int, latency_s: float) -> Iterator[list[Endpoint]]:
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(serving_endpoint(EndpointSpec(latency=f"constant:{latency_s}"))) for _ in range(count)
        ]


async def probe(port: int, times: list[float]) -> None:
    """Ask for `/health` at a fixed rate, whether or not the last reply has come: an open loop."""

    async def ask() -> None:
        started = time.monotonic()
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                healthy = b" 200 " in await reader.read()
                writer.close()
        except (OSError, TimeoutError):
            healthy = False
        times.append(1000 * (time.monotonic() - started) if healthy else 1000 * PROBE_TIMEOUT_S)

    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(ask())
            await asyncio.sleep(PROBE_EVERY_S)


async def watch(command: Sequence[str], others: Sequence[int], stub_pids: Sequence[int], port: int | None) -> Watched:
    """Run a collection to its end. Memory is PSS of all processes, the stub's included."""
    seen = Watched()
    idle = [len(os.listdir(f"/proc/{pid}/fd")) for pid in stub_pids]
    collector = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    probing = asyncio.create_task(probe(port, seen.health_ms)) if port else None
    while collector.returncode is None:
        with contextlib.suppress(Exception):
            seen.cpu_s = tree_cpu_s(collector.pid)
            pids = [*tree(collector.pid), *(child for pid in others for child in tree(pid)), *stub_pids]
            opened = [len(os.listdir(f"/proc/{pid}/fd")) for pid in stub_pids]
            seen.most_in_flight = max(seen.most_in_flight, sum(opened) - sum(idle))
            seen.peak_mb = max(seen.peak_mb, memory(pids).pss_mb)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(collector.wait(), 1.0)
    if probing is not None:
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
    return seen


def measure(count: int, *, latency_s: float, workers: int, num_stubs: int, through_ng_run: bool) -> list[str]:
    with stubs(num_stubs, latency_s) as endpoints, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_rows(place / "rows.jsonl", ONE_TURN, count)
        urls = ",".join(endpoint.url for endpoint in endpoints)
        settings = [
            f"+config_paths=[{ONE_TURN.config},{MODEL_CONFIG}]",
            *(f"+policy_base_url=[{urls}]", "+policy_api_key=none", "+policy_model_name=stub"),
            f"+num_workers={workers}",
        ]
        head_port = find_open_port()
        use = [f"+head_server.port={head_port}"] if through_ng_run else [*settings, "+head_server.port=1"]
        command = [
            str(Path(sys.executable).with_name("ng_collect_rollouts")),
            *(*use, f"+agent_name={ONE_TURN.agent}", f"+num_samples_in_parallel={count}"),
            *(f"+input_jsonl_fpath={place}/rows.jsonl", f"+output_jsonl_fpath={place}/out.jsonl"),
        ]
        started = time.monotonic()
        with ng_run([*settings, *use]) if through_ng_run else contextlib.nullcontext() as run:
            others, port = ([], None) if run is None else ([run.pid], head_port)
            seen = asyncio.run(watch(command, others, [pid for endpoint in endpoints for pid in endpoint.pids], port))
        wall_s = time.monotonic() - started
        scored = len((place / "out.jsonl").read_bytes().splitlines())
        failures = place / "out_failures.jsonl"
        retried = len(failures.read_bytes().splitlines()) if failures.exists() else 0
    health = f"{quantile(seen.health_ms, 0.5):.1f} / {quantile(seen.health_ms, 0.99):.1f}" if seen.health_ms else "-"
    name = f"{count:,} at {latency_s:g} s, {workers} workers{', ng_run' if through_ng_run else ''}"
    cells = [
        f"{scored:,}",
        str(retried),
        f"{seen.most_in_flight:,}",
        f"{wall_s:.0f}",
        f"{seen.peak_mb:,.0f}",
        health,
    ]
    return [name, *cells]


HEAD = ["collection", "scored", "attempts again", "most in flight", "wall s", "peak MB", "/health ms p50 / p99"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.in_flight", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=65_536)
    parser.add_argument("--latency-s", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--stubs", type=int, default=4)
    parser.add_argument("--ng-run", action="store_true")
    options = parser.parse_args()
    row = measure(
        options.rollouts,
        latency_s=options.latency_s,
        workers=options.workers,
        num_stubs=options.stubs,
        through_ng_run=options.ng_run,
    )
    print(f"{Machine()}, load {os.getloadavg()[0]:.1f} at the end.\n\n{table(HEAD, [row])}")


if __name__ == "__main__":
    main()
