"""Figures over many rollouts, gathered as they land."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.errors import Cause


@dataclass(slots=True)
class RunningMetrics:
    """The mean of every numeric field that records have, each over the records that have it."""

    scored: int = 0
    failed: Counter[Cause] = field(default_factory=Counter)
    _sums: dict[str, float] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, record: Mapping[str, Any]) -> None:
        self.scored += 1
        for name, value in record.items():
            if isinstance(value, int | float) and not name.startswith("_"):
                self._sums[name] = self._sums.get(name, 0.0) + value
                self._counts[name] += 1

    def add_failure(self, cause: Cause) -> None:
        self.failed[cause] += 1

    def means(self) -> dict[str, float]:
        """The averages, `reward` first."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        return {**({"reward": means["reward"]} if "reward" in means else {}), **means}
