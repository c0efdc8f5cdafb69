"""Training samples as trainers take them: NeMo RL, verl, SkyRL, slime, TRL, Tinker, prime-rl and AReaL.

A view is a plain dict with the field names of the trainer's own type, so none of these packages is needed here. Every
view can be read back into the tokens it was made of.
"""

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_gym.common.rewards import check_reward
from nemo_gym.config.keys import ROLLOUT_INDEX_KEY_NAME
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, is_cut_off, is_masked, task_index_of
from nemo_gym.training.token_traces import FlatTokens, TokenTraceError, are_numbers, trace_of

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
    is_last: bool = True
    """True for the last segment of its rollout."""
    task_index: int | str | None = None
    repeat_index: int | None = None
    """Which rollout, if its record says."""
    reward_components: Mapping[str, float] = field(default_factory=dict)
    """What the reward is made of, if the environment says."""

    @property
    def rollout_id(self) -> str | None:
        """The same for all segments of a rollout."""
        return None if self.task_index is None else f"{self.task_index}-{self.repeat_index or 0}"


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
    """The segments of a scored record, or of a result of `run_examples`, in which the policy sampled something;
    none of one with `mask_sample`."""
    if is_masked(record):
        return []
    reward, was_cut_off = reward_of(record), is_cut_off(record.get("response"))
    flattened = enumerate(segment.flatten() for segment in trace_of(record).segments)
    trained = [(index, tokens) for index, tokens in flattened if any(tokens.loss_mask)]
    task, repeat = task_index_of(record), record.get(REPEAT_INDEX_KEY_NAME, record.get(ROLLOUT_INDEX_KEY_NAME))
    parts = components_of(record)
    return [
        TrainingSample(tokens, reward, index, was_cut_off, advantage, index == trained[-1][0], task, repeat, parts)
        for index, tokens in trained
    ]


def reward_of(record: Mapping[str, Any]) -> float:
    """The reward of a scored record. RolloutError if it is not a finite number."""
    reward = record.get("reward")
    check_reward(reward)
    return float(reward)  # type: ignore[arg-type]


def components_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The components of the reward. TokenTraceError if they are no finite numbers."""
    found = record.get("reward_components") or {}
    if not isinstance(found, Mapping) or not are_numbers([*found.values()]):
        raise TokenTraceError(f"`reward_components` is {found!r:.100}; expected a number for each name")
    return {str(name): float(value) for name, value in found.items()}


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


class TrainerView(NamedTuple):
    """One trainer's form of a sample."""

    write: Callable[[TrainingSample], JsonObject]
    read: Callable[[JsonObject], FlatTokens]
    """The tokens of a sample. Policy versions are empty where the trainer has no place for them."""


def nemo_rl_sample(sample: TrainingSample) -> JsonObject:
    """A message log of NeMo RL: what the policy read is a user message, what it sampled an assistant message. Those
    that it sampled say with which versions of the weights."""
    tokens, versions = sample.tokens, sample.tokens.versions()
    log: list[JsonObject] = []
    for start, end in _runs(tokens):
        message: JsonObject = {"role": "user", "content": "", "token_ids": tokens.ids[start:end]}
        if tokens.loss_mask[start]:
            message |= {"role": "assistant", "generation_logprobs": tokens.log_probs[start:end]}
            if any(version is not None for version in versions[start:end]):
                message["policy_versions"] = versions[start:end]
        log.append(message)
    return {"message_log": log, "input_message_log": log[:1], "total_reward": sample.reward}


def verl_sample(sample: TrainingSample) -> JsonObject:
    """The fields of verl's `AgentLoopOutput`. The first and the last version that sampled it are its global steps, if
    they are numbers."""
    tokens, start = sample.tokens, sample.tokens.prompt_length
    steps = [int(str(span.version)) for span in tokens.version_spans if str(span.version).isdecimal()]
    limits = {"min_global_steps": min(steps), "max_global_steps": max(steps)} if steps else {}
    return {
        "prompt_ids": tokens.ids[:start],
        "response_ids": tokens.ids[start:],
        "response_mask": tokens.loss_mask[start:],
        "response_logprobs": tokens.log_probs[start:],
        "reward_score": sample.reward,
        "num_turns": 2 * len(tokens.policy_versions),
        "metrics": {},
        "extra_fields": {
            "policy_versions": tokens.policy_versions,
            **limits,
            **_components(sample, "reward_extra_info"),
        },
        **_experts(tokens, "routed_experts"),
    }


