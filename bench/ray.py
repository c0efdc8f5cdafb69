"""`python -m bench.ray`: what it costs a collector to send rollouts to the actors of a Ray cluster, and how evenly the
nodes get them. The real `ng_collect_rollouts` on three nodes on this machine; the agent waits instead of a model. CPU
time is that between the first records and the last ones, so that neither start-up nor the end counts."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import orjson
import psutil

from bench.report import Machine
from bench.rollout_cost import ONE_TURN, write_rows
from nemo_gym.bench.measure import SCRIPTS, BenchError
from nemo_gym.bench.processes import cpu_s, tree
from nemo_gym.bench.report import table

START_UP_ROWS = 500
SAMPLE_EVERY_S = 0.1
CONFIG = "agent: {responses_api_agents: {located: {entrypoint: app.py}}}\n"
AGENT = """
import asyncio

import ray
from pydantic import BaseModel

from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent


class Row(BaseModel):
    pass


class LocatedAgent(SimpleResponsesAPIAgent):
    async def responses(self, body: Row) -> dict[str, object]:
        await asyncio.sleep(0.2)
        return {"reward": 1.0, "node": ray.get_runtime_context().get_node_id()}

    run = responses
"""


class Sample(NamedTuple):
    """Usage at the time when a number of records was written."""

    records: int
    collector_s: float
    daemons_s: float
    """CPU time of Ray's own processes: on each node its raylet and agents, and the control service."""


class Collected(NamedTuple):
    first: Sample
    last: Sample
    by_node: Counter[str]


@contextmanager
def cluster(nodes: int) -> Iterator[tuple[str, int]]:
    """Run the cluster of the tests while the block runs. Yields its address and process."""
    command = [sys.executable, "-m", "tests.ray_nodes", str(nodes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        addresses = (line.strip() for line in process.stdout or () if line[:1].isdigit())  # Ray prints other lines
        yield next(addresses), process.pid
        process.communicate()


def daemons(pid: int) -> list[int]:
    """Ray's own processes, without those that run actors and tasks."""
    return [each for each in tree(pid) if not (psutil.Process(each).cmdline() or [""])[0].startswith("ray::")]


def collect(address: str, cluster_pid: int, place: Path, *, count: int, in_flight: int, workers: int) -> Collected:
    output = place / f"out_{count}.jsonl"
    rows = write_rows(place / f"rows_{count}.jsonl", ONE_TURN, count)
    command = [
        *(str(SCRIPTS / "ng_collect_rollouts"), f"+config_paths=[{place}/config.yaml]", "+agent_name=agent"),
        *(f"+input_jsonl_fpath={rows}", f"+output_jsonl_fpath={output}", f"+num_samples_in_parallel={in_flight}"),
        *(f"+ray_head_node_address={address}", f"+num_workers={workers}", "+head_server.port=1"),
    ]
    running, samples = daemons(cluster_pid), []
    with (
        (place / "log.txt").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=place) as process,
    ):
        while process.poll() is None:
            records = output.read_bytes().count(b"\n") if output.exists() else 0
            if START_UP_ROWS <= records < count:
                samples.append(Sample(records, cpu_s([process.pid]), cpu_s(running)))
            time.sleep(SAMPLE_EVERY_S)
    made = [orjson.loads(line)["node"] for line in output.read_bytes().splitlines()] if output.exists() else []
    if len(made) != count or len(samples) < 2:
        raise BenchError(f"{len(made)} of {count} rollouts were scored: {(place / 'log.txt').read_text()[-500:]}")
    return Collected(samples[0], samples[-1], Counter(made))


def measure(*, nodes: int, rows: int, in_flight: int) -> list[str]:
    with cluster(nodes) as (address, pid), tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "config.yaml").write_text(CONFIG)
        agent = place / "responses_api_agents" / "located" / "app.py"
        agent.parent.mkdir(parents=True)
        agent.write_text(AGENT)
        first, last, by_node = collect(address, pid, place, count=rows, in_flight=in_flight, workers=nodes)
    counted, made = last.records - first.records, sorted(by_node.values())
    imbalance = max(made) * nodes / rows - 1 if len(made) == nodes else float("inf")
    return [
        f"{rows:,} on {nodes} nodes, {in_flight} in flight",
        f"{1000 * (last.collector_s - first.collector_s) / counted:.3f}",
        f"{1000 * (last.daemons_s - first.daemons_s) / counted:.3f}",
        ", ".join(f"{each:,}" for each in made),
        f"{imbalance:.1%}",
    ]


HEAD = ["rollouts", "collector, CPU ms a rollout", "Ray's daemons, CPU ms a rollout", "by node", "most above the mean"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ray", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=300)
    options = parser.parse_args()
    row = measure(nodes=options.nodes, rows=options.rows, in_flight=options.in_flight)
    print(f"{Machine()}, load {os.getloadavg()[0]:.1f} at the end.\n\n{table(HEAD, [row])}")


if __name__ == "__main__":
    main()
