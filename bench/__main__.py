"""`make bench`: measure the cost of a rollout and print the table. `--output` also writes it to a folder."""

import argparse
from pathlib import Path

import orjson

from bench.others import measure_public_nemo_gym, measure_verifiers
from bench.report import Machine, Results, as_markdown
from bench.rollout_cost import SCENARIOS, WARM_UP_ROWS, measure_often
from nemo_gym.bench.processes import interrupt_on_sigterm

ROWS = 10_000
ROUNDS = 3
OTHER_ROWS = 100


def write(results: Results, folder: Path) -> None:
    """Write the page and the measurements."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(as_markdown(results))
    (folder / "results.json").write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rollouts of each kind")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measurements of each kind; the middle one counts")
    parser.add_argument(
        "--output", type=Path, help="folder for results.md and results.json; by default nothing is kept"
    )
    parser.add_argument("--verifiers", type=Path, help="also measure `verifiers`: the python that has it installed")
    parser.add_argument("--nemo-gym", type=Path, help="also measure another NeMo Gym: its clone, set up in .venv")
    parser.add_argument("--other-rows", type=int, default=OTHER_ROWS, help="rollouts of each of these")
    options = parser.parse_args()
    if options.rows <= WARM_UP_ROWS or options.rounds < 1 or options.other_rows < 1:
        parser.error(f"expected more than {WARM_UP_ROWS} --rows, and at least 1 of --rounds and --other-rows")
    for place in (options.verifiers, options.nemo_gym):
        if place is not None and not place.exists():
            parser.error(f"{place} does not exist")
    interrupt_on_sigterm()
    machine = Machine()
    costs = [measure_often(scenario, rows=options.rows, rounds=options.rounds) for scenario in SCENARIOS]
    others = []
    if options.verifiers is not None:
        others.append(measure_verifiers(options.verifiers.absolute(), rollouts=options.other_rows))
    if options.nemo_gym is not None:
        others.append(measure_public_nemo_gym(options.nemo_gym.absolute(), rollouts=options.other_rows))
    results = Results(machine, options.rows, costs, others)
    print(as_markdown(results))
    if options.output is not None:
        write(results, options.output)


if __name__ == "__main__":
    main()
