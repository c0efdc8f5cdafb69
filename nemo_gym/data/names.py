"""The names of statistics in the files that `ng_prepare_data` writes."""

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
