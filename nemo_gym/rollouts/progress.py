"""The progress of a collection, on standard error."""

import contextlib
import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from nemo_gym.common.words import count_of
from nemo_gym.errors import INVALID_ROW, RolloutError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.metrics import FailureMessages, short_message
from nemo_gym.rollouts.store import failures_path
from nemo_gym.rollouts.types import Outcome

LINE_EVERY_S = 10.0
BAR_EVERY_S = 0.1
BAR_FORMAT = "{desc} {bar:8} {n_fmt}/{total_fmt} {elapsed}<{remaining} {rate_noinv_fmt}{postfix}"
"""Parts of the progress line, most important first: the line is cut at the edge of the terminal."""
DEFAULT_COLUMNS = 80
"""Width of a terminal that does not report its size."""
MAX_MESSAGES = 5
"""Number of different failure messages that are shown at the end."""


class Progress:
    """Shows how many rollouts are done, mean reward, failures and their most frequent cause, in flight, rate and time
    left: as a bar on a terminal, otherwise as a line every few seconds. With -q, only the failures at the end."""

    def __init__(self, helper: RolloutCollectionHelper, *, is_quiet: bool | None = None) -> None:
        self._helper = helper
        self._scored = self._failed = self._invalid_rows = 0
        self._first_invalid = ""
        self.messages = FailureMessages()
        self._started = time.monotonic()
        self._next_at = self._started + LINE_EVERY_S
        by_level = not logging.getLogger().isEnabledFor(logging.INFO)
        self._is_quiet = by_level if is_quiet is None else is_quiet
        self._open = contextlib.ExitStack()
        self._bar: Any = None
        if (sys.stderr.isatty() or "ipykernel" in sys.modules) and not self._is_quiet:
            from tqdm import tqdm
            from tqdm.contrib.logging import logging_redirect_tqdm

            self._bar = tqdm(desc="Rollouts", bar_format=BAR_FORMAT, ncols=_columns(), unit="", mininterval=0)
            self._open.enter_context(logging_redirect_tqdm())  # log lines go above the bar
            self._next_at = self._started

    def start(self) -> None:
        """The time until now, in which servers have started, does not count for the rate."""
        self._started = time.monotonic()
        if self._bar is not None:
            self._bar.unpause()

    def __call__(self, outcome: Outcome) -> None:
        if outcome.error is None:
            self._scored += 1
        elif outcome.is_final:
            self._add_failure(outcome, outcome.error)
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
        self._bar.ncols = _columns()
        self._bar.total = self._helper.total
        self._bar.initial = self._helper.found  # which do not count for the rate
        self._bar.set_postfix_str(self._status(), refresh=False)
        self._bar.update(self._done - self._bar.n)

    def show_failures(self, output: Path | None) -> None:
        """Print why rollouts failed, most frequent message first, and where those of an output are."""
        if not self._failed:
            return
        _say(f"{self._failed} of {count_of(self._done, 'rollout')} failed:")
        found = self.messages.most_common(MAX_MESSAGES + 1)
        for message, count in found[:MAX_MESSAGES]:
            _say(f"  {count}× {message}")
        if self._invalid_rows:
            _say(f"{count_of(self._invalid_rows, 'invalid row')}, first: {self._first_invalid}")
        if output is not None:
            more = "More causes and all" if len(found) > MAX_MESSAGES else "All"
            _say(f"{more} failed attempts: {failures_path(output)}")

    def _add_failure(self, outcome: Outcome, error: RolloutError) -> None:
        self._failed += 1
        self.messages.add(outcome)
        if error.code == INVALID_ROW and outcome.row.repeat_index == 0:  # all rollouts of such a row fail
            self._invalid_rows += 1
            self._first_invalid = self._first_invalid or short_message(outcome)

    @property
    def _done(self) -> int:
        return self._helper.found + self._scored + self._failed

    def _status(self) -> str:
        metrics = self._helper.running_metrics
        mean = None if metrics is None else metrics.mean_reward()
        reward = "-" if mean is None else f"{mean:.3f}"
        if metrics is not None:
            metrics.signals.warn()
        return f"reward {reward}, {self._failed} failed, {self._helper.in_flight} in flight{self._failures()}"

    def _failures(self) -> str:
        if not self._failed:
            return ""
        message, count = self.messages.most_common(1)[0]
        return f", {count}× {message}"

    def _print(self) -> None:
        if self._is_quiet:
            return
        rate = (self._scored + self._failed) / max(time.monotonic() - self._started, 1e-9)
        total = max(self._helper.total, self._done)
        left = f", {timedelta(seconds=round((total - self._done) / rate))} left" if rate else ""
        status = f"{self._done} of {total}, {self._status()}, {rate:.3g} a second{left}"
        _say(f"Collecting rollouts: {status}")


def _columns() -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or DEFAULT_COLUMNS
    return DEFAULT_COLUMNS


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
