"""`python -m tests.simulation --seeds 1000`: play seeds, each in a forked child, and show the timeline of one that
breaks an invariant."""

from tests.simulation import edges

edges.install()

import argparse
import asyncio
import contextlib
import gc
import hashlib
import io
import os
import pickle
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.scenario import Plan, Scenario, warm_up
from tests.simulation.trainer import TrainerScenario
from tests.simulation.world import ViolationError, World


@dataclass
class Report:
    seed: int
    violation: str
    steps: int
    rollouts: int
    virtual_s: float
    digest: str
    plan: str
    timeline: list[str]


def play(seed: int, *, scale: int, keeps_timeline: bool) -> Report:
    """Play one seed in this process, which is of no use after it."""
    folder = Path(tempfile.mkdtemp(prefix="simulation-"))
    world = World(seed)
    edges.enter(world, str(folder))
    violation, plan = "", None
    try:
        plan = Plan.draw(world, scale=scale)
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


def play_in_child(seed: int, *, scale: int, keeps_timeline: bool) -> Report:
    """Play a seed in a fork, so that seeds share nothing and what killed processes leave goes with it."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        report = play(seed, scale=scale, keeps_timeline=keeps_timeline)
        with os.fdopen(write_end, "wb", closefd=False) as pipe:
            pipe.write(pickle.dumps(report))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        return Report(seed, "the simulator's process died", 0, 0, 0.0, "", "", [])
    return pickle.loads(answer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--seed", type=int, help="Play this seed and show its timeline.")
    parser.add_argument("--scale", type=int, default=1, help="Multiplies the number of rows.")
    parser.add_argument("--all", action="store_true", help="Go on after a violation.")
    options = parser.parse_args()
    asyncio.run(warm_up(Path(tempfile.gettempdir())))
    gc.collect()
    gc.disable()
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    counts: Counter[str] = Counter()
    virtual_s, broken, cpu = 0.0, [], os.times()
    for seed in seeds:
        report = play_in_child(seed, scale=options.scale, keeps_timeline=options.seed is not None)
        counts.update(steps=report.steps, rollouts=report.rollouts, seeds=1)
        virtual_s += report.virtual_s
        if report.timeline:
            print("\n".join(report.timeline[-400:] if options.seed is None else report.timeline))
        if report.violation:
            broken.append(seed)
            print(f"seed {seed} breaks an invariant: {report.violation}\n  again: python -m tests.simulation --seed {seed}")
            if not options.all:
                break
    used = os.times()
    cpu_s = used.user + used.system + used.children_user + used.children_system - cpu.user - cpu.system
    print(
        f"{counts['seeds']} seeds, {counts['rollouts']} rollouts, {counts['steps']} events, {virtual_s / 3600:.1f} virtual hours, "
        f"{cpu_s:.1f} s of CPU, {counts['steps'] / max(cpu_s, 1e-9):.0f} events a second; broken: {broken or 'none'}"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
