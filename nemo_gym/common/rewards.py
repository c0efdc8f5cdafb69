"""Rewards are finite numbers: checks for those who make, send or read them."""

import contextlib
import json
import math
from typing import Any

from nemo_gym.common.words import shorten
from nemo_gym.errors import RolloutError

NUMBERS = (int, float)


def check_reward(reward: Any, *, server: str | None = None) -> None:
    """Raise RolloutError unless the reward is a finite number."""
    if not isinstance(reward, NUMBERS) or not math.isfinite(reward):
        raise RolloutError("verifier", f"The reward is {reward!r}; expected a finite number.", server=server)


def check_finite_numbers(reply: bytes, *, server: str | None = None) -> None:
    """Raise RolloutError if a reply that JSON readers refuse has a number that is not finite: `NaN`, `1e999`. For any
    other fault nothing is raised."""
    found: list[str] = []

    def read(number: str) -> float:
        if not math.isfinite(float(number)):
            found.append(number)
        return float(number)

    with contextlib.suppress(ValueError, RecursionError):
        result = json.loads(reply, parse_constant=read, parse_float=read, parse_int=read)
        if found and isinstance(result, dict) and "reward" in result:
            check_reward(result["reward"], server=server)
    if found:
        message = f"The reply is not JSON that every reader understands: it has the number {shorten(found[0], 40)}."
        raise RolloutError("verifier", f"{message} Expected finite numbers.", server=server)
