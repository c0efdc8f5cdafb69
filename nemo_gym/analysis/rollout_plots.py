"""The plots of a file of rollouts: rewards, pass@k, reward against length, time by stage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.analysis.plots import Panel, Sample, bars, curve, histogram, scatter
from nemo_gym.analysis.records import read_rollouts
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.output_files import metrics_path

Stages = dict[str, dict[str, float]]


class RolloutPlots:
    """Takes in scored rollouts one by one; `metrics` gets the same ones from the caller."""

    def __init__(self, metrics: RunningMetrics) -> None:
        self._metrics = metrics
        self._rewards: list[float] = []
        self._lengths = Sample()

    def add(self, record: Mapping[str, Any]) -> None:
        self._rewards.append(record["reward"])
        tokens = _output_tokens(record)
        if tokens is not None:
            self._lengths.add(tokens, record["reward"])

    def panels(self, stages: Stages, *, label: str = "") -> list[Panel]:
        """The plots, as far as the records tell. `label` follows each title."""
        entries = self._metrics.summary().items()
        passes = [(float(name.removeprefix("pass@")), entry["mean"]) for name, entry in entries if "pass@" in name]
        found = [histogram(f"Rewards{label}", self._rewards), curve(f"pass@k{label}", passes)]
        if self._lengths.points:
            found.append(scatter(f"Reward against length{label}", self._lengths.points, unit="tokens"))
        if stages:
            found.append(bars(f"Time by stage{label}", [_stage_bar(name, stage) for name, stage in stages.items()]))
        return found


def plots_of(path: Path, *, pass_threshold: float, label: str) -> list[Panel]:
    """The plots of a file."""
    metrics = RunningMetrics(pass_threshold=pass_threshold)
    plots = RolloutPlots(metrics)
    for stored in read_rollouts(path, warn=False):
        if isinstance(stored.record.get("reward"), int | float):
            metrics.add(stored.record)
            plots.add(stored.record)
    return plots.panels(stages_of(path), label=label)


def stages_of(rollouts: Path) -> Stages:
    """The time by stage in the metrics beside a file of rollouts, if its collection has written it."""
    try:
        found = orjson.loads(metrics_path(rollouts).read_bytes())["stages"]
        stages = {
            str(name): {key: float(stage[key]) for key in ("seconds", "requests")} for name, stage in found.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: stage for name, stage in stages.items() if name != "rollout"}


def _stage_bar(name: str, stage: Mapping[str, float]) -> tuple[str, float, str]:
    return name, stage["seconds"], f"{stage['seconds']:.3g} s, {stage['requests']:g}x"


def _output_tokens(record: Mapping[str, Any]) -> int | None:
    response = record.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else None
