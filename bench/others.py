"""The same one-turn rollout in other frameworks: CPU time of the real command and its child processes, with start-up
subtracted, against the same endpoint, which is not counted."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.rollout_cost import MODEL_CONFIG, ONE_TURN, collect, write_rows
from nemo_gym.bench.endpoint import Endpoint, EndpointSpec, serving_endpoint
from nemo_gym.bench.measure import BenchError, ng_run
from nemo_gym.bench.processes import tree_cpu_s
from nemo_gym.config.loading import find_open_port

TASKSET = """
import verifiers.v1 as vf


class BenchData(vf.TaskData):
    answer: str = "B"


class BenchTask(vf.Task[BenchData]):
    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        return float(f"boxed{{{self.data.answer}}}" in (trace.last_reply or ""))


class BenchConfig(vf.TasksetConfig):
    num_tasks: int = 5


class BenchTaskset(vf.Taskset[BenchTask, BenchConfig]):
    def load(self) -> list[BenchTask]:
        return [
            BenchTask(BenchData(idx=number, prompt=f"Question {number}?"), self.config.task)
            for number in range(self.config.num_tasks)
        ]


__all__ = ["BenchTaskset"]
"""


@dataclass(frozen=True, slots=True)
class OtherCost:
    """Cost of a rollout in another framework."""

    name: str
    us: float
    rollouts: int


def measure_verifiers(python: Path, *, rollouts: int) -> OtherCost:
    """`vf-eval` of the package `verifiers` (0.4 or later), with its plain chat harness in its local runtime."""
    scripts = python.parent
    version = subprocess.run(
        [python, "-c", "from importlib.metadata import version; print(version('verifiers'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    if version.returncode:
        raise BenchError(f"{python} has no package `verifiers`: {version.stderr[-300:]}")
    with serving_endpoint(EndpointSpec(turns=1)) as endpoint, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "gym_bench").mkdir()
        (place / "gym_bench" / "__init__.py").write_text(TASKSET)
        return OtherCost(
            f"verifiers {version.stdout.strip()}",
            _marginal_us(lambda count: _vf_eval(scripts, place, endpoint, count), rollouts),
            rollouts,
        )


def _vf_eval(scripts: Path, place: Path, endpoint: Endpoint, count: int) -> float:
    output, before = place / f"out_{time.time_ns()}", endpoint.stats().requests
    command = [
        *(str(scripts / "vf-eval"), "gym-bench", "--model", "stub", "--max-concurrent", "64", "--no-push"),
        *("-n", str(count), "--env.taskset.num-tasks", str(count), "--output-dir", str(output)),
        *("--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"),
        *("--client.base-url", endpoint.url, "--client.api-key-var", "BENCH_API_KEY"),
    ]
    environment = {**os.environ, "BENCH_API_KEY": "none", "PYTHONPATH": str(place)}
    with (place / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=place, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    answered = endpoint.stats().requests - before
    if process.returncode or answered < count:
        raise BenchError(f"{answered} of {count} rollouts of vf-eval: {(place / 'log.txt').read_text()[-1000:]}")
    return used.ru_utime + used.ru_stime


def measure_public_nemo_gym(folder: Path, *, rollouts: int) -> OtherCost:
    """`ng_collect_rollouts` with `ng_run` of another NeMo Gym: a clone that is set up in `<folder>/.venv`."""
    scripts = folder / ".venv" / "bin"
    if not (scripts / "ng_run").exists():
        raise BenchError(f"{scripts} has no `ng_run`. Set that clone up first.")
    head = [f"+head_server.port={find_open_port()}"]
    with serving_endpoint(EndpointSpec(turns=1)) as endpoint, tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        settings = [
            f"+config_paths=[{ONE_TURN.config},{MODEL_CONFIG}]",
            *(f"+policy_base_url={endpoint.url}", "+policy_api_key=none", "+policy_model_name=stub"),
        ]
        with ng_run([*settings, *head], cwd=folder, scripts=scripts) as run:

            def spend(count: int) -> float:
                rows = write_rows(place / f"rows_{count}.jsonl", ONE_TURN, count)
                output, before_s = place / f"out_{count}.jsonl", tree_cpu_s(run.pid)
                own_s = collect(ONE_TURN.agent, rows, output, count, head, scripts=scripts, cwd=folder)
                return own_s + tree_cpu_s(run.pid) - before_s

            return OtherCost(f"NeMo Gym in {folder}, through ng_run", _marginal_us(spend, rollouts), rollouts)


def _marginal_us(spend: Callable[[int], float], rollouts: int) -> float:
    """Return the cost of one more rollout. A few count as start-up."""
    few = max(1, rollouts // 10)
    start_up_s = spend(few)
    return (spend(rollouts) - start_up_s) / (rollouts - few) * 1e6
