"""A transformer of 17,000 weights in numpy, served with token ids and log-probs while it is being trained."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from pydantic import ConfigDict, Field, PrivateAttr

from nemo_gym import (
    JsonObject,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
)
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.common.paths import find
from nemo_gym.llm_api.base import POLICY_VERSION_FIELD, without_nulls
from nemo_gym.llm_api.json_codec import set_fields
from nemo_gym.llm_api.responses import FrozenRequest
from nemo_gym.llm_api.responses_chat import chat_params, normalize_completion, response_from_completion
from responses_api_models.tiny_policy.sampler import SHAPE, Generation, Sampler
from responses_api_models.tiny_policy.vocabulary import END, ID_OF, WORDS, decode_reply, encode_messages

MODEL = "tiny-policy"


class TinyPolicyConfig(BaseResponsesAPIModelConfig):
    model_config = ConfigDict(extra="forbid")

    weights_fpath: str | None = None
    """Weights written by `save_weights`. Every request uses the newest. Without it: random weights."""

    seed: int = 0
    """Seed of the random weights."""

    max_output_tokens: int = Field(default=6, ge=1)
    """Maximum tokens of a reply if its request sets no limit."""


class TinyPolicy(SimpleResponsesAPIModel):
    config: TinyPolicyConfig

    _sampler: Sampler = PrivateAttr()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        path = self.config.weights_fpath
        self._sampler = Sampler(find(path, what="weights") if path else None, seed=self.config.seed)
        async with self._sampler.running():
            yield

    async def responses(self, body: FrozenRequest) -> NeMoGymResponse:
        completion = await self.chat_completions(chat_params(body, with_tokens=True))
        return response_from_completion(body, completion, model=MODEL)

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> NeMoGymChatCompletion:
        params = without_nulls(set_fields(body))
        prompt = [token if 0 <= token < len(WORDS) else 0 for token in encode_messages(params["messages"])]
        room = max(0, SHAPE.context - len(prompt))
        wanted = params.get("max_completion_tokens") or params.get("max_tokens") or self.config.max_output_tokens
        generation = await self._sampler.sample(
            prompt,
            max_tokens=min(wanted, room),
            temperature=params.get("temperature", 1.0),
            seed=params.get("seed"),
        )
        return normalize_completion(_completion(generation, params), url=self.config.name)


def _completion(generation: Generation, params: JsonObject) -> JsonObject:
    message = decode_reply(generation.ids, params.get("tools") or ()) | {
        "prompt_token_ids": generation.prompt,
        "generation_token_ids": generation.ids,
        "generation_log_probs": generation.log_probs,
        POLICY_VERSION_FIELD: generation.version,
    }
    was_cut_off = generation.ids[-1:] != [ID_OF[END]]
    finish = "length" if was_cut_off else "tool_calls" if message.get("tool_calls") else "stop"
    heard, spoken = len(generation.prompt), len(generation.ids)
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "message": message}
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": heard, "completion_tokens": spoken, "total_tokens": heard + spoken},
    }
