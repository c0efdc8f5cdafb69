"""The model calls of an external harness: sent to our model server, and recorded as the items of one rollout.

A harness sends the whole conversation with every call. Only items that are new are recorded, in the order of the
calls. A call that does not continue an earlier conversation starts another thread: a sub-agent, or a compacted
context.

Only what the model replied is the policy's. What a harness sends in its name, and outputs of the environment's tools
that did not come from there, are kept as items of the type `harness_item`, which no verifier takes for an answer, a
call or a result."""

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar
from uuid import uuid4

import orjson
from pydantic import TypeAdapter

from nemo_gym.client.server_client import CookieJar, ServerClient
from nemo_gym.data.records import NotMessagesError, items_of, tools_of
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import (
    TOKEN_FIELDS,
    JsonObject,
    TokenIDLogProbMixin,
    drop_token_fields,
    tokens_of,
    without_nulls,
)
from nemo_gym.llm_api.chat import NeMoGymChatCompletion
from nemo_gym.llm_api.json_codec import changed, encode
from nemo_gym.llm_api.responses import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputItem,
    NeMoGymResponseUsage,
    ResponseItem,
    raise_response_failure,
)
from nemo_gym.llm_api.responses_chat import response_from_completion
from nemo_gym.participants import HARNESS, POLICY, TOOL, without_tokens