def skyrl_sample(sample: TrainingSample) -> JsonObject:
    """One row of SkyRL's `GeneratorOutput`; `columns` makes the whole of rows. The reward is that of the last sampled
    token, the others have 0; rewards of steps or spans of tokens, if the record has them, take its place. A rollout of
    several segments is one trajectory of several steps."""
    tokens, start = sample.tokens, sample.tokens.prompt_length
    rewards = [0.0] * (len(tokens.ids) - start)
    for span in tokens.rewards:
        rewards[span.end - 1 - start] += span.reward
    if not tokens.rewards and sample.is_last and 1 in tokens.loss_mask:
        rewards[-1 - [*reversed(tokens.loss_mask)].index(1)] = sample.reward
    return {
        "prompt_token_ids": tokens.ids[:start],
        "response_ids": tokens.ids[start:],
        "rewards": rewards,
        "loss_masks": tokens.loss_mask[start:],
        "stop_reasons": "length" if sample.is_cut_off else "stop",
        "rollout_logprobs": tokens.log_probs[start:],
        "trajectory_ids": TrajectoryId(str(sample.task_index), sample.repeat_index or 0),
        "is_last_step": sample.is_last,
        **_experts(tokens, "rollout_expert_indices"),
    }


@dataclass(frozen=True, slots=True)
class TrajectoryId:
    """As SkyRL's `TrajectoryID` is read."""

    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


def slime_sample(sample: TrainingSample) -> JsonObject:
    """The fields of slime's `Sample`. Mask and log-probs are those of the response only."""
    tokens, start = sample.tokens, sample.tokens.prompt_length
    return {
        "tokens": tokens.ids,
        "response_length": len(tokens.ids) - start,
        "loss_mask": tokens.loss_mask[start:],
        "rollout_log_probs": tokens.log_probs[start:],
        "reward": sample.reward,
        "status": "truncated" if sample.is_cut_off else "completed",
        "weight_versions": [str(version) for version in tokens.policy_versions if version is not None],
        "rollout_id": sample.rollout_id,
        **_components(sample, "metadata"),
        **_experts(tokens, "rollout_routed_experts"),
    }


def trl_sample(sample: TrainingSample) -> JsonObject:
    """One row of what a `rollout_func` of TRL's GRPOTrainer returns; `columns` makes the whole of rows. The fields
    after `env_mask` are passed to the reward functions."""
    tokens, start = sample.tokens, sample.tokens.prompt_length
    return {
        "prompt_ids": tokens.ids[:start],
        "completion_ids": tokens.ids[start:],
        "logprobs": tokens.log_probs[start:],
        "env_mask": tokens.loss_mask[start:],
        "reward": sample.reward,
    }


def tinker_sample(sample: TrainingSample) -> JsonObject:
    """The fields of Tinker's `Datum` for `importance_sampling` and `ppo`: the model reads all tokens but the last, and
    each target is the token after. Without an advantage, the reward is it."""
    tokens = sample.tokens
    weight = sample.reward if sample.advantage is None else sample.advantage
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens.ids[:-1]}]},
        "loss_fn_inputs": {
            "target_tokens": tokens.ids[1:],
            "logprobs": tokens.log_probs[1:],
            "advantages": [weight * is_sampled for is_sampled in tokens.loss_mask[1:]],
            "mask": tokens.loss_mask[1:],
        },
    }


def prime_rl_sample(sample: TrainingSample) -> JsonObject:
    """The fields of prime-rl's `TrainingSample`, and of a step's tokens in verifiers."""
    tokens, start = sample.tokens, sample.tokens.prompt_length
    return {
        "prompt_ids": tokens.ids[:start],
        "prompt_mask": [False] * start,
        "completion_ids": tokens.ids[start:],
        "completion_mask": [bool(is_sampled) for is_sampled in tokens.loss_mask[start:]],
        "completion_logprobs": tokens.log_probs[start:],
        "advantage": sample.advantage,
        "reward": sample.reward,
    }


def areal_sample(sample: TrainingSample) -> JsonObject:
    """A trajectory as AReaL's workflows return it, before its lists become tensors of a batch of one. Tokens that the
    policy read, or whose version is no number, have the version -1."""
    tokens = sample.tokens
    versions = (int(str(version)) if str(version).isdecimal() else -1 for version in tokens.versions())
    return {
        "input_ids": tokens.ids,
        "loss_mask": tokens.loss_mask,
        "logprobs": tokens.log_probs,
        "versions": [*versions],
        "attention_mask": [True] * len(tokens.ids),
        "rewards": sample.reward,
    }


