"""Look at rollouts: as a web page, in the terminal, or while they are collected."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from omegaconf import DictConfig

from nemo_gym.cli.command import config_command
from nemo_gym.common import event_loop
from nemo_gym.common.redaction import one_line
from nemo_gym.common.words import count_of
from nemo_gym.server.request_checks import ServerLimits
from nemo_gym.viewer.server import ViewerConfig, find_runs, serve_viewer, statuses
from nemo_gym.viewer.text import text_report

CLEAR = "\x1b[H\x1b[2J"
MAX_OLDEST = 10


@config_command(ViewerConfig, checked=False)
def viewer(config: ViewerConfig, settings: DictConfig) -> None:
    """Show rollouts, failures or datasets as a web page, or with --text in the terminal."""
    if config.text:
        for line in text_report(config):
            print(line)
        return
    limits = ServerLimits.of(settings)
    event_loop.run(serve_viewer(config, limits=limits, run_token=settings.get("run_token"), announce=_announce))


def _announce(urls: list[str]) -> None:
    print(*(f"Viewer: {url}" for url in urls), "Stop it with Ctrl+C.", sep="\n", flush=True)


def watch(servers: Callable[[], list[str]], *, every_s: float) -> None:
    """Print servers and collections for `ng_status --watch` until Ctrl+C, in place on a terminal."""
    while True:
        lines = [*servers(), "", *live_lines(live_runs())]
        text = "\n".join(one_line(line) for line in lines)
        print((CLEAR if sys.stdout.isatty() else "") + text, flush=True)
        time.sleep(every_s)


def live_runs() -> list[dict[str, Any]]:
    """The status of each collection in progress."""
    return asyncio.run(statuses(find_runs()))


def live_lines(runs: list[dict[str, Any]]) -> Iterator[str]:
    """The collections in progress, as text."""
    if not runs:
        yield "No collection of yours runs on this machine now."
    for run in runs:
        yield from _run_lines(run)


def _run_lines(run: dict[str, Any]) -> Iterator[str]:
    failed, rate = sum(run["failed"].values()), run["per_second"]
    done = run["scored"] + failed
    left = f", {timedelta(seconds=round((run['total'] - done) / rate))} left" if rate else ""
    reward = "-" if run["mean_reward"] is None else f"{run['mean_reward']:.4g}"
    yield f"{run['output']} (process {run['pid']})"
    yield f"  {done} of {run['total']} rollouts, mean reward {reward}, {rate:.3g} a second{left}"
    causes = ", ".join(f"{cause} {count}" for cause, count in run["failed"].items())
    yield f"  {run['in_flight']} in flight of at most {run['max_in_flight']}, {failed} without a result"
    if causes:
        yield f"  failures: {causes}"
    if run["stages"]:
        yield "  by stage: " + ", ".join(f"{name} {stage['in_flight']}" for name, stage in run["stages"].items())
    for worker in run["workers"]:
        memory, cpu = worker.get("memory_bytes", 0) / 1e6, worker.get("cpu_seconds", 0)
        name = worker["worker"]
        who = (
            "head server"
            if name == "head"
            else f"worker {name}: {count_of(int(worker.get('rollouts', 0)), 'rollout')}"
        )
        yield f"  {who}, {cpu:.1f} s CPU, {memory:.0f} MB"
    for rollout in run["rollouts"][:MAX_OLDEST]:
        place = f"{rollout['server']}{rollout['path']}" if "server" in rollout else rollout["agent"]
        yield (
            f"  task {rollout['task_index']} repeat {rollout['repeat_index']}: {rollout['seconds']:.1f} s, "
            f"{rollout.get('stage', 'running')} at {place}"
        )
    for ended in run["slowest"][:3]:
        yield f"  slowest: task {ended['task_index']}, {ended['seconds']:.3g} s, {ended['outcome']}"
