"""`python -m bench`: measure, print the table, and keep it."""

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

import orjson
import uvloop

from bench.latency import Latency, measure_latency
from bench.load import Load, Settings
from bench.report import Machine, Results, as_markdown, targets_of
from bench.rollouts import Figure, measure_rollouts
from bench.start import measure_start
from nemo_gym.common.event_loop import raise_open_file_limit

FULL = Settings(
    rounds=20,
    rounds_s=60.0,
    count=1000,
    in_flight=64,
    starts=3,
    latency_loads=(Load(30, 1), Load(640, 64), Load(2000, 1000)),
    latency_s=0.1,
    reply_chars=200,
)
"""Under three minutes."""
QUICK = replace(
    FULL, rounds=4, rounds_s=10.0, count=400, starts=1, latency_loads=(Load(10, 1), Load(128, 64), Load(1000, 1000))
)
"""Under half a minute."""
LONGEST_S = 180.0
"""A run that takes longer hangs."""


def run(settings: Settings) -> Results:
    """Measure everything."""
    machine = Machine()
    start = measure_start(settings.starts)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rollouts, latency = runner.run(_measure(settings))
    return Results(machine, settings, start, rollouts, latency, targets_of(start, rollouts))


async def _measure(settings: Settings) -> tuple[dict[str, Figure], list[Latency]]:
    async with asyncio.timeout(LONGEST_S):
        return await measure_rollouts(settings), await measure_latency(settings)


def write(results: Results, folder: Path) -> None:
    """Keep the page and the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(as_markdown(results))
    (folder / "results.json").write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2) + b"\n")


def main() -> None:
    """What the command does."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure less, in under half a minute; keeps nothing")
    parser.add_argument("--reply-chars", type=int, default=FULL.reply_chars, help="how long the model's replies are")
    parser.add_argument("--latency-s", type=float, default=FULL.latency_s, help="how long the model takes to reply")
    parser.add_argument("--output", type=Path, help="the folder for results.md and results.json")
    told = parser.parse_args()
    raise_open_file_limit()
    settings = replace(QUICK if told.quick else FULL, reply_chars=told.reply_chars, latency_s=told.latency_s)
    results = run(settings)
    print(as_markdown(results))
    folder = told.output or (None if told.quick else Path(__file__).parent)
    if folder is not None:
        write(results, folder)


if __name__ == "__main__":
    main()
