"""Collect rollouts and show progress."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.cli.command import command, read_command_line
from nemo_gym.common import event_loop
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.output_files import failures_path
from nemo_gym.rollouts.recording import record_or_replay
from nemo_gym.rollouts.types import Outcome, Scored
from nemo_gym.runtime.connect import connect_servers

LINE_EVERY_S = 10.0


class Progress:
    """Shows how many rollouts are done, mean reward, failures, in flight, rate and time left: as a bar on a terminal,
    otherwise as a line every few seconds."""

    def __init__(self, helper: RolloutCollectionHelper) -> None:
        self._helper = helper
        self._scored = self._failed = 0
        self._rewards = 0.0
        self._started = time.monotonic()
        self._next_at = self._started + LINE_EVERY_S
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(desc="Collecting rollouts", unit="rollout", dynamic_ncols=True)

    def __call__(self, outcome: Outcome) -> None:
        if isinstance(outcome, Scored):
            self._scored += 1
            self._rewards += outcome.figures.get("reward", 0.0)
        elif outcome.is_final:
            self._failed += 1
        else:
            return
        if self._bar is not None:
            self._bar.total = self._helper.total
            self._bar.initial = self._helper.found  # which do not count for the rate
            self._bar.set_postfix_str(self._figures(), refresh=False)
            self._bar.update(self._done - self._bar.n)
        elif time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + LINE_EVERY_S
            self._print()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        else:
            self._print()

    @property
    def _done(self) -> int:
        return self._helper.found + self._scored + self._failed

    def _figures(self) -> str:
        reward = f"{self._rewards / self._scored:.3f}" if self._scored else "-"
        return f"reward {reward}, {self._failed} failed, {self._helper.in_flight} in flight"

    def _print(self) -> None:
        rate = (self._scored + self._failed) / max(time.monotonic() - self._started, 1e-9)
        total = max(self._helper.total, self._done)
        left = f", {timedelta(seconds=round((total - self._done) / rate))} left" if rate else ""
        status = f"{self._done} of {total}, {self._figures()}, {rate:.3g} a second{left}"
        print(f"Collecting rollouts: {status}", file=sys.stderr)


@command(RolloutCollectionConfig)
def collect_rollouts() -> int:
    """Run an agent on every row of a dataset and write the scored rollouts."""
    config = read_command_line(fill_ports=False)
    options = RolloutCollectionConfig.read(config)
    metrics = collect_with_progress(config, options)
    return int(metrics.failed.total() > options.tolerated_failures)


def collect_with_progress(config: DictConfig, options: RolloutCollectionConfig) -> RunningMetrics:
    """Collect, show progress, and print the figures."""
    helper = RolloutCollectionHelper()
    progress = Progress(helper)
    try:
        return event_loop.run(_collect(config, options, helper, progress))
    finally:
        progress.close()
        if helper.metrics is not None:  # also if the file of metrics cannot be written
            _show(helper.metrics, Path(options.output_jsonl_fpath))


async def _collect(
    config: DictConfig, options: RolloutCollectionConfig, helper: RolloutCollectionHelper, progress: Progress
) -> RunningMetrics:
    async with connect_servers(config) as client:
        settings: Any = OmegaConf.to_container(client.global_config_dict, resolve=True)
        with record_or_replay(client, options, settings):
            return await helper.run_from_config(options, client=client, settings=settings, report=progress)


def _show(metrics: RunningMetrics, output: Path) -> None:
    print(json.dumps(metrics.means(), indent=4))
    print(metrics.table())
    print(f"{metrics.scored} scored rollouts in {output}")
    if metrics.failed:
        causes = ", ".join(f"{cause}: {count}" for cause, count in metrics.failed.most_common())
        print(f"{metrics.failed.total()} without a result ({causes}) in {failures_path(output)}", file=sys.stderr)
