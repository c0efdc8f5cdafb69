"""Collect rollouts and show progress."""

import contextlib
import logging
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.analysis.recording import record_or_replay
from nemo_gym.cli.benchmarks import use_dataset_of_agent
from nemo_gym.cli.command import command, read_command_line
from nemo_gym.cli.output import print_result, wants_json
from nemo_gym.common import event_loop
from nemo_gym.common.words import count_of
from nemo_gym.errors import INVALID_ROW, AggregationError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.failure_messages import FailureMessages, short_message
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.output_files import failures_path
from nemo_gym.rollouts.types import NoResult, Outcome, Scored
from nemo_gym.runtime.connect import connect_servers

LINE_EVERY_S = 10.0
BAR_EVERY_S = 0.1
MAX_MESSAGES = 5
"""How many different failure messages are shown at the end."""


class Progress:
    """Shows how many rollouts are done, mean reward, failures and their most frequent cause, in flight, rate and time
    left: as a bar on a terminal, otherwise as a line every few seconds. With -q, only the failures at the end."""

    def __init__(self, helper: RolloutCollectionHelper) -> None:
        self._helper = helper
        self._scored = self._failed = self._invalid_rows = 0
        self._first_invalid = ""
        self.messages = FailureMessages()
        self._started = time.monotonic()
        self._next_at = self._started + LINE_EVERY_S
        self._is_quiet = not logging.getLogger().isEnabledFor(logging.INFO)
        self._open = contextlib.ExitStack()
        self._bar: Any = None
        if sys.stderr.isatty() and not self._is_quiet:
            from tqdm import tqdm
            from tqdm.contrib.logging import logging_redirect_tqdm

            self._bar = tqdm(desc="Collecting rollouts", unit="rollout", dynamic_ncols=True, mininterval=0)
            self._open.enter_context(logging_redirect_tqdm())  # log lines go above the bar
            self._next_at = self._started

    def start(self) -> None:
        """The time until now, in which servers have started, does not count for the rate."""
        self._started = time.monotonic()
        if self._bar is not None:
            self._bar.unpause()

    def __call__(self, outcome: Outcome) -> None:
        if isinstance(outcome, Scored):
            self._scored += 1
        elif outcome.is_final:
            self._add_failure(outcome)
        else:
            return
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + (LINE_EVERY_S if self._bar is None else BAR_EVERY_S)
            self._show()

    def close(self) -> None:
        self._open.close()
        if self._done:
            self._show()
        if self._bar is not None:
            self._bar.close()

    def _show(self) -> None:
        if self._bar is None:
            self._print()
            return
        self._bar.total = self._helper.total
        self._bar.initial = self._helper.found  # which do not count for the rate
        self._bar.set_postfix_str(self._figures(), refresh=False)
        self._bar.update(self._done - self._bar.n)

    def show_failures(self, output: Path) -> None:
        """Print why rollouts failed, most frequent message first."""
        if not self._failed:
            return
        print(f"{self._failed} of {count_of(self._done, 'rollout')} failed:", file=sys.stderr)
        found = self.messages.most_common(MAX_MESSAGES + 1)
        for message, count in found[:MAX_MESSAGES]:
            print(f"  {count}× {message}", file=sys.stderr)
        if self._invalid_rows:
            print(f"{count_of(self._invalid_rows, 'invalid row')}, first: {self._first_invalid}", file=sys.stderr)
        more = "More causes and all" if len(found) > MAX_MESSAGES else "All"
        print(f"{more} failed attempts: {failures_path(output)}", file=sys.stderr)

    def _add_failure(self, failure: NoResult) -> None:
        self._failed += 1
        self.messages.add(failure)
        if failure.code == INVALID_ROW and failure.id.repeat_index == 0:  # all rollouts of such a row fail
            self._invalid_rows += 1
            self._first_invalid = self._first_invalid or short_message(failure)

    @property
    def _done(self) -> int:
        return self._helper.found + self._scored + self._failed

    def _figures(self) -> str:
        metrics = self._helper.running_metrics
        mean = None if metrics is None else metrics.mean_reward()
        reward = "-" if mean is None else f"{mean:.3f}"
        return f"reward {reward}, {self._failures()}, {self._helper.in_flight} in flight"

    def _failures(self) -> str:
        if not self._failed:
            return "0 failed"
        message, count = self.messages.most_common(1)[0]
        return f"{self._failed} failed: {message} ({count}×)"

    def _print(self) -> None:
        if self._is_quiet:
            return
        rate = (self._scored + self._failed) / max(time.monotonic() - self._started, 1e-9)
        total = max(self._helper.total, self._done)
        left = f", {timedelta(seconds=round((total - self._done) / rate))} left" if rate else ""
        status = f"{self._done} of {total}, {self._figures()}, {rate:.3g} a second{left}"
        print(f"Collecting rollouts: {status}", file=sys.stderr)


@command(RolloutCollectionConfig)
def collect_rollouts() -> int:
    """Run an agent on every row of a dataset and write the scored rollouts."""
    config = read_command_line(fill_ports=False)
    use_dataset_of_agent(config)
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
        output = Path(options.output_jsonl_fpath)
        if helper.metrics is not None:  # also if the file of metrics cannot be written
            _show(helper.metrics, output, progress, helper.aggregation_error)
        progress.show_failures(output)
        if helper.aggregation_error is not None:
            print(helper.aggregation_error, file=sys.stderr)
            again = f"ng_aggregate_rollouts +rollouts_jsonl_fpath={output}"
            print(f"The rollouts are on disk. Compute the metrics with the same servers: {again}", file=sys.stderr)


async def _collect(
    config: DictConfig, options: RolloutCollectionConfig, helper: RolloutCollectionHelper, progress: Progress
) -> RunningMetrics:
    async with connect_servers(config) as client:
        settings: Any = OmegaConf.to_container(client.global_config_dict, resolve=True)
        progress.start()
        with record_or_replay(client, options, settings):
            return await helper.run_from_config(options, client=client, settings=settings, report=progress)


def _show(
    metrics: RunningMetrics, output: Path, progress: Progress, aggregation_error: AggregationError | None
) -> None:
    if wants_json():
        messages = [{"message": text, "count": count} for text, count in progress.messages.most_common(MAX_MESSAGES)]
        result = {**metrics.means(), "metrics": metrics.summary(), "output": str(output), "failures": messages}
        print_result(result if aggregation_error is None else {**result, "aggregation_error": str(aggregation_error)})
        return
    print(metrics.table())
    if metrics.scored:
        print(f"Scored rollouts: {output}")
