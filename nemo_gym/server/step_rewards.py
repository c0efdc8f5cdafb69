"""Rewards of single turns of a rollout, which an environment may give beside the reward of the whole.

A record has them as `step_rewards`, one number for each turn. A turn is one reply of the policy: its items up to the
one that has its tokens, or without tokens up to the next item that is not the policy's."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import set_fields
from nemo_gym.llm_api.tokens import SAMPLED

STEP_REWARDS = "step_rewards"
_OTHERS_ROLES = frozenset(("user", "system", "developer"))


def turns_of(output: Sequence[Any]) -> list[range]:
    """The turns of the policy in the output of a response: of each, which items it has."""
    turns, start = list[range](), None
    for index, item in enumerate(output):
        fields = set_fields(item) if isinstance(item, BaseModel) else item
        if not _is_policys(fields):
            if start is not None:
                turns.append(range(start, index))
            start = None
            continue
        start = index if start is None else start
        if fields.get(SAMPLED) is not None:
            turns.append(range(start, index + 1))
            start = None
    return turns if start is None else [*turns, range(start, len(output))]


def _is_policys(item: Mapping[str, Any]) -> bool:
    return not str(item.get("type", "")).endswith("_output") and item.get("role") not in _OTHERS_ROLES


def with_step_rewards(fields: JsonObject, response: Mapping[str, Any]) -> JsonObject:
    """The fields of a score with `step_rewards` as a record has them. An environment gives a list with one number for
    each turn, or a dict with those of output items, by their index. Those of one turn are added up."""
    given = fields.get(STEP_REWARDS)
    if given is None:
        return fields
    turns = turns_of(response.get("output") or ())
    found = _by_turn(given, turns) if isinstance(given, Mapping) else given
    if not isinstance(found, list | tuple) or len(found) != len(turns) or not all(map(_is_number, found)):
        expected = f"one finite number for each of {len(turns)} turns, or such numbers by the index of an output item"
        raise RolloutError("verifier", f"verify returned step_rewards={given!r:.200}; expected {expected}.")
    return {**fields, STEP_REWARDS: [float(reward) for reward in found]}


def _by_turn(given: Mapping[Any, Any], turns: list[range]) -> list[float] | None:
    """None if an item is no policy's, or its reward no number."""
    of_item = {index: place for place, turn in enumerate(turns) for index in turn}
    if not given.keys() <= of_item.keys() or not all(map(_is_number, given.values())):
        return None
    rewards = [0.0] * len(turns)
    for index, reward in given.items():
        rewards[of_item[index]] += reward
    return rewards


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
