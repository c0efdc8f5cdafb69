"""`python -m bench.faults`: collect rollouts while everything fails that can fail, and check every score.

The endpoints of policy and judge commit all kinds of faults, and the collector, its worker, the isolated environment,
the judge and the endpoint are killed at random. The right reward of each row is known. Checked at the end: every row
has exactly one record with its right reward, every failed attempt has a cause that an injected fault explains, and the
memory of a run without kills does not grow."""

import argparse
import contextlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil

from nemo_gym.bench.processes import memory, tree

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent
ENDPOINTS = ("endpoint", "judge")
KINDS = ("collector", "worker", "isolated environment", *reversed(ENDPOINTS))
RESTART_S = 5.0
"""Time for a killed process to start again."""
CLOCK_S = 0.1
"""Times in records are rounded."""
REQUEST_TIMEOUT_S = 5.0
CONFIG = """
counter:
  resources_servers:
    example_stateful_counter: {{entrypoint: app.py, domain: agent, isolation: process}}
judged:
  resources_servers:
    equivalence_llm_judge:
      entrypoint: app.py
      domain: knowledge
      judge_model_server: {{type: responses_api_models, name: judge_model}}
      judge_responses_create_params: {{input: []}}
      judge_prompt_template: "{{question}} GOLD '{{expected_answer}}' SAID '{{generated_answer}}'"
counter_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: counter}}
      model_server: {{type: responses_api_models, name: policy_model}}
judged_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: judged}}
      model_server: {{type: responses_api_models, name: policy_model}}
policy_model:
  responses_api_models:
    openai_model: {{entrypoint: app.py, openai_base_url: 'http://127.0.0.1:{policy}/v1', openai_api_key: key,
      openai_model: m, max_tries: 3, request_timeout_s: {timeout}}}
judge_model:
  responses_api_models:
    openai_model: {{entrypoint: app.py, openai_base_url: 'http://127.0.0.1:{judge}/v1', openai_api_key: key,
      openai_model: m, max_tries: 3, request_timeout_s: {timeout}}}
"""
EXPLAINED_BY: dict[str, frozenset[str]] = {
    "model": frozenset(("endpoint", "worker")),
    "judge": frozenset(("judge", "worker")),
    "environment": frozenset(("isolated environment", "worker")),
    "tool": frozenset(("isolated environment",)),
    "verifier": frozenset(("isolated environment",)),
    "internal": frozenset(("worker",)),
    "timeout": frozenset(("endpoint", "judge")),
}
"""Which kills can be the cause of a failure, by the cause it names. Faults of an endpoint count as kills of it."""


class FaultRunError(Exception):
    """A check of the run failed."""


@dataclass
class Report:
    """Results of the run."""

    rows: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    memory_mb: tuple[float, float] = (0.0, 0.0)
    """Memory of a run without kills: after its first rows, and at its end."""

    def lines(self) -> Iterator[str]:
        yield f"{self.rows} rows scored right in {self.rounds} rounds"
        for name, found in (("kills", self.kills), ("faults", self.faults), ("failed attempts", self.failures)):
            yield f"{name}: {found.total()} ({', '.join(f'{kind} {count}' for kind, count in sorted(found.items()))})"
        yield f"memory of a run without kills: {self.memory_mb[0]:.0f} MB at first, {self.memory_mb[1]:.0f} MB at last"


def right_reward(index: int) -> float:
    return float(index % 3 != 0)


def row(index: int) -> dict[str, Any]:
    """Return the rows: every second one for the counter, which has state in its own process, the others for the
    judge."""
    right = right_reward(index) == 1.0
    if index % 2:
        first, second = index % 7, index % 11
        prompt, agent = f"row {index}: add {first} and {second}", "counter_agent"
        fields: dict[str, Any] = {"initial_count": 1, "expected_count": 1 + first + second + (not right)}
    else:
        prompt, agent = f"row {index}: say 'word {index}'", "judged_agent"
        fields = {"expected_answer": f"word {index}" if right else "something else"}
    tool = {"type": "function", "name": "increment_counter", "parameters": {}}
    params = {"input": [{"role": "user", "content": prompt}], "tools": [tool] if index % 2 else []}
    return {"responses_create_params": params, "agent_ref": {"name": agent}, **fields}


@dataclass(frozen=True)
class Options:
    rows: int = 5000
    seconds: float = 600.0
    min_kills: int = 0
    kill_every_s: float = 2.0
    fault_rate: float = 0.05
    kinds: tuple[str, ...] = KINDS
    seed: int = field(default_factory=lambda: random.SystemRandom().getrandbits(32))


