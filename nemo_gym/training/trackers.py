"""Experiment trackers: metrics of rollouts go to TensorBoard, Weights & Biases or MLflow while they are made.

`RolloutTracker` adds rollouts up and passes means on: of a collection every few seconds, of a trainer's session at
every policy version. A thread of its own writes them, and what fails there is a log line: a tracker that is slow or
down costs no rollout."""

import logging
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Protocol

from nemo_gym.common.exceptions import exception_repr
from nemo_gym.common.logging import RateLimitedLog
from nemo_gym.common.statistics import PASS_THRESHOLD
from nemo_gym.errors import ConfigError, MissingExtraError
from nemo_gym.rollouts.types import Outcome

logger = logging.getLogger(__name__)
rate_limited_log = RateLimitedLog(logger)

LOG_EVERY_S = 10.0
CLOSE_TIMEOUT_S = 20.0
"""Seconds for which the end of a run waits until its last metrics are written."""
OUTPUT_TOKENS = 1
"""Their place in `Outcome.tokens`."""


class Tracker(Protocol):
    """A target of metrics."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Event files in a folder, for `tensorboard --logdir`."""

    def __init__(self, folder: str) -> None:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

        self._writer = SummaryWriter(folder)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A run of a Weights & Biases project. Its environment variables hold, such as WANDB_MODE=offline."""

    def __init__(self, project: str) -> None:
        import wandb  # type: ignore[import-not-found, unused-ignore]

        self._run = wandb.init(project=project)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """A run on an MLflow server or in a folder, in the experiment that MLFLOW_EXPERIMENT_NAME names."""

    def __init__(self, uri: str) -> None:
        import mlflow  # type: ignore[import-not-found, unused-ignore]

        self._client = mlflow.MlflowClient(tracking_uri=uri)
        mlflow.set_tracking_uri(uri)
        self._run = mlflow.start_run()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run.info.run_id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run.info.run_id)


TRACKERS: dict[str, Callable[[str], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def open_tracker(target: str) -> Tracker:
    """The tracker of a target such as `tensorboard:runs/1`."""
    kind, _, place = target.partition(":")
    if kind not in TRACKERS or not place:
        known = "tensorboard:DIR, wandb:PROJECT or mlflow:URI"
        raise ConfigError(f"log_to is '{target}'; expected {known}.")
    try:
        return TRACKERS[kind](place)
    except ImportError as error:
        raise MissingExtraError(f"log_to={kind}:...", kind) from error
    except Exception as error:
        raise ConfigError(f"Cannot log to {target}: {exception_repr(error)}") from error


class RolloutTracker:
    """Adds rollouts up between two steps of a tracker."""

    def __init__(self, tracker: Tracker, *, made: int = 0) -> None:
        self._tracker, self._made = tracker, made
        """Rollouts that have ended: the step of a collection."""
        self._means: defaultdict[str, list[float]] = defaultdict(list)
        self._failed: Counter[str] = Counter()
        self._since = time.monotonic()
        self._ended = 0
        self._queue: queue.SimpleQueue[tuple[dict[str, float], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="nemo-gym-tracker", daemon=True)
        self._thread.start()

    def add_outcome(self, outcome: Outcome) -> None:
        """Add a rollout that ended. Every few seconds, pass on the metrics of those since."""
        if not outcome.is_final:
            return
        self.add(outcome)
        if time.monotonic() - self._since > LOG_EVERY_S:
            self.log(self._made)

    def add(self, outcome: Outcome) -> None:
        """Add a rollout that ended."""
        self._made += 1
        self._ended += 1
        if outcome.error is not None:
            self._failed[outcome.error.cause] += 1
            return
        agent, reward = outcome.row.agent, outcome.values.get("reward")
        if isinstance(reward, int | float):
            self._means[f"reward/{agent}"].append(reward)
            self._means[f"pass_rate/{agent}"].append(reward >= PASS_THRESHOLD)
        self._means[f"cut_off/{agent}"].append(outcome.is_cut_off)
        self._means[f"seconds/{agent}"].append(outcome.seconds)
        tokens = _output_tokens(outcome.tokens)
        if tokens is not None:
            self._means[f"output_tokens/{agent}"].append(tokens)

    def add_staleness(self, versions: int) -> None:
        """Add how many versions old a group was when the trainer took it."""
        self._means["staleness/mean"].append(versions)

    def log(self, step: int, counts: Mapping[str, float] | None = None) -> None:
        """Pass on the metrics since the last time, and these."""
        now = time.monotonic()
        metrics: dict[str, float] = {name: fmean(values) for name, values in self._means.items()}
        if staleness := self._means.get("staleness/mean"):
            metrics["staleness/max"] = max(staleness)
        if self._ended:
            metrics["rollouts_per_second"] = self._ended / max(now - self._since, 1e-9)
            metrics["failures/all"] = self._failed.total()
            metrics |= {f"failures/{cause}": count for cause, count in self._failed.items()}
        metrics |= counts or {}
        self._means.clear()
        self._failed.clear()
        self._since, self._ended = now, 0
        if metrics:
            self._queue.put((metrics, step))

    def close(self, step: int | None = None) -> None:
        """Pass on what is left, and wait a while for it to be written."""
        self.log(self._made if step is None else step)
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("the last metrics were not written within %g s", CLOSE_TIMEOUT_S)

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            self._try(self._tracker.log, *item)
        self._try(self._tracker.close)

    def _try(self, do: Callable[..., None], *args: Any) -> None:
        try:
            do(*args)
        except Exception as error:
            rate_limited_log.warning("tracker", "metrics were not written: %s", exception_repr(error))


def track_rollouts(target: str, *, made: int = 0) -> RolloutTracker:
    """Track rollouts with the tracker of a target. `made` rollouts were made before."""
    return RolloutTracker(open_tracker(target), made=made)


def _output_tokens(tokens: Sequence[Any]) -> float | None:
    count = tokens[OUTPUT_TOKENS] if len(tokens) > OUTPUT_TOKENS else None
    return count if isinstance(count, int | float) else None
