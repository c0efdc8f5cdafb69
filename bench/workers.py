"""`python -m bench.workers`: the speed-up of a collection with more workers. Measures the difference between two
lengths of a dataset with the real `ng_collect_rollouts`, so that start-up does not count."""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.report import Machine
from bench.rollout_cost import MODEL_CONFIG, SCENARIOS, Scenario, collect, write_rows
from nemo_gym.bench.endpoint import serving_endpoint
from nemo_gym.bench.processes import cpu_s, interrupt_on_sigterm
from nemo_gym.bench.report import table

SHORT = 500
LEAST = 5000
"""With fewer rollouts the difference of the two times is too small."""
CORES = len(os.sched_getaffinity(0))


class Rate(NamedTuple):
    """Speed of a collection, without start-up."""

    rollouts_per_s: float
    endpoint_cores: float
    """Cores that the stub endpoint uses meanwhile."""

    def on_free_cores(self, before: "Rate") -> float:
        """Return the speed-up over another collection if the endpoint were on another machine."""
        return self.rollouts_per_s / before.rollouts_per_s * CORES / (CORES - self.endpoint_cores)


def measure(scenario: Scenario, *, rows: int, workers: int) -> Rate:
    with serving_endpoint() as endpoint, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        endpoint.stats()  # its own start does not count
        settings = [
            f"+config_paths=[{scenario.config},{MODEL_CONFIG}]",
            *(f"+policy_base_url={endpoint.url}", "+policy_api_key=none", "+policy_model_name=stub"),
            *(f"+num_workers={workers}", "+head_server.port=1", "+num_samples_in_parallel=256"),
        ]

        def seconds_of(count: int) -> tuple[float, float]:
            dataset, output = place / f"rows_{count}.jsonl", place / f"out_{count}.jsonl"
            write_rows(dataset, scenario, count)
            cpu_before_s, started = cpu_s(endpoint.pids), time.monotonic()
            collect(scenario.agent, dataset, output, count, settings)
            return time.monotonic() - started, cpu_s(endpoint.pids) - cpu_before_s

        (short_s, short_cpu_s), (long_s, long_cpu_s) = seconds_of(SHORT), seconds_of(rows)
    wall_s = long_s - short_s
    return Rate((rows - SHORT) / wall_s, (long_cpu_s - short_cpu_s) / wall_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.workers", description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000, help="rollouts of each kind")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    listed = ", ".join(f"{number}: {scenario.name}" for number, scenario in enumerate(SCENARIOS))
    numbers = range(len(SCENARIOS))
    parser.add_argument("--scenario", type=int, nargs="+", default=[*numbers], choices=numbers, help=listed)
    options = parser.parse_args()
    if options.rows < LEAST or min(options.workers) < 1:
        parser.error(f"expected at least {LEAST} --rows and 1 of --workers")
    interrupt_on_sigterm()
    rows = []
    for number in options.scenario:
        scenario = SCENARIOS[number]
        rates = [measure(scenario, rows=options.rows, workers=count) for count in options.workers]
        rows.append([scenario.name, *(_shown(each, rates[0]) for each in rates)])
    head = ["rollouts a second", *(f"num_workers={count}" for count in options.workers)]
    print(f"{Machine()}, load {os.getloadavg()[0]:.1f} at the end.\n\n{table(head, rows)}")


def _shown(rate: Rate, first: Rate) -> str:
    if rate is first:
        return f"{rate.rollouts_per_s:,.0f}"
    ratio, free = rate.rollouts_per_s / first.rollouts_per_s, rate.on_free_cores(first)
    taken = f"the endpoint takes {rate.endpoint_cores:.2f} cores, without it {free:.2f} times"
    return f"{rate.rollouts_per_s:,.0f}: {ratio:.2f} times ({taken})"


if __name__ == "__main__":
    main()
