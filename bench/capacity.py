"""`python -m bench.capacity`: the real `ng_collect_rollouts` with very many rollouts in flight, and very many rows.

Prints a table and keeps it as bench/capacity.md. Takes about as many minutes as a million rows need: a dozen."""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import psutil

from bench.endpoint import serving_endpoint
from bench.percentiles import quantile
from bench.processes import memory, tree, tree_cpu_s
from bench.report import Machine, table
from bench.rollout_cost import MODEL_CONFIG, TWO_TURNS

IN_FLIGHT = (1, 1_000, 4_000, 16_000)
LATENCY_S = 1.0
LONG_LATENCY_S = 30.0
"""Long enough for all of 16,000 rollouts to be in flight before the first of them is answered."""
MANY_ROWS = 1_000_000
SCRIPTED_MODEL_CONFIG = "responses_api_models/scripted_model/configs/scripted_model.yaml"
LONGEST_S = 3600.0
ROW = {"responses_create_params": {"input": "Hello."}}


@dataclass(frozen=True, slots=True)
class Run:
    """One collection, as seen from outside."""

    what: str
    rollouts: int
    scored: int
    wall_s: float
    cpu_ms: float
    """Of the collector, for each rollout."""
    peak_mb: float
    """Of collector and endpoint together, at the same instant."""
    first_mb: float
    """The same at a tenth of the way."""
    p50_ms: float | None
    p99_ms: float | None
    """Above the model's latency."""


async def measure(*, in_flight: int, latency_s: float) -> Run:
    """So many rows, all allowed to be in flight at once, against an endpoint in a process of its own."""
    with serving_endpoint(latency_s=latency_s) as stub:
        return await collect(
            f"{in_flight:,} in flight, {latency_s:g} s",
            rows=in_flight,
            in_flight=in_flight,
            configs=[TWO_TURNS.config, MODEL_CONFIG],
            arguments=[f"+policy_base_url={stub.url}", "+policy_api_key=none", "+policy_model_name=stub"],
            others=[stub.pid],
            latency_s=latency_s,
        )


async def measure_many(rows: int) -> Run:
    """Very many short rows, answered at once by a scripted model in the collector itself."""
    configs = [TWO_TURNS.config, SCRIPTED_MODEL_CONFIG]
    return await collect(f"{rows:,} rows, no latency", rows=rows, in_flight=64, configs=configs)


async def collect(
    what: str,
    *,
    rows: int,
    in_flight: int,
    configs: Sequence[str],
    arguments: Sequence[str] = (),
    others: Sequence[int] = (),
    latency_s: float | None = None,
) -> Run:
    """Run the command and watch it. Without a latency to compare with, how long rollouts take is not told."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with (place / "rows.jsonl").open("wb") as file:
            for _ in range(rows):
                file.write(orjson.dumps(ROW) + b"\n")
        started = time.monotonic()
        collector = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).parent / "ng_collect_rollouts"),
            f"+config_paths=[{','.join(configs)}]",
            f"+agent_name={TWO_TURNS.agent}",
            "+input_jsonl_fpath=rows.jsonl",
            "+output_jsonl_fpath=out.jsonl",
            f"+num_samples_in_parallel={in_flight}",
            "+head_server.port=1",
            *arguments,
            cwd=place,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(LONGEST_S):
            seen = await watch(collector, others, place / "out.jsonl")
        wall_s = time.monotonic() - started
        scored, seconds = read(place / "out.jsonl", with_times=latency_s is not None)
    above = [1000 * (second - (latency_s or 0)) for second in seconds]
    return Run(
        what=what,
        rollouts=rows,
        scored=scored,
        wall_s=wall_s,
        cpu_ms=1000 * seen.cpu_s / rows,
        peak_mb=max(mb for mb, _ in seen.samples),
        first_mb=next(mb for mb, size in seen.samples if size >= seen.samples[-1][1] / 10),
        p50_ms=quantile(above, 0.5) if above else None,
        p99_ms=quantile(above, 0.99) if above else None,
    )


@dataclass(slots=True)
class Seen:
    samples: list[tuple[float, int]]
    """Memory in MB and bytes written, again and again."""
    cpu_s: float = 0.0


async def watch(collector: asyncio.subprocess.Process, others: Sequence[int], output: Path) -> Seen:
    """Look at the processes until the collector ends."""
    seen = Seen([(0.0, 0)])
    while collector.returncode is None:
        with contextlib.suppress(OSError, psutil.Error):
            seen.cpu_s = tree_cpu_s(collector.pid)
            seen.samples.append((memory([*tree(collector.pid), *others]).pss_mb, size_of(output)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(collector.wait(), 0.25)
    return seen


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def read(output: Path, *, with_times: bool) -> tuple[int, list[float]]:
    """How many records there are, and how long each rollout took."""
    count, seconds = 0, []
    with output.open("rb") as lines:
        for line in lines:
            count += 1
            if with_times:
                seconds.append(float(line.rpartition(b'"_seconds":')[2].rstrip(b"}\n")))
    return count, seconds


def as_markdown(runs: list[Run]) -> str:
    head = ["collection", "scored", "wall s", "CPU ms a rollout", "peak MB", "MB at a tenth", "p50 ms", "p99 ms"]
    rows = []
    for run in runs:
        above = ["-" if value is None else f"{value:,.0f}" for value in (run.p50_ms, run.p99_ms)]
        memory_mb = [f"{run.peak_mb:.0f}", f"{run.first_mb:.0f}"]
        scored = f"{run.scored:,} of {run.rollouts:,}"
        rows.append([run.what, scored, f"{run.wall_s:.1f}", f"{run.cpu_ms:.2f}", *memory_mb, *above])
    about = (
        f"{Machine()}, load {os.getloadavg()[0]:.1f} at the end. Made by `python -m bench.capacity`: the real "
        "`ng_collect_rollouts` of one-turn rollouts, in one process, the endpoint in another. Memory is PSS of both "
        "together; latency is what a rollout takes above the model's."
    )
    return f"# Capacity\n\n{about}\n\n{table(head, rows)}\n"


async def measure_all(rows: int) -> list[Run]:
    runs = [await measure(in_flight=count, latency_s=LATENCY_S) for count in IN_FLIGHT]
    runs.append(await measure(in_flight=IN_FLIGHT[-1], latency_s=LONG_LATENCY_S))
    return [*runs, await measure_many(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__)
    parser.add_argument("--rows", type=int, default=MANY_ROWS, help="how many rows the last collection has")
    options = parser.parse_args()
    page = as_markdown(asyncio.run(measure_all(options.rows)))
    print(page)
    (Path(__file__).parent / "capacity.md").write_text(page)


if __name__ == "__main__":
    main()
