"""`python -m bench.workers`: how much faster a collection gets with more workers. The real `ng_collect_rollouts`, the
time between two lengths of the same dataset, so that start-up does not count."""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.report import Machine
from bench.rollout_cost import MODEL_CONFIG, SCENARIOS, Scenario, collect, write_rows
from nemo_gym.analysis.bench.endpoint import serving_endpoint
from nemo_gym.analysis.bench.report import table

SHORT = 500


def seconds_of(scenario: Scenario, place: Path, count: int, settings: Sequence[str]) -> float:
    output = place / f"out_{time.time_ns()}.jsonl"
    started = time.monotonic()
    collect(scenario.agent, place / f"rows_{count}.jsonl", output, count, settings)
    return time.monotonic() - started


def rate(scenario: Scenario, *, rows: int, workers: int) -> float:
    """Rollouts a second, without start-up."""
    with serving_endpoint() as endpoint, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for count in (SHORT, rows):
            write_rows(place / f"rows_{count}.jsonl", scenario, count)
        settings = [
            f"+config_paths=[{scenario.config},{MODEL_CONFIG}]",
            *(f"+policy_base_url={endpoint.url}", "+policy_api_key=none", "+policy_model_name=stub"),
            *(f"+num_workers={workers}", "+head_server.port=1", "+num_samples_in_parallel=256"),
        ]
        short_s, long_s = (seconds_of(scenario, place, count, settings) for count in (SHORT, rows))
    return (rows - SHORT) / (long_s - short_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.workers", description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--scenario", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    rows = []
    for number in options.scenario:
        scenario = SCENARIOS[number]
        rates = [rate(scenario, rows=options.rows, workers=count) for count in options.workers]
        rows.append([scenario.name, *(f"{each:,.0f} ({each / rates[0]:.2f})" for each in rates)])
    head = ["rollouts a second (ratio)", *(f"num_workers={count}" for count in options.workers)]
    print(f"{Machine()}, load {os.getloadavg()[0]:.1f} at the end.\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
