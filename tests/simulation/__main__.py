"""`python -m tests.simulation --seeds 1000`: play seeds, each in a forked child, and show the timeline of one that
breaks an invariant."""

# ruff: noqa: E402 - the edges first; this is a command
from tests.simulation import edges

edges.install()

import argparse
import asyncio
import gc
import hashlib
import os
import pickle
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.simulation.regressions import REGRESSIONS
from tests.simulation.scenario import Plan, Scenario, warm_up
from tests.simulation.trainer import TrainerScenario
from tests.simulation.world import ViolationError, World

SHOWN_LINES = 300
NOTHING: Mapping[str, Any] = {}


@dataclass
class Report:
    """What became of a seed."""

    seed: int
    violation: str
    steps: int
    rollouts: int
    virtual_s: float
    digest: str
    plan: str
    timeline: list[str]


def play(seed: int, *, scale: int = 1, keeps_timeline: bool = False, fixed: Mapping[str, Any] = NOTHING) -> Report:
    """Play one seed in this process, which is of no use after it."""
    folder = Path(tempfile.mkdtemp(prefix="simulation-"))
    world = World(seed)
    edges.enter(world, str(folder))
    violation, plan = "", None
    try:
        plan = replace(Plan.draw(world, scale=scale, layout=fixed.get("layout")), **fixed)
        make = TrainerScenario if plan.layout == "session" else Scenario
        make(world, plan, folder).play()
    except ViolationError as error:
        violation = str(error)
    except BaseException:
        violation = "the simulator failed: " + traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [f"{at - 1000:12.4f}  {who:<14} {text}".replace(str(folder), "") for at, who, text in world.timeline]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    rollouts = plan.rows * plan.repeats if plan else 0
    shown = lines if keeps_timeline or violation else []
    return Report(seed, violation, world.steps, rollouts, world.now - 1000, digest, repr(plan), shown)


def play_in_child(seed: int, **options: Any) -> Report:
    """Play a seed in a fork, so that seeds share nothing and what killed processes leave goes with it."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        with os.fdopen(write_end, "wb", closefd=False) as pipe:
            pipe.write(pickle.dumps(play(seed, **options)))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        return Report(seed, "the simulator's process died", 0, 0, 0.0, "", "", [])
    report: Report = pickle.loads(answer)
    return report


def main() -> int:
    """Play the seeds that the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="How many seeds to play.")
    parser.add_argument("--start", type=int, default=1, help="The first of them.")
    parser.add_argument("--seed", type=int, help="Play this seed alone, and show its timeline.")
    parser.add_argument("--layout", help="Play only this arrangement of processes.")
    parser.add_argument("--regressions", action="store_true", help="Play the seeds that found defects.")
    parser.add_argument("--scale", type=int, default=1, help="Multiply the number of rows.")
    parser.add_argument("--all", action="store_true", help="Go on after an invariant was broken.")
    parser.add_argument("--digests", action="store_true", help="Print a digest of the timeline of each seed.")
    options = parser.parse_args()
    asyncio.run(warm_up(Path(tempfile.gettempdir())))
    gc.collect()
    gc.disable()
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    fixed = {} if options.layout is None else {"layout": options.layout}
    played: list[tuple[int, Mapping[str, Any]]] = [(seed, fixed) for seed in seeds]
    if options.regressions:
        played = [(each.seed, each.plan) for each in REGRESSIONS]
    counts: Counter[str] = Counter()
    virtual_s, broken, cpu = 0.0, [], os.times()
    for seed, plan in played:
        report = play_in_child(seed, scale=options.scale, keeps_timeline=options.seed is not None, fixed=plan)
        counts.update(events=report.steps, rollouts=report.rollouts, seeds=1)
        virtual_s += report.virtual_s
        if report.timeline:
            print("\n".join(report.timeline if options.seed is not None else report.timeline[-SHOWN_LINES:]))
        if options.digests:
            print(f"seed {seed}: {report.digest}, {report.steps} events")
        if report.violation:
            broken.append(seed)
            print(f"seed {seed} breaks an invariant: {report.violation}")
            print(f"To see all of it: python -m tests.simulation --seed {seed}")
            if not options.all:
                break
    used = os.times()
    cpu_s = used.user + used.system + used.children_user + used.children_system - cpu.user - cpu.system
    print(
        f"{counts['seeds']} seeds, {counts['rollouts']} rollouts, {counts['events']} events in {virtual_s / 3600:.1f} "
        f"virtual hours, {cpu_s:.1f} s of CPU, {counts['events'] / max(cpu_s, 1e-9):.0f} events a second; "
        f"broken: {broken or 'none'}"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of texts have another order in each process otherwise
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], environment)
    sys.exit(main())