class FaultRun:
    """The processes of one run, what happened to them, and when."""

    def __init__(self, folder: Path, options: "Options") -> None:
        self.folder, self.options, self.rows = folder, options, options.rows
        self.ends_at = time.time() + options.seconds
        self.chance = random.Random(options.seed)
        self._to_kill: list[str] = []
        self.report = Report()
        self.killed: list[tuple[float, str]] = []
        self._ports: dict[str, socket.socket] = {}
        self._endpoints: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "FaultRun":
        for kind in ENDPOINTS:
            self._ports[kind] = reserved_port()
            self._start_endpoint(kind)
        rows = b"".join(orjson.dumps(row(index)) + b"\n" for index in range(self.rows))
        (self.folder / "rows.jsonl").write_bytes(rows)
        ports = {"policy": self._port("endpoint"), "judge": self._port("judge")}
        (self.folder / "config.yaml").write_text(CONFIG.format(**ports, timeout=REQUEST_TIMEOUT_S))
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._endpoints.values():
            process.kill()
            process.wait()
        for port in self._ports.values():
            port.close()

    @property
    def goes_on(self) -> bool:
        """True until the time is up and there were enough kills."""
        return time.time() < self.ends_at or self.report.kills.total() < self.options.min_kills

    def round(self, name: str) -> None:
        """Collect all rows into one output, with kills, and check it."""
        output = self.folder / f"{name}.jsonl"
        while self._missing(output):
            with self._collector(output) as collector:
                self._harass(collector, output)
        self.check(output)
        self.report.rounds += 1

    def measure_memory(self, name: str) -> None:
        """Collect all rows without kills. Return the memory after the first rows and before the end."""
        output, first, last = self.folder / f"{name}.jsonl", 0.0, 0.0
        while self._missing(output):
            with self._collector(output) as collector:
                while collector.poll() is None:
                    with contextlib.suppress(psutil.Error):
                        if len(lines_of(output)) >= self.rows / 10 and len(_workers(collector.pid)) == 2:
                            last = memory(tree(collector.pid)).pss_mb
                            first = first or last
                    time.sleep(0.2)
        self.check(output)
        self.report.memory_mb = (first, last)

    def check(self, output: Path) -> None:
        """Check that every row is there once with its correct reward, and that a fault explains every failure."""
        records = [orjson.loads(line) for line in lines_of(output)]
        wrong = [found for found in records if found["reward"] != right_reward(found["_task_index"])]
        if wrong:
            first = orjson.dumps(wrong[0])[:3000]
            raise FaultRunError(f"{len(wrong)} wrong rewards in {output}; the first is {first!r}")
        if sorted(found["_task_index"] for found in records) != list(range(self.rows)):
            raise FaultRunError(f"{output} does not have every row once: {len(records)} records")
        faults = [orjson.loads(line) for kind in ENDPOINTS for line in lines_of(self._log(kind), add={"of": kind})]
        for line in lines_of(output.with_name(f"{output.stem}_failures.jsonl")):
            failure = orjson.loads(line)
            self.report.failures[failure["cause"]] += 1
            if not self._is_explained(failure, faults):
                raise FaultRunError(f"no fault explains {orjson.dumps(failure)[:2000]!r}")
        self.report.faults = Counter(f"{fault['of']} {fault['fault']}" for fault in faults)
        self.report.rows += len(records)

    def _is_explained(self, failure: dict[str, Any], faults: list[dict[str, Any]]) -> bool:
        start, end = failure["started_at"] - RESTART_S, failure["started_at"] + failure["seconds"] + CLOCK_S
        suspects = EXPLAINED_BY.get(failure["cause"], frozenset())
        hit = any(
            fault["of"] in suspects and fault["row"] == failure["_task_index"] and start <= fault["time"] <= end
            for fault in faults
        )
        return hit or any(kind in suspects and start <= at <= end for at, kind in self.killed)

    def _missing(self, output: Path) -> bool:
        return len(lines_of(output)) < self.rows

    def _harass(self, collector: "subprocess.Popen[bytes]", output: Path) -> None:
        size = _size(output)
        while collector.poll() is None and _size(output) == size:
            time.sleep(0.05)  # until it has written something: the time of starting is not worth a kill
        next_at = time.monotonic() + self.chance.uniform(0, self.options.kill_every_s)
        while collector.poll() is None:
            if time.monotonic() >= next_at and self.goes_on:
                if not self._to_kill:
                    self._to_kill = self.chance.sample(self.options.kinds, len(self.options.kinds))
                if self._kill(self._to_kill[-1], collector):
                    self._to_kill.pop()
                next_at = time.monotonic() + self.chance.uniform(0.5, 1.5) * self.options.kill_every_s
            time.sleep(0.05)

    def _kill(self, kind: str, collector: "subprocess.Popen[bytes]") -> bool:
        """Kill a process. Return False if there is none now."""
        at = time.time()  # before it, since what the kill causes may end before this process runs again
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if kind in self._endpoints:
                self._endpoints[kind].kill()
                self._endpoints[kind].wait()
                self._start_endpoint(kind)
            elif kind == "collector":
                collector.kill()
            else:
                workers = sorted(_workers(collector.pid), key=_num_listening, reverse=True)
                if len(workers) < 2:
                    return False  # one of them was killed a moment ago
                workers[0 if kind == "worker" else 1].send_signal(signal.SIGKILL)
            self.killed.append((at, kind))
            self.report.kills[kind] += 1
            return True
        return False

    @contextlib.contextmanager
    def _collector(self, output: Path) -> "Iterator[subprocess.Popen[bytes]]":
        command = [
            str(BIN / "ng_collect_rollouts"),
            "+config_paths=[config.yaml]",
            "+input_jsonl_fpath=rows.jsonl",
            f"+output_jsonl_fpath={output.name}",
            "+num_samples_in_parallel=64",
            "+max_attempts=5",
            "+head_server.port=1",
        ]
        with (self.folder / "collector.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        workers: list[psutil.Process] = []
        try:
            yield process
            with contextlib.suppress(psutil.Error):
                workers = _workers(process.pid)
        finally:
            process.kill()
            process.wait()
            _, alive = psutil.wait_procs(workers, timeout=60)
            if alive:
                raise FaultRunError(f"{len(alive)} workers outlive their collector")

    def _port(self, kind: str) -> int:
        port: int = self._ports[kind].getsockname()[1]
        return port

    def _log(self, kind: str) -> Path:
        return self.folder / f"{kind}.log"

    def _start_endpoint(self, kind: str) -> None:
        seed = str(self.chance.getrandbits(32))
        arguments = [str(self._port(kind)), str(self._log(kind)), str(self.options.fault_rate), seed]
        command = [sys.executable, "-m", "bench.fault_endpoint", *arguments]
        self._endpoints[kind] = subprocess.Popen(command, cwd=ROOT)


def _workers(pid: int) -> list[psutil.Process]:
    """Return the worker processes of a collector: one for the shared servers, one for the isolated environment."""
    children = psutil.Process(pid).children()
    return [child for child in children if "nemo_gym.rollouts.worker" in " ".join(child.cmdline())]


def _num_listening(worker: psutil.Process) -> int:
    """Return the number of sockets that a process listens on: one per server."""
    return sum(found.status == psutil.CONN_LISTEN for found in worker.net_connections("tcp"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def reserved_port() -> socket.socket:
    """Open a socket that reserves a port without listening. Only a server that asks for this port gets it, and
    connections are refused until then."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def lines_of(path: Path, *, add: dict[str, str] | None = None) -> list[bytes]:
    """Return the complete lines of a file."""
    if not path.exists():
        return []
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return lines if add is None else [orjson.dumps({**orjson.loads(line), **add}) for line in lines]


def run_faults(folder: Path, options: Options, *, check_memory: bool = True) -> Report:
    """Run rounds of `rows` rows until the time limit. The last round ends without kills."""
    with FaultRun(folder, options) as run:
        while run.goes_on or not run.report.rounds:
            run.round(f"round{run.report.rounds + 1}")
        if check_memory:
            run.measure_memory("calm")
        return run.report


def main() -> None:
    defaults = Options()
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--rows", type=int, default=defaults.rows)
    parser.add_argument("--seconds", type=float, default=defaults.seconds)
    parser.add_argument("--kill-every-s", type=float, default=defaults.kill_every_s)
    parser.add_argument("--fault-rate", type=float, default=defaults.fault_rate)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    options = Options(**vars(parser.parse_args()))
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="nemo-gym-faults-") as folder:
        report = run_faults(Path(folder), options)
    print("\n".join(report.lines()))


if __name__ == "__main__":
    main()
