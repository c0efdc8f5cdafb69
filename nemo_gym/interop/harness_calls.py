"""The model calls of a harness that we did not write: asked of our model server, and kept as the rollout's trace."""

import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from nemo_gym.client.server_client import CookieJar, ServerClient
from nemo_gym.errors import RolloutError
from nemo_gym.interop.harness_trace import HarnessTrace
from nemo_gym.llm_api.base import TOKEN_FIELDS, JsonObject, without_nulls
from nemo_gym.llm_api.chat import NeMoGymChatCompletion
from nemo_gym.llm_api.json_codec import changed, encode
from nemo_gym.llm_api.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, raise_response_failure
from nemo_gym.participants import without_tokens

T = TypeVar("T")


@dataclass(slots=True)
class HarnessCalls:
    """The model of one rollout, as a `ModelGateway` serves it to a harness."""

    client: ServerClient
    model_server: str
    jar: CookieJar
    timeout_s: float
    max_steps: int | None = None
    sampling: JsonObject = field(default_factory=dict)
    """Replaces the sampling parameters of the harness."""
    trace: HarnessTrace = field(default_factory=HarnessTrace)
    is_out_of_steps: bool = False
    error: RolloutError | None = None
    """Of the last call, if it failed: a harness may have tried again."""

    async def chat_completions(self, body: dict[str, Any]) -> JsonObject:
        """Answer a Chat Completions request of the harness."""
        messages = self.trace.messages_with_tokens(body.get("messages"))
        request, started = {**body, "messages": messages, **self.sampling}, time.perf_counter()
        reply = await self._ask("/v1/chat/completions", request, NeMoGymChatCompletion)
        self.trace.add_chat(body, reply, seconds=time.perf_counter() - started)
        return chat_without_tokens(reply)

    async def responses(self, body: dict[str, Any]) -> NeMoGymResponse:
        """Answer a Responses request of the harness; those of the Messages API come here, too."""
        asked, started = orjson.loads(encode(body, exclude_unset=True)), time.perf_counter()
        reply = await self._ask("/v1/responses", {**asked, **self.sampling}, NeMoGymResponse)
        self.trace.add_response(asked, reply, seconds=time.perf_counter() - started)
        return changed(reply, output=[without_tokens(item) for item in reply.output])

    def raise_model_error(self) -> None:
        """Raise what made the last call fail, unless the rollout can be scored as it stands."""
        if self.error is not None and (self.error.cause != "input" or not self.trace.calls):
            raise self.error

    async def _ask(self, path: str, request: JsonObject, answer: type[T]) -> T:
        if self.max_steps is not None and self.trace.calls >= self.max_steps:
            self.is_out_of_steps = True
            message = f"This rollout may call the model {self.max_steps} times (max_steps), and has."
            raise RolloutError("input", message, retryable=False)
        request.pop("model", None)  # its own name for it: the model server knows the right one
        try:
            reply = await self.client.call(
                self.model_server, path, request, answer=answer, cause="model", jar=self.jar, timeout_s=self.timeout_s
            )
            if isinstance(reply, NeMoGymResponse):
                raise_response_failure(reply, server=self.model_server)
        except RolloutError as error:
            self.error = error
            raise
        self.error = None
        return reply


def sampling_of(params: NeMoGymResponseCreateParamsNonStreaming) -> JsonObject:
    """The sampling parameters of a row."""
    return without_nulls({"temperature": params.temperature, "top_p": params.top_p})


def chat_without_tokens(completion: NeMoGymChatCompletion) -> JsonObject:
    """The completion as JSON, without token ids and log-probs."""
    fields: JsonObject = orjson.loads(encode(completion, exclude_unset=True))
    for choice in fields["choices"]:
        choice["message"] = {name: value for name, value in choice["message"].items() if name not in TOKEN_FIELDS}
    return fields
