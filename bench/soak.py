"""`python -m bench.soak`: a very large number of rollouts through `ng_run`, with a stateful environment. Every reward
must be correct, and memory, descriptors, threads and sessions must not grow between start and end."""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import orjson
import psutil

from bench.report import Machine
from bench.rollout_cost import MODEL_CONFIG
from nemo_gym.bench.endpoint import EndpointSpec, serving_endpoint
from nemo_gym.bench.measure import SCRIPTS, BenchError, ng_run
from nemo_gym.bench.processes import memory, tree
from nemo_gym.bench.report import table
from nemo_gym.config.loading import find_open_port

CONFIG = "resources_servers/example_stateful_counter/configs/stateful_counter.yaml"
AGENT = "stateful_counter_simple_agent"
ROWS = 1000
ADDED = 3
TOOL = {
    "type": "function",
    "name": "increment_counter",
    "description": "Add to the counter.",
    "parameters": {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]},
    "strict": False,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the run: PSS of its processes and of the collector, descriptors, threads, sessions."""

    minutes: float
    done: int
    run_mb: float
    collector_mb: float
    descriptors: int
    threads: int
    sessions: int


def row(number: int) -> bytes:
    """Write rows with different counts, so that a mixed-up session gives a wrong reward."""
    params = {"input": [{"role": "user", "content": "Add three."}], "tools": [TOOL]}
    counts = {"initial_count": number, "expected_count": number + ADDED}
    return orjson.dumps({"responses_create_params": params, **counts}) + b"\n"


def samples(run: int, collector: "subprocess.Popen[bytes]", head_url: str, *, every_s: float) -> Iterator[Sample]:
    """Take samples until the collector has ended."""
    started = time.monotonic()
    while collector.poll() is None:
        try:
            processes = [psutil.Process(pid) for pid in tree(run)]
            metrics = run_metrics(head_url)
            yield Sample(
                minutes=(time.monotonic() - started) / 60,
                done=int(metrics["nemo_gym_rollouts_total"]),
                run_mb=memory(tree(run)).pss_mb,
                collector_mb=memory(tree(collector.pid)).pss_mb,
                descriptors=sum(process.num_fds() for process in processes),
                threads=sum(process.num_threads() for process in processes),
                sessions=int(metrics["nemo_gym_sessions"]),
            )
        except psutil.NoSuchProcess:  # it has just ended
            return
        try:
            collector.wait(every_s)
        except subprocess.TimeoutExpired:
            continue


def run_metrics(head_url: str) -> dict[str, float]:
    """The metrics of the run, summed over their labels."""
    found: dict[str, float] = {"nemo_gym_rollouts_total": 0.0, "nemo_gym_sessions": 0.0}
    page = build_opener(ProxyHandler({})).open(f"{head_url}/metrics", timeout=60).read().decode()
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        if (key := name.partition("{")[0]) in found:
            found[key] += float(value)
    return found


def check(output: Path, rollouts: int) -> None:
    """Raise unless every rollout is there with the right reward."""
    with output.open("rb") as lines:
        rewards = [orjson.loads(line)["reward"] for line in lines]
    if len(rewards) != rollouts or set(rewards) != {1.0}:
        raise BenchError(f"{len(rewards)} records, {sum(reward != 1.0 for reward in rewards)} of them with reward 0")


def soak(rollouts: int, in_flight: int, every_s: float) -> list[Sample]:
    arguments = {"increment_counter": f'{{"count": {ADDED}}}'}
    with serving_endpoint(EndpointSpec(tool_arguments=arguments)) as endpoint, tempfile.TemporaryDirectory() as folder:
        place, port = Path(folder), find_open_port()
        (place / "rows.jsonl").write_bytes(b"".join(row(number) for number in range(ROWS)))
        head = f"+head_server.port={port}"
        settings = [
            f"+config_paths=[{CONFIG},{MODEL_CONFIG}]",
            *(f"+policy_base_url={endpoint.url}", "+policy_api_key=none", "+policy_model_name=stub"),
        ]
        command = [
            str(SCRIPTS / "ng_collect_rollouts"),
            *(head, f"+agent_name={AGENT}", f"+num_repeats={rollouts // ROWS}"),
            f"+num_samples_in_parallel={in_flight}",
            *(f"+input_jsonl_fpath={place}/rows.jsonl", f"+output_jsonl_fpath={place}/out.jsonl"),
        ]
        with ng_run([*settings, head]) as run:
            collector = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            taken = list(samples(run.pid, collector, f"http://127.0.0.1:{port}", every_s=every_s))
            if code := collector.wait():
                raise BenchError(f"The collector ended with {code}.")
        check(place / "out.jsonl", rollouts // ROWS * ROWS)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--every-s", type=float, default=20.0)
    options = parser.parse_args()
    if options.rollouts < ROWS:
        parser.error(f"--rollouts must be at least {ROWS}, one of each row")
    taken = soak(options.rollouts, options.in_flight, options.every_s)
    kept = taken[:: max(1, len(taken) // 12)]
    rows = [
        [f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in astuple(each)] for each in kept
    ]
    heads = ["minutes", "rollouts", "run, MB", "collector, MB", "descriptors", "threads", "sessions"]
    text = f"{options.rollouts:,} rollouts of two turns, {options.in_flight} in flight. Every reward was right."
    print(f"{Machine()}.\n\n{text}\n\n{table(heads, rows)}")


if __name__ == "__main__":
    main()
