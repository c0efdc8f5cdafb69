"""Distributions of a model's latency, written as text: `constant:1`, `uniform:0.5:2`, `exponential:1`,
`lognormal:2:0.8` (median and sigma)."""

import math
import random
from collections.abc import Callable
from typing import NamedTuple

from nemo_gym.errors import ConfigError

_SAMPLERS: dict[str, tuple[int, Callable[..., float]]] = {
    "constant": (1, lambda _chance, value: value),
    "uniform": (2, lambda chance, low, high: chance.uniform(low, high)),
    "exponential": (1, lambda chance, mean: chance.expovariate(1 / mean) if mean else 0.0),
    "lognormal": (2, lambda chance, median, sigma: chance.lognormvariate(math.log(median), sigma) if median else 0.0),
}


class Latency(NamedTuple):
    """A distribution of seconds."""

    kind: str
    parameters: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> "Latency":
        kind, _, rest = text.partition(":")
        known = (
            f"'{text}' is not a latency. Expected one of: constant:1, uniform:0.5:2, exponential:1, lognormal:2:0.8"
        )
        try:
            parameters = tuple(float(part) for part in rest.split(":"))
        except ValueError as error:
            raise ConfigError(known) from error
        if kind not in _SAMPLERS or len(parameters) != _SAMPLERS[kind][0]:
            raise ConfigError(known)
        if any(not 0 <= value < math.inf for value in parameters):
            raise ConfigError(f"'{text}' is not a latency: its numbers must be finite and not negative.")
        return cls(kind, parameters)

    def sample(self, chance: random.Random) -> float:
        return _SAMPLERS[self.kind][1](chance, *self.parameters)

    def __str__(self) -> str:
        return f"{self.kind}:{':'.join(f'{value:g}' for value in self.parameters)}"
