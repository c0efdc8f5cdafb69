"""The statistics that `ng_prepare_data` writes: their names, and average, minimum and maximum of many numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

COUNT, AVERAGE, MINIMUM, MAXIMUM = "Total # non-null values", "Average", "Min", "Max"
DEVIATION = "Standard deviation"

EXAMPLES = "Number of examples"
TOOLS = "Number of tools"
WORDS = "Json-dumped number of words (proxy for token count)"
TURNS = "Number of turns"
TEMPERATURE = "Temperature"
TOKENS = "Input length in OpenAI tokens"
UNIQUE_PARAMS = "Number of unique create params"
UNIQUE_USER_MESSAGES = "Number of unique user messages"

ALWAYS_WRITTEN = (TOOLS, WORDS, TURNS, TEMPERATURE)
"""Also when no row has a value."""
SAMPLING_PARAMETERS = {"top_p": "Top p", "max_output_tokens": "Max output tokens", "top_logprobs": "Top logprobs"}
"""Sampling parameters of a row besides the temperature, each with its name as a statistic."""
BUILT_IN = frozenset((EXAMPLES, *ALWAYS_WRITTEN, TOKENS, UNIQUE_PARAMS, UNIQUE_USER_MESSAGES))


def rounded(value: float) -> float:
    """As statistics are written: two decimals from 1 on, three below."""
    return round(value, 2 if abs(value) >= 1 else 3)


@dataclass(slots=True)
class AvgMinMax:
    """What is known of the numbers observed so far, without the numbers."""

    total: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of the squared differences from the mean."""
    min: float = math.inf
    max: float = -math.inf

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of all these numbers."""
        if not values:
            return cls()
        least, most = min(values), max(values)
        mean = least if least == most else math.fsum(values) / len(values)
        squares = 0.0 if least == most else math.fsum([(value - mean) ** 2 for value in values])
        return cls(len(values), mean, squares, least, most)

    def observe(self, value: float) -> None:
        """One more number."""
        self.add(type(self)(1, value, 0.0, value, value))

    def add(self, other: Self) -> None:
        """All that another one has observed (Chan's form of Welford's update)."""
        if not other.total:
            return
        total, delta = self.total + other.total, other.mean - self.mean
        self.mean += delta * other.total / total
        self.squares += other.squares + delta * delta * self.total * other.total / total
        self.total = total
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)

    def repeated(self, times: int) -> Self:
        """The statistics as if every number had been observed this many times."""
        return type(self)(self.total * times, self.mean, self.squares * times, self.min, self.max)

    def aggregate(self) -> Mapping[str, float]:
        """As it is written down. Without any number, all is 0."""
        deviation = math.sqrt(self.squares / (self.total - 1)) if self.total > 1 else 0.0
        figures = (self.mean, self.min, self.max, deviation) if self.total else (0.0,) * 4
        names = (AVERAGE, MINIMUM, MAXIMUM, DEVIATION)
        return {COUNT: self.total, **{name: rounded(float(x)) for name, x in zip(names, figures, strict=True)}}
