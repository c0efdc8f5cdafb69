"""Training samples as trainers take them: NeMo RL, verl, SkyRL, slime and TRL.

A view is a plain dict with the field names of the trainer's own type, so none of these packages is needed here. Every
view can be read back into the tokens it was made of.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from nemo_gym.analysis.training_samples import TrainingSample
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.token_traces import FlatTokens


class TrainerView(NamedTuple):
    """One trainer's form of a sample."""

    write: Callable[[TrainingSample], JsonObject]
    read: Callable[[JsonObject], FlatTokens]
    """The tokens of a sample. Policy versions are empty where the trainer has no place for them."""


def nemo_rl_sample(sample: TrainingSample) -> JsonObject:
    """A message log of NeMo RL: what the policy read is a user message, what it sampled an assistant message."""
    tokens = sample.tokens
    log: list[JsonObject] = []
    for start, end in _runs(tokens):
        message: JsonObject = {"role": "user", "content": "", "token_ids": tokens.ids[start:end]}
        if tokens.loss_mask[start]:
            message |= {"role": "assistant", "generation_logprobs": tokens.log_probs[start:end]}
        log.append(message)
    return {"message_log": log, "input_message_log": log[:1], "total_reward": sample.reward}


def verl_sample(sample: TrainingSample) -> JsonObject:
    """The fields of verl's `AgentLoopOutput`."""
    tokens, start = sample.tokens, sample.tokens.prompt_length
    return {
        "prompt_ids": tokens.ids[:start],
        "response_ids": tokens.ids[start:],
        "response_mask": tokens.loss_mask[start:],
        "response_logprobs": tokens.log_probs[start:],
        "reward_score": sample.reward,
        "num_turns": 2 * len(tokens.policy_versions),
        "metrics": {},
        "extra_fields": {"policy_versions": tokens.policy_versions},
    }


def skyrl_sample(sample: TrainingSample) -> JsonObject:
    """One row of SkyRL's `GeneratorOutput`; `columns` makes the whole of rows."""
    tokens, start = sample.tokens, sample.tokens.prompt_length
    return {
        "prompt_token_ids": tokens.ids[:start],
        "response_ids": tokens.ids[start:],
        "rewards": sample.reward,
        "loss_masks": tokens.loss_mask[start:],
        "stop_reasons": "length" if sample.is_cut_off else "stop",
        "rollout_logprobs": tokens.log_probs[start:],
    }


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
}
