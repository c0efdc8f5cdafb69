"""Collect rollouts, and show how it goes."""

import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig, OmegaConf

from nemo_gym import loops
from nemo_gym.command import command, read_command_line
from nemo_gym.metrics import RunningMetrics
from nemo_gym.peers import peers
from nemo_gym.rollout_collection import (
    RolloutCollectionConfig,
    RolloutCollectionHelper,
    count_rollouts,
    traffic_of,
)
from nemo_gym.rollout_store import failures_path
from nemo_gym.rollout_types import Outcome, Scored

LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Told of every outcome."""

    def __call__(self, outcome: Outcome) -> None: ...

    def close(self) -> None: ...


class Bar:
    """A progress bar, for people."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar: Any = tqdm(total=total, desc="Collecting rollouts", unit="rollout", dynamic_ncols=True)
        self._failed = 0

    def __call__(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Scored):
            self._failed += 1
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


class Lines:
    """A line now and then, for logs."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._failed = total, 0, 0
        self._next_at = time.monotonic() + LINE_EVERY_S

    def __call__(self, outcome: Outcome) -> None:
        self._done += 1
        self._failed += not isinstance(outcome, Scored)
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + LINE_EVERY_S
            self._show()

    def close(self) -> None:
        self._show()

    def _show(self) -> None:
        print(f"Collecting rollouts: {self._done} of {self._total}, {self._failed} failed", file=sys.stderr)


@command(RolloutCollectionConfig)
def collect_rollouts() -> int:
    """Have an agent answer every row of a dataset and write down the scored rollouts."""
    config = read_command_line(fill_ports=False)
    options = RolloutCollectionConfig.read(config)
    metrics = collect_with_progress(config, options)
    return int(metrics.failed.total() > options.tolerated_failures)


def collect_with_progress(config: DictConfig, options: RolloutCollectionConfig) -> RunningMetrics:
    """Collect, with a bar on a terminal and lines elsewhere, and print the averages."""
    total = count_rollouts(options)
    progress: Progress = Bar(total) if sys.stderr.isatty() else Lines(total)
    try:
        metrics = loops.run(_collect(config, options, progress))
    finally:
        progress.close()
    print(json.dumps(metrics.means(), indent=4))
    _summarise(metrics, Path(options.output_jsonl_fpath))
    return metrics


async def _collect(config: DictConfig, options: RolloutCollectionConfig, progress: Progress) -> RunningMetrics:
    async with peers(config) as client:
        settings: Any = OmegaConf.to_container(client.global_config_dict, resolve=True)
        helper = RolloutCollectionHelper()
        with traffic_of(client, options, settings):
            return await helper.run_from_config(options, client=client, settings=settings, report=progress)


def _summarise(metrics: RunningMetrics, output: Path) -> None:
    print(f"{metrics.scored} scored rollouts in {output}")
    if metrics.failed:
        causes = ", ".join(f"{cause}: {count}" for cause, count in metrics.failed.most_common())
        print(f"{metrics.failed.total()} without a result ({causes}) in {failures_path(output)}", file=sys.stderr)