def _components(sample: TrainingSample, name: str) -> JsonObject:
    """A field with the components of the reward, if there are any."""
    return {name: dict(sample.reward_components)} if sample.reward_components else {}


def _experts(tokens: FlatTokens, name: str) -> JsonObject:
    """A field with the experts of all tokens, if the endpoint gave them."""
    return {} if tokens.routed_experts is None else {name: tokens.routed_experts}


def columns(rows: Iterable[JsonObject]) -> dict[str, list[Any]]:
    """Rows of equal fields as one dict of lists."""
    made = list(rows)
    return {name: [row[name] for row in made] for name in (made[0] if made else ())}


def _runs(tokens: FlatTokens) -> Iterable[tuple[int, int]]:
    """Where the mask stays the same, from start to end. The prompt is always a run of its own."""
    mask, start = tokens.loss_mask, 0
    for at in range(1, len(mask) + 1):
        if at == len(mask) or mask[at] != mask[start]:
            yield start, at
            start = at


def _read_nemo_rl(sample: JsonObject) -> FlatTokens:
    log = sample["message_log"]
    ids = [token for message in log for token in message["token_ids"]]
    mask = [int(message["role"] == "assistant") for message in log for _ in message["token_ids"]]
    log_probs = [
        value for message in log for value in message.get("generation_logprobs", [0.0] * len(message["token_ids"]))
    ]
    return FlatTokens(ids, mask, log_probs, mask.index(1) if 1 in mask else len(mask))


def _read_verl(sample: JsonObject) -> FlatTokens:
    prompt, response = sample["prompt_ids"], sample["response_ids"]
    versions = (sample.get("extra_fields") or {}).get("policy_versions")
    return _joined(prompt, response, sample["response_mask"], sample["response_logprobs"], versions)


def _read_skyrl(sample: JsonObject) -> FlatTokens:
    return _joined(*(sample[name] for name in ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")))


def _read_slime(sample: JsonObject) -> FlatTokens:
    ids, start = sample["tokens"], len(sample["tokens"]) - sample["response_length"]
    return _joined(
        ids[:start], ids[start:], sample["loss_mask"], sample["rollout_log_probs"], sample["weight_versions"]
    )


def _read_trl(sample: JsonObject) -> FlatTokens:
    return _joined(*(sample[name] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs")))


def _read_tinker(sample: JsonObject) -> FlatTokens:
    loss = sample["loss_fn_inputs"]
    (chunk,) = sample["model_input"]["chunks"]
    ids = [*chunk["tokens"][:1], *loss["target_tokens"]]
    unknown = len(ids) - len(loss["mask"])  # the first token is no target
    mask, log_probs = [0] * unknown + loss["mask"], [0.0] * unknown + loss["logprobs"]
    return FlatTokens(ids, mask, log_probs, mask.index(1) if 1 in mask else len(mask))


def _read_prime_rl(sample: JsonObject) -> FlatTokens:
    mask = [int(is_sampled) for is_sampled in sample["completion_mask"]]
    return _joined(sample["prompt_ids"], sample["completion_ids"], mask, sample["completion_logprobs"])


def _read_areal(sample: JsonObject) -> FlatTokens:
    mask = sample["loss_mask"]
    start = mask.index(1) if 1 in mask else len(mask)
    return FlatTokens(sample["input_ids"], mask, sample["logprobs"], start)


def _joined(
    prompt: list[int], response: list[int], mask: list[int], log_probs: list[float], versions: list[Any] | None = None
) -> FlatTokens:
    read = len(prompt)
    return FlatTokens([*prompt, *response], [0] * read + mask, [0.0] * read + log_probs, read, versions or [])


VIEWS: dict[str, TrainerView] = {
    "nemo_rl": TrainerView(nemo_rl_sample, _read_nemo_rl),
    "verl": TrainerView(verl_sample, _read_verl),
    "skyrl": TrainerView(skyrl_sample, _read_skyrl),
    "slime": TrainerView(slime_sample, _read_slime),
    "trl": TrainerView(trl_sample, _read_trl),
    "tinker": TrainerView(tinker_sample, _read_tinker),
    "prime_rl": TrainerView(prime_rl_sample, _read_prime_rl),
    "areal": TrainerView(areal_sample, _read_areal),
}
