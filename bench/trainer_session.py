"""`python -m bench.trainer_session`: the CPU time of a trainer's session and of forks.

It is that of all processes but the simulated model, start-up subtracted. `ng_bench +mode=groups` measures the time to
complete groups."""

import argparse
import os
import time

from nemo_gym.bench.endpoint import EndpointSpec
from nemo_gym.bench.groups import session_at
from nemo_gym.bench.processes import cpu_s, tree
from nemo_gym.bench.report import table
from nemo_gym.testing import rows_of

COUNTER = "resources_servers/example_stateful_counter"
PATHS = [f"{COUNTER}/configs/stateful_counter.yaml"]
ROW = {
    **rows_of(f"{COUNTER}/data/example.jsonl")[0],
    "agent_ref": {"type": "responses_api_agents", "name": "stateful_counter_simple_agent"},
}
ARGUMENTS = {"increment_counter": '{"count": 1}', "get_counter_value": "{}"}


def cost(rollouts: int, turns: int, workers: int, keep_partial: bool) -> list[str]:
    """CPU time and rate of submitted rollouts."""
    spec = EndpointSpec("constant:0.05", turns, tool_arguments=ARGUMENTS)
    with session_at(PATHS, spec, num_workers=workers, keep_partial=keep_partial) as (session, stub):
        for handle in [session.submit(ROW) for _ in range(64)]:
            handle.result()
        ours = [pid for pid in tree(os.getpid()) if pid not in stub.pids]
        before, own, started = cpu_s(ours), cpu_s([os.getpid()]), time.monotonic()
        for handle in [session.submit(ROW) for _ in range(rollouts)]:
            handle.result()
        seconds = time.monotonic() - started
        spent, own = cpu_s(ours) - before, cpu_s([os.getpid()]) - own
    per_rollout = [f"{1000 * value / rollouts:.3f}" for value in (spent, own)]
    return [str(workers), str(keep_partial), str(rollouts), str(turns), *per_rollout, f"{rollouts / seconds:.0f}"]


def forks(count: int) -> list[str]:
    """Forks of one prefix of four model calls, in an environment that restores by copy or replay."""
    with session_at(PATHS, EndpointSpec(turns=6, tool_arguments=ARGUMENTS)) as (session, stub):
        first = session.submit(ROW, keep_calls=True)
        first.result()
        ours = [pid for pid in tree(os.getpid()) if pid not in stub.pids]
        before = cpu_s(ours)
        for handle in session.fork(first, step=4, n=count):
            handle.result()
        return [str(count), f"{1000 * (cpu_s(ours) - before) / count:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a trainer's session.")
    parser.add_argument("--rollouts", type=int, default=4096)
    options = parser.parse_args()
    head = ["workers", "keep_partial", "rollouts", "turns", "CPU ms a rollout", "of it trainer", "rollouts/s"]
    print(table(head, [cost(options.rollouts, 10, workers, keep) for workers in (1, 2) for keep in (True, False)]))
    print(table(["forks", "CPU ms each"], [forks(256)]))


if __name__ == "__main__":
    main()
