"""The statistics that `ng_prepare_data` writes: their names, and average, minimum and maximum of many numbers."""

from collections.abc import Mapping

from nemo_gym.common.statistics import Moments

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


class AvgMinMax(Moments):
    """Statistics of numbers, as the files beside datasets have them."""

    def aggregate(self) -> Mapping[str, float]:
        """Return the statistics as they are written, rounded. Without any number, all are 0."""
        mean, least, most = (self.mean, self.min, self.max) if self.total else (0.0, 0.0, 0.0)
        found = {AVERAGE: mean, MINIMUM: least, MAXIMUM: most, DEVIATION: self.deviation()}
        rounded = {name: round(float(value), 2 if abs(value) >= 1 else 3) for name, value in found.items()}
        return {COUNT: self.total, **rounded}
