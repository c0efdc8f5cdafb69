"""Training samples: the segments of scored rollouts with their rewards, in groups with advantages for GRPO."""

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.base_resources_server import check_reward
from nemo_gym.rollouts.token_traces import FlatTokens, TokenTraceError, trace_of
from nemo_gym.rollouts.types import is_cut_off

ADVANTAGE_EPSILON = 1e-6
"""Keeps an advantage finite if the rewards of a group hardly differ."""


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One segment of a rollout. All segments of a rollout have its reward and its advantage."""

    tokens: FlatTokens
    reward: float
    segment: int = 0
    """Which segment of the rollout, from 0."""
    is_cut_off: bool = False
    """True if a token or step limit ended the rollout before the model was done."""
    advantage: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one prompt. A rollout without a result is not among them."""

    key: Hashable
    rewards: list[float]
    advantages: list[float]
    rollouts: list[list[TrainingSample]]
    """The segments of each rollout. One in which nothing was sampled has none, but its reward counts."""

    @property
    def has_signal(self) -> bool:
        """False if all rewards are equal: then all advantages are 0, and a trainer may skip the group."""
        return len(set(self.rewards)) > 1

    @property
    def samples(self) -> list[TrainingSample]:
        return [sample for segments in self.rollouts for sample in segments]


def samples_of(record: Mapping[str, Any], *, advantage: float | None = None) -> list[TrainingSample]:
    """The segments of a scored record, or of a result of `run_examples`, in which the policy sampled something."""
    reward, response = reward_of(record), record["response"]
    flattened = [segment.flatten() for segment in trace_of(record).segments]
    was_cut_off = is_cut_off(response)
    return [
        TrainingSample(tokens, reward, index, was_cut_off, advantage)
        for index, tokens in enumerate(flattened)
        if any(tokens.loss_mask)
    ]


def reward_of(record: Mapping[str, Any]) -> float:
    """The reward of a scored record. RolloutError if it is not a finite number."""
    reward = record.get("reward")
    check_reward(reward)
    return float(reward)  # type: ignore[arg-type]


def group_advantages(rewards: Sequence[float], *, scale: bool = True) -> list[float]:
    """How much better each reward is than the mean of its group, in standard deviations unless `scale` is false.

    The standard deviation is the unbiased one. A group of one, or of equal rewards, has advantages of 0.
    """
    mean = statistics.fmean(rewards)
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    spread = statistics.stdev(rewards) + ADVANTAGE_EPSILON if scale else 1.0
    return [(reward - mean) / spread for reward in rewards]


def make_groups(records: Iterable[tuple[Hashable, Mapping[str, Any]]], *, scale: bool = True) -> list[Group]:
    """Groups of pairs (key, record), in the order in which keys first appear, with advantages in the samples."""
    by_key: dict[Hashable, list[Mapping[str, Any]]] = {}
    for key, record in records:
        by_key.setdefault(key, []).append(record)
    groups = [_group(key, members, scale=scale) for key, members in by_key.items()]
    if groups and not any(group.samples for group in groups):
        raise TokenTraceError(
            "No record has sampled tokens. Was return_token_id_information set for the model server?"
        )
    return groups


def _group(key: Hashable, records: list[Mapping[str, Any]], *, scale: bool) -> Group:
    rewards = [reward_of(record) for record in records]
    advantages = group_advantages(rewards, scale=scale)
    pairs = zip(records, advantages, strict=True)
    return Group(key, rewards, advantages, [samples_of(record, advantage=advantage) for record, advantage in pairs])