logger = logging.getLogger(__name__)
T = TypeVar("T")
HARNESS_ITEM = "harness_item"
FORWARDED = frozenset(
    (
        *("messages", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning"),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "stop", "text"),
        *("response_format", "reasoning_effort", "user", "store", "include", "truncation"),
        *("service_tier", "verbosity", "previous_response_id", "conversation"),
    )
)
"""Parameters of a harness that reach the model. Others could choose what is sampled, such as `logit_bias`, a template,
token ids for the prompt, or `metadata`, whose `extra_body` model servers merge into the request."""
TOOL_CALLS = frozenset(("function_call", "custom_tool_call"))
TOOL_OUTPUTS = frozenset(("function_call_output", "custom_tool_call_output"))
INVALID_REQUEST = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Statuses with which a model server refuses the request of a harness."""
_ITEMS: TypeAdapter[list[NeMoGymResponseInputItem]] = TypeAdapter(list[NeMoGymResponseInputItem])


@dataclass(slots=True)
class HarnessTrace:
    """The model calls so far."""

    given: list[JsonObject] = field(default_factory=list)
    """The items of the first call."""
    tools: list[JsonObject] = field(default_factory=list)
    """The tools that the first call offered."""
    output: list[ResponseItem] = field(default_factory=list)
    environment_tools: tuple[str, ...] = ()
    """The tools whose outputs only the environment gives. A harness may have a prefix for their names."""
    environment_calls: Sequence[JsonObject] = ()
    """Their calls so far: `name` and `output`."""
    calls: int = 0
    model_seconds: float = 0.0
    usage: NeMoGymResponseUsage | None = None
    last: NeMoGymResponse | None = None
    _threads: dict[bytes, int] = field(default_factory=dict)
    """Thread number by the digest of each conversation that ends with a reply of the model."""
    _tokens: dict[bytes, JsonObject] = field(default_factory=dict)
    """Tokens of the last reply by the digest of such a conversation."""
    _tools_called: dict[str, str] = field(default_factory=dict)
    """The names of the tools that the model called, by call id."""
    _outputs_seen: set[int] = field(default_factory=set)
    """The environment's calls whose output is in the trace."""

    def add_chat(self, request: JsonObject, reply: NeMoGymChatCompletion, *, seconds: float) -> None:
        params = NeMoGymResponseCreateParamsNonStreaming(input=[])
        response = response_from_completion(params, reply, model=reply.model)
        items, said = chat_items(request["messages"]), chat_items([orjson.loads(encode(reply.choices[0].message))])
        self._add(items, said, request, tools_of(request.get("tools") or []), response, seconds)

    def add_response(self, request: JsonObject, reply: NeMoGymResponse, *, seconds: float) -> None:
        said = [orjson.loads(encode(item)) for item in reply.output]
        self._add(response_items(request), said, request, request.get("tools") or [], reply, seconds)

    def request(self) -> JsonObject:
        """Return input and tools of the first call."""
        return {"input": self.given, "tools": self.tools}

    def messages_with_tokens(self, messages: Any) -> Any:
        """Add tokens to the chat messages that the model wrote, so that a training server can continue exactly the
        tokens it sampled. The harness never sees tokens."""
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            return messages  # the model server refuses it
        found, digest = [], b""
        for message in messages:
            for item in chat_items([message]):
                digest = _extended(digest, item)
            tokens = self._tokens.get(digest, {}) if message.get("role") == "assistant" else {}
            found.append({**message, **tokens})
        return found

    def response(self, **fields: Any) -> NeMoGymResponse:
        """Return the rollout's response. `output` starts after the items of the first call."""
        last = self.last or NeMoGymResponse(id="", created_at=time.time(), model="", output=[])
        costs = {"model_calls": self.calls, "model_seconds": round(self.model_seconds, 6), "usage": self.usage}
        return changed(last, id=f"resp_{uuid4().hex}", output=self.output, participant=POLICY, **costs, **fields)

    def _add(
        self,
        items: list[JsonObject],
        said: list[JsonObject],
        request: JsonObject,
        tools: list[JsonObject],
        reply: NeMoGymResponse,
        seconds: float,
    ) -> None:
        drop_token_fields(items)
        digests = list(_digests(items))
        known = next((at for at in reversed(range(len(items))) if digests[at] in self._threads), None)
        thread = len(set(self._threads.values())) if known is None else self._threads[digests[known]]
        if self.calls == 0:
            self.given, self.tools = items, tools
        else:
            new = _ITEMS.validate_python([*map(self._kept, items if known is None else items[known + 1 :])])
            self.output += [changed(item, produced_by=_sender(item), thread=thread) for item in new]
        sampled: Sequence[ResponseItem] = reply.output
        if is_constrained(request):
            sampled = [without_tokens(item) for item in reply.output]
        self.output += [changed(item, produced_by=POLICY, thread=thread) for item in sampled]
        self._tools_called |= {
            str(item.get("call_id")): str(item.get("name")) for item in said if item.get("type") in TOOL_CALLS
        }
        end = digests[-1] if digests else b""
        for item in said:
            end = _extended(end, item)
        self._threads[end] = thread
        if reply.output and isinstance(reply.output[-1], TokenIDLogProbMixin):
            self._tokens[end] = tokens_of(reply.output[-1])
        self.calls, self.model_seconds, self.last = self.calls + 1, self.model_seconds + seconds, reply
        self.usage = self.usage + reply.usage if self.usage and reply.usage else self.usage or reply.usage

    def _kept(self, item: JsonObject) -> JsonObject:
        """The item of a harness as the trace keeps it."""
        kind = item.get("type", "message")
        is_genuine = (
            item.get("role") in ("user", "system", "developer")
            if kind == "message"
            else kind in TOOL_OUTPUTS and self._is_output_of_tool(item)
        )
        return item if is_genuine else {"type": HARNESS_ITEM, "item": item}

    def _is_output_of_tool(self, item: JsonObject) -> bool:
        """True if the model called the tool and, if it is the environment's, the output came from there."""
        name = self._tools_called.get(str(item.get("call_id")))
        if name is None or not name.endswith(self.environment_tools or ("\0",)):
            return name is not None
        text = _text(item.get("output"))[0]
        for number, call in enumerate(self.environment_calls):
            is_same = name.endswith(call["name"]) and call["output"] is not None and call["output"] in text
            if is_same and number not in self._outputs_seen:
                self._outputs_seen.add(number)
                return True
        return False


@dataclass(slots=True)
class HarnessCalls:
    """Model endpoints of one rollout, which a `ModelGateway` serves to a harness."""

    client: ServerClient
    model_server: str
    jar: CookieJar
    timeout_s: float
    max_steps: int | None = None
    sampling: JsonObject = field(default_factory=dict)
    """Overrides the sampling parameters of the harness."""
    trace: HarnessTrace = field(default_factory=HarnessTrace)
    is_out_of_steps: bool = False
    error: RolloutError | None = None
    """Error of the last call, if it failed. The harness may have retried."""

    async def chat_completions(self, body: dict[str, Any]) -> JsonObject:
        """Answer a Chat Completions request of the harness."""
        messages = self.trace.messages_with_tokens(body.get("messages"))
        request, started = {**body, "messages": messages, **self.sampling}, time.perf_counter()
        reply = await self._ask("/v1/chat/completions", request, NeMoGymChatCompletion)
        self.trace.add_chat(body, reply, seconds=time.perf_counter() - started)
        return chat_without_tokens(reply)

    async def responses(self, body: dict[str, Any]) -> NeMoGymResponse:
        """Answer a Responses request of the harness. Requests of the Messages API are converted to these."""
        asked, started = orjson.loads(encode(body, exclude_unset=True)), time.perf_counter()
        reply = await self._ask("/v1/responses", {**asked, **self.sampling}, NeMoGymResponse)
        self.trace.add_response(asked, reply, seconds=time.perf_counter() - started)
        return changed(reply, output=[without_tokens(item) for item in reply.output])

    def raise_model_error(self) -> None:
        """Raise the error of the last call, unless the rollout can be scored without it."""
        if self.error is None:
            return
        is_own_fault = self.error.cause == "input" or self.error.status in INVALID_REQUEST
        if not (is_own_fault and self.trace.calls):
            raise self.error

    async def _ask(self, path: str, request: JsonObject, answer: type[T]) -> T:
        if self.max_steps is not None and self.trace.calls >= self.max_steps:
            self.is_out_of_steps = True
            message = f"This rollout has reached its limit of {self.max_steps} model calls (max_steps)."
            raise RolloutError("input", message, retryable=False)
        dropped = request.keys() - FORWARDED - {"model"}  # the model server has the real name of the model
        if dropped:
            logger.warning("parameters of a harness are not sent to the model: %s", ", ".join(sorted(dropped))[:200])
        request = {name: value for name, value in request.items() if name in FORWARDED}
        try:
            reply = await self.client.call(
                self.model_server, path, request, answer=answer, cause="model", jar=self.jar, timeout_s=self.timeout_s
            )
            if isinstance(reply, NeMoGymResponse):
                raise_response_failure(reply, server=self.model_server)
        except RolloutError as error:
            self.error = error
            if error.status in INVALID_REQUEST:  # the harness is told so, and need not try again
                raise RolloutError("input", str(error), server=error.server, status=error.status) from error
            raise
        self.error = None
        return reply


def is_constrained(request: JsonObject) -> bool:
    """True if a request has the reply follow a schema or call a tool. What is sampled then is not the policy's own
    choice, and no sample for training."""
    formats = (request.get("response_format"), (request.get("text") or {}).get("format"))
    follows = any(isinstance(each, dict) and each.get("type") not in (None, "text") for each in formats)
    return follows or request.get("tool_choice") not in (None, "auto", "none") or _has_grammar(request.get("tools"))


def _has_grammar(tools: Any) -> bool:
    """True if a tool of a harness prescribes its input by a grammar. In Chat Completions that is one level down."""
    custom = [each.get("custom") or each for each in tools or () if isinstance(each, dict)]
    return any(isinstance(each, dict) and each.get("format") not in (None, {"type": "text"}) for each in custom)


def sampling_of(params: NeMoGymResponseCreateParamsNonStreaming) -> JsonObject:
    """Return the sampling parameters of a row."""
    return without_nulls({"temperature": params.temperature, "top_p": params.top_p})


def chat_without_tokens(completion: NeMoGymChatCompletion) -> JsonObject:
    """Return the completion as JSON, without token ids and log-probs."""
    fields: JsonObject = orjson.loads(encode(completion, exclude_unset=True))
    for choice in fields["choices"]:
        choice["message"] = {name: value for name, value in choice["message"].items() if name not in TOKEN_FIELDS}
    return fields


def chat_items(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Convert chat messages to items. A message that cannot be converted is kept unchanged."""
    items: list[JsonObject] = []
    for message in messages:
        try:
            items += items_of([message])
        except NotMessagesError:
            items.append({"type": "chat_message", "message": message})
    return items


def response_items(request: JsonObject) -> list[JsonObject]:
    """Return the items of a Responses request, including its instructions."""
    given, instructions = request.get("input") or [], request.get("instructions")
    start = [{"role": "system", "content": instructions}] if instructions else []
    return [*start, *([{"role": "user", "content": given}] if isinstance(given, str) else given)]


def _sender(item: NeMoGymResponseInputItem) -> str:
    return TOOL if item.type in TOOL_OUTPUTS else HARNESS


def _digests(items: Sequence[JsonObject]) -> Iterator[bytes]:
    """Yield the digest of the conversation up to each item."""
    digest = b""
    for item in items:
        digest = _extended(digest, item)
        yield digest


def _extended(digest: bytes, item: JsonObject) -> bytes:
    """Extend the digest of a conversation by one item. Reasoning does not count: not all harnesses repeat it."""
    kind = item.get("type", "message")
    if kind == "reasoning":
        return digest
    if kind == "message":
        key: Any = (item.get("role"), _text(item.get("content")))
    elif kind == "function_call":
        key = (item.get("call_id"), item.get("name"), _parsed(item.get("arguments")))
    elif kind == "custom_tool_call":
        key = (item.get("call_id"), item.get("name"), item.get("input"))
    elif kind in TOOL_OUTPUTS:
        key = (item.get("call_id"), _text(item.get("output")))
    else:
        key = item
    return hashlib.sha256(digest + orjson.dumps((kind, key), default=str, option=orjson.OPT_SORT_KEYS)).digest()


def _text(content: Any) -> Any:
    """Return the text of a content in any form, and its other parts."""
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    return "".join(str(part["text"]) for part in parts if "text" in part), [
        part for part in parts if "text" not in part
    ]


def _parsed(arguments: Any) -> Any:
    """Parse arguments, so that different spellings of the same JSON are equal."""
    try:
        return orjson.loads(arguments)
    except (orjson.JSONDecodeError, TypeError):
        return arguments
