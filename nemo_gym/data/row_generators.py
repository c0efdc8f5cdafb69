"""Rows made from a seed: what the `generate_rows` functions of environments have in common.

The same seed gives the same rows, byte for byte, and a longer run begins with the rows of a shorter one. No two rows
of a run have the same prompt, so a run that is cut in two gives two disjoint datasets."""

import json
from collections.abc import Callable, Iterator
from random import Random

from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject

EASIEST, HARDEST = 1, 5
MAX_TRIES = 200
"""After this many consecutive duplicates the generator counts as exhausted."""

MakeRow = Callable[[Random, int], JsonObject]
"""Makes a row from a source of randomness and a difficulty from 1 to 5."""


def difficulty_level(difficulty: float | str | None) -> int:
    """A difficulty from 1 to 5; without one, 1."""
    if difficulty is None:
        return EASIEST
    try:
        level = int(difficulty)
        is_whole = level == float(difficulty)
    except (TypeError, ValueError, OverflowError):
        level, is_whole = 0, False
    if not is_whole or not EASIEST <= level <= HARDEST:
        raise ConfigError(
            f"difficulty={difficulty} is not valid. Expected a whole number from {EASIEST} to {HARDEST}."
        )
    return level


def distinct_rows(
    environment: str, make: MakeRow, *, seed: int, count: int, difficulty: float | str | None
) -> Iterator[JsonObject]:
    """So many rows with different prompts."""
    level = difficulty_level(difficulty)
    prompts: set[str] = set()
    tried = 0
    while len(prompts) < count:
        for _ in range(MAX_TRIES):
            row = make(Random(f"{environment} {seed} {level} {tried}"), level)
            tried += 1
            prompt = json.dumps(row["responses_create_params"]["input"])
            if prompt not in prompts:
                prompts.add(prompt)
                yield row
                break
        else:
            raise ConfigError(
                f"{environment} has no more than about {len(prompts)} different rows of difficulty {level}; "
                f"{count} were asked for."
            )
