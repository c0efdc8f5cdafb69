"""Look at runs and rollouts: as a list, as a web page, in the terminal, or while they are collected."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from omegaconf import DictConfig
from pydantic import BeforeValidator, Field

from nemo_gym.cli.command import command, config_command, print_result
from nemo_gym.common import event_loop
from nemo_gym.common.paths import find
from nemo_gym.common.redaction import one_line
from nemo_gym.common.words import count_of, shorten
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.registry import RunSummary, forget, registered_runs, set_tags
from nemo_gym.server.request_checks import ServerLimits
from nemo_gym.viewer.runs import matching, runs_below
from nemo_gym.viewer.server import ViewerConfig, find_runs, serve_viewer, statuses
from nemo_gym.viewer.text import text_report

CLEAR = "\x1b[H\x1b[2J"
MAX_OLDEST = 10
MAX_CELL = 32


class RunsConfig(CommandConfig):
    """List your runs, the newest first: every collection registers its environment, model, agent, commit, time, mean
    reward, failures and cost.

    Words filter the list: by environment, model, agent, dataset, output, commit, state, tag or id. `model:gpt` looks
    in one of these only. `ng view ID` opens a run, `ng view` the whole list.

    Examples:

    ```bash
    ng runs
    ng runs mcqa model:gpt-4.1 --limit 5
    ng runs 3fa9c2d1 --tag baseline
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("search",)
    SHORT_OPTIONS: ClassVar[dict[str, str]] = {"n": "limit"}

    search: list[str] = Field(default_factory=list)
    """Words that a run must have."""

    folder: str | None = None
    """List the rollouts in this folder and below it, in place of your runs."""

    tag: Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)] = Field(
        default_factory=list
    )
    """Add these tags to the runs that are listed."""

    forget: bool = False
    """Remove the runs that are listed from the list. Their files stay."""

    limit: int = Field(default=20, ge=1)
    """Number of runs to list."""


@command(RunsConfig)
def runs(options: RunsConfig) -> None:
    """List runs, the newest first."""
    known = registered_runs() if options.folder is None else runs_below(find(options.folder, what="folder"))
    found = list(matching(known, options.search))
    listed = found[: options.limit]
    if options.tag:
        listed = [set_tags(run.id, [*run.tags, *options.tag]) for run in listed]
    if options.forget:
        if not options.search:
            raise ConfigError("Say which runs to forget, such as an id or `state:interrupted`.")
        for run in listed:
            forget(run.id)
    print_result(
        {"runs": [run.model_dump() for run in listed], "total": len(found)}, "\n".join(run_lines(found, listed))
    )


def run_lines(found: list[RunSummary], listed: list[RunSummary]) -> Iterator[str]:
    """The runs as a table."""
    if not listed:
        yield "No runs. Every collection registers itself: `ng eval letter_count --model local -n 4` makes one."
        return
    rows = [dict(zip(RUN_COLUMNS, _run_cells(run), strict=True)) for run in listed]
    shown = [name for name in RUN_COLUMNS if name in ("id", "mean") or any(row[name] for row in rows)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in shown}
    for row in [{name: name for name in shown}, *rows]:
        yield "  ".join(f"{row[name]:<{widths[name]}}" for name in shown).rstrip()
    if len(found) > len(listed):
        yield f"{len(found) - len(listed)} more; --limit {len(found)} lists all."


RUN_COLUMNS = ("id", "started", "environment", "model", "mean", "95 %", "scored", "failed", "cost", "state", "tags")


def _run_cells(run: RunSummary) -> Iterator[str]:
    yield run.id
    yield "" if run.started_at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started_at))
    yield shorten(one_line(run.name), MAX_CELL)
    yield shorten(one_line(run.model), MAX_CELL)
    yield "-" if run.mean is None else f"{run.mean:.3f}"
    yield "" if run.interval_95 is None else f"{run.interval_95[0]:.3f} .. {run.interval_95[1]:.3f}"
    yield "" if run.scored is None else f"{run.scored}/{run.total}" if run.total else str(run.scored)
    yield str(run.failed or "")
    yield "" if run.cost is None else f"${run.cost:.2f}"
    yield "" if run.state == "complete" else run.state
    yield one_line(", ".join(run.tags))


@config_command(ViewerConfig, checked=False)
def viewer(config: ViewerConfig, settings: DictConfig) -> None:
    """Show runs, rollouts, failures or datasets as a web page, or with --text in the terminal."""
    if config.text and not config.jsonl_fpath:
        found = registered_runs()
        print(*run_lines(found, found[: config.limit]), sep="\n")
        return
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
    who = " · ".join(filter(None, (run.get("environment"), run.get("model"))))
    yield f"{f'{who}: ' if who else ''}{run['output']} (process {run['pid']})"
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
