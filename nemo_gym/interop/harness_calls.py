"""The model calls of a harness that we did not write: made on our model server, and read as the items of one rollout.

A harness sends the whole conversation with every call. What it repeats is recognized, and only what is new is kept, in
the order of the calls. A call that continues none of the conversations before starts another thread: a sub-agent, or
a context that was compacted."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import orjson
from pydantic import TypeAdapter

from nemo_gym.client.server_client import CookieJar, ServerClient
from nemo_gym.data.import_messages import NotMessagesError, items_of, tools_of
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import TOKEN_FIELDS, JsonObject, TokenIDLogProbMixin, tokens_of, without_nulls
from nemo_gym.llm_api.chat import NeMoGymChatCompletion
from nemo_gym.llm_api.json_codec import changed, encode
from nemo_gym.llm_api.responses import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputItem,
    NeMoGymResponseUsage,
    raise_response_failure,
)
from nemo_gym.llm_api.responses_chat import response_from_completion
from nemo_gym.participants import HARNESS, POLICY, TOOL, without_tokens

T = TypeVar("T")
_ITEMS: TypeAdapter[list[NeMoGymResponseInputItem]] = TypeAdapter(list[NeMoGymResponseInputItem])


@dataclass(slots=True)
class HarnessTrace:
    """The model calls so far."""

    given: list[JsonObject] = field(default_factory=list)
    """What the first call sent."""
    tools: list[JsonObject] = field(default_factory=list)
    """The tools that the first call offered."""
    output: list[NeMoGymResponseInputItem] = field(default_factory=list)
    calls: int = 0
    model_seconds: float = 0.0
    usage: NeMoGymResponseUsage | None = None
    last: NeMoGymResponse | None = None
    _threads: dict[bytes, int] = field(default_factory=dict)
    """The digest of each conversation so far, up to a reply of the model, and the number of its thread."""
    _tokens: dict[bytes, JsonObject] = field(default_factory=dict)
    """The tokens of the reply that such a conversation ends with."""

    def add_chat(self, request: JsonObject, reply: NeMoGymChatCompletion, *, seconds: float) -> None:
        params = NeMoGymResponseCreateParamsNonStreaming(input=[])
        response = response_from_completion(params, reply, model=reply.model)
        items, said = chat_items(request["messages"]), chat_items([orjson.loads(encode(reply.choices[0].message))])
        self._add(items, said, tools_of(request.get("tools") or []), response, seconds)

    def add_response(self, request: JsonObject, reply: NeMoGymResponse, *, seconds: float) -> None:
        said = [orjson.loads(encode(item)) for item in reply.output]
        self._add(response_items(request), said, request.get("tools") or [], reply, seconds)

    def request(self) -> JsonObject:
        """What the first call sent."""
        return {"input": self.given, "tools": self.tools}

    def messages_with_tokens(self, messages: Any) -> Any:
        """Chat messages, with their tokens on those that the model wrote: a server that trains can then continue the
        very tokens it sampled. The harness never sees them."""
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            return messages  # which the model server refuses
        found, digest = [], b""
        for message in messages:
            for item in chat_items([message]):
                digest = _extended(digest, item)
            tokens = self._tokens.get(digest, {}) if message.get("role") == "assistant" else {}
            found.append({**message, **tokens})
        return found

    def response(self, **fields: Any) -> NeMoGymResponse:
        """The rollout's response. `output` begins after what the first call sent."""
        last = self.last or NeMoGymResponse(id="", created_at=time.time(), model="", output=[])
        costs = {"model_calls": self.calls, "model_seconds": round(self.model_seconds, 6), "usage": self.usage}
        return changed(last, id=f"resp_{uuid4().hex}", output=self.output, participant=POLICY, **costs, **fields)

    def _add(
        self,
        items: list[JsonObject],
        said: list[JsonObject],
        tools: list[JsonObject],
        reply: NeMoGymResponse,
        seconds: float,
    ) -> None:
        digests = list(_digests(items))
        known = next((at for at in reversed(range(len(items))) if digests[at] in self._threads), None)
        thread = len(set(self._threads.values())) if known is None else self._threads[digests[known]]
        if self.calls == 0:
            self.given, self.tools = items, tools
        else:
            new = _ITEMS.validate_python(items if known is None else items[known + 1 :])
            self.output += [changed(item, produced_by=_sender(item), thread=thread) for item in new]
        self.output += [changed(item, produced_by=POLICY, thread=thread) for item in reply.output]
        end = digests[-1] if digests else b""
        for item in said:
            end = _extended(end, item)
        self._threads[end] = thread
        if reply.output and isinstance(reply.output[-1], TokenIDLogProbMixin):
            self._tokens[end] = tokens_of(reply.output[-1])
        self.calls, self.model_seconds, self.last = self.calls + 1, self.model_seconds + seconds, reply
        self.usage = self.usage + reply.usage if self.usage and reply.usage else self.usage or reply.usage


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


def chat_items(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Chat messages as items. A message that cannot be converted is kept as it is."""
    items: list[JsonObject] = []
    for message in messages:
        try:
            items += items_of([message])
        except NotMessagesError:
            items.append({"type": "chat_message", "message": message})
    return items


def response_items(request: JsonObject) -> list[JsonObject]:
    """The items of a Responses request, its instructions included."""
    given, instructions = request.get("input") or [], request.get("instructions")
    start = [{"role": "system", "content": instructions}] if instructions else []
    return [*start, *([{"role": "user", "content": given}] if isinstance(given, str) else given)]


def _sender(item: NeMoGymResponseInputItem) -> str:
    return TOOL if isinstance(item, NeMoGymFunctionCallOutput) else HARNESS


def _digests(items: Sequence[JsonObject]) -> Iterator[bytes]:
    """The digest of the conversation up to each item."""
    digest = b""
    for item in items:
        digest = _extended(digest, item)
        yield digest


def _extended(digest: bytes, item: JsonObject) -> bytes:
    """The digest of a conversation with one more item. Reasoning does not count: not all harnesses repeat it."""
    kind = item.get("type", "message")
    if kind == "reasoning":
        return digest
    if kind == "message":
        key: Any = (item.get("role"), _text(item.get("content")))
    elif kind == "function_call":
        key = (item.get("call_id"), item.get("name"), _parsed(item.get("arguments")))
    elif kind == "function_call_output":
        key = (item.get("call_id"), _text(item.get("output")))
    else:
        key = item
    return hashlib.sha256(digest + orjson.dumps((kind, key), default=str, option=orjson.OPT_SORT_KEYS)).digest()


def _text(content: Any) -> Any:
    """The text of a content, however it is written; other parts stay as they are."""
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    return "".join(str(part["text"]) for part in parts if "text" in part), [
        part for part in parts if "text" not in part
    ]


def _parsed(arguments: Any) -> Any:
    """Arguments that differ only in how they are written are equal."""
    try:
        return orjson.loads(arguments)
    except (orjson.JSONDecodeError, TypeError):
        return arguments
