"""Responses ⇄ Chat Completions, as functions without I/O.

A completion survives the conversion to output items and back to a message. A field that the other dialect lacks is
refused by its name, never dropped, unless the answer would be the same without it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import orjson
from pydantic import ValidationError

from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.base import (
    POLICY_VERSION_FIELD,
    VERSION_RUNS_FIELD,
    ContentPart,
    JsonObject,
    TokenIDLogProbMixin,
    tokens_of,
    type_of,
    without_nulls,
)
from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChoice,
    NeMoGymCompletionUsage,
)
from nemo_gym.llm_api.chat_tools import UnsupportedError as UnsupportedError
from nemo_gym.llm_api.chat_tools import chat_call, tool_params, with_own_tools
from nemo_gym.llm_api.endpoint_errors import ending_of
from nemo_gym.llm_api.json_codec import GrowingList, changed, encode, set_fields
from nemo_gym.llm_api.responses import (
    CUT_OFF,
    RESPONSES_TO_TRAIN,
    FrozenRequest,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymIncompleteDetails,
    NeMoGymMessage,
    NeMoGymResponse,
    NeMoGymResponseContent,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseCustomToolCall,
    NeMoGymResponseCustomToolCallOutput,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseInputItem,
    NeMoGymResponseInputText,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputRefusal,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseUsage,
    NeMoGymSummary,
    ResponseItem,
)

_OPEN, _CLOSE = "<think>", "</think>"
_BETWEEN_THOUGHTS = "\n\n"
_SAME_NAME = (
    *("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store"),
    *("temperature", "top_logprobs", "top_p", "user"),
)
_NEEDS_A_STORE = ("background", "conversation", "previous_response_id", "prompt")
_ECHOED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "prompt_cache_key"),
    *("reasoning", "safety_identifier", "service_tier", "temperature", "text", "tool_choice", "tools"),
    *("top_logprobs", "top_p", "truncation", "user"),
)
_CHAT_PARTS = frozenset(("text", "image_url", "input_audio", "video_url", "audio_url", "file"))


class Thoughts(NamedTuple):
    """A text, and what was in `<think>` tags in it."""

    thoughts: list[str]
    rest: str


def split_think_tags(text: str) -> Thoughts:
    """Every block of thought apart from the rest, nothing trimmed. An open tag that nothing closes is text."""
    thoughts, rest, at = [], [], 0
    while (start := text.find(_OPEN, at)) >= 0 and (end := text.find(_CLOSE, start + len(_OPEN))) >= 0:
        thoughts.append(text[start + len(_OPEN) : end])
        rest.append(text[at:start])
        at = end + len(_CLOSE)
    return Thoughts(thoughts, "".join(rest) + text[at:])


def think_tags(thoughts: Iterable[str]) -> str:
    """Each thought in tags of its own; empty ones leave nothing."""
    return "".join(f"{_OPEN}{thought}{_CLOSE}" for thought in thoughts if thought)


def chat_params(
    params: NeMoGymResponseCreateParamsNonStreaming | FrozenRequest,
    *,
    reasoning_field: bool = False,
    with_tokens: bool = False,
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
) -> NeMoGymChatCompletionCreateParamsNonStreaming:
    """The same request in the chat dialect.

    `metadata.seed` is the sampling seed, for which the Responses dialect has no name. Thoughts go back in `<think>`
    tags, or with `reasoning_field` as `reasoning_content`. `with_tokens` sends along the tokens of an item, for
    endpoints that can take them in place of its text.
    """

    request = FrozenRequest.of(params)
    if isinstance(text := request.params.input, str):
        part = NeMoGymResponseInputText(text=text)
        request = request.changed(input=[NeMoGymEasyInputMessage(role="user", content=[part])])
    converted: _Converted = request.items.fold(_converted, with_tokens, reasoning_field, request.params.instructions)
    messages: Sequence[JsonObject] = converted.messages
    if converted.open_items:
        last = ChatMessages(with_tokens, reasoning_field)
        last.extend(converted.open_items)
        last.flush_assistant()
        messages = [*messages, *last.messages]
    others = request.from_params(_other_params, max_tokens_key)
    return changed(others, messages=messages if request is params else list(messages))


class _Converted(NamedTuple):
    """Messages made of items, and the items at the end that are of a message of the model which may go on."""

    messages: GrowingList[JsonObject]
    open_items: tuple[NeMoGymResponseInputItem, ...]


def _converted(
    before: _Converted | None,
    items: Iterable[NeMoGymResponseInputItem],
    with_tokens: bool,
    reasoning_field: bool,
    instructions: str | None,
) -> _Converted:
    """A step of `GrowingList.fold`."""
    if before is None:
        given: list[JsonObject] = [{"role": "system", "content": instructions}] if instructions else []
        before = _Converted(GrowingList(given), ())
    new = ChatMessages(with_tokens, reasoning_field)
    open_items: list[NeMoGymResponseInputItem] = []
    for item in (*before.open_items, *items):
        new.extend((item,))
        open_items = [*open_items, item] if new.is_open else []
    return _Converted(before.messages.extended(new.messages), tuple(open_items))


def _other_params(
    params: NeMoGymResponseCreateParamsNonStreaming, max_tokens_key: str
) -> NeMoGymChatCompletionCreateParamsNonStreaming:
    stored = [name for name in _NEEDS_A_STORE if getattr(params, name)]
    if stored:
        raise UnsupportedError(f"'{stored[0]}'", "the whole conversation in 'input'")
    seed, text = (params.metadata or {}).get("seed", ""), params.text or {}
    wants_logprobs = params.top_logprobs is not None or "message.output_text.logprobs" in (params.include or ())
    given: JsonObject = {
        **{name: getattr(params, name) for name in _SAME_NAME},
        max_tokens_key: params.max_output_tokens,
        "logprobs": wants_logprobs or None,
        "reasoning_effort": (params.reasoning or {}).get("effort"),
        "seed": int(seed) if seed.isdecimal() else None,
        "verbosity": text.get("verbosity"),
        "response_format": _response_format(text.get("format") or {}),
        **tool_params(params),
    }
    return NeMoGymChatCompletionCreateParamsNonStreaming.model_construct(messages=[], **without_nulls(given))


def _response_format(wanted: JsonObject) -> JsonObject | None:
    kind = wanted.get("type", "text")
    if kind == "json_schema":
        schema = {key: value for key, value in without_nulls(wanted).items() if key != "type"}
        return {"type": kind, "json_schema": schema}
    return None if kind == "text" else wanted


@dataclass
class ChatMessages:
    """Makes messages of items. Reasoning, text and tool calls of one turn become one message."""

    return_token_id_information: bool = False
    reasoning_field: bool = False
    messages: list[JsonObject] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _refusals: list[str] = field(default_factory=list)
    _calls: list[JsonObject] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """True if the last item was of a message of the model, which may go on."""
        return bool(self._thoughts or self._texts or self._refusals or self._calls)

    def extend(self, items: Iterable[NeMoGymResponseInputItem]) -> None:
        for item in items:
            self._add(item)

    def _add(self, item: ResponseItem) -> None:
        if isinstance(item, NeMoGymFunctionCallOutput):
            message = {"role": "tool", "tool_call_id": item.call_id, "content": _chat_content(item.output)}
        elif isinstance(item, NeMoGymResponseCustomToolCallOutput):
            output = NeMoGymFunctionCallOutput.model_validate({**item.model_dump(), "type": "function_call_output"})
            self._add(output)
            return
        elif isinstance(item, NeMoGymEasyInputMessage | NeMoGymMessage) and item.role != "assistant":
            message = {"role": item.role, "content": _chat_content(item.content)}
        else:
            self._add_of_assistant(item)
            return
        self.flush_assistant()
        self.messages.append(message)

    def _add_of_assistant(self, item: ResponseItem) -> None:
        if isinstance(item, NeMoGymResponseReasoningItem):
            self._thoughts += thoughts_of(item)
        elif isinstance(item, NeMoGymResponseFunctionToolCall | NeMoGymResponseCustomToolCall):
            self._calls.append(chat_call(item))
        elif isinstance(item, NeMoGymResponseOutputMessage | NeMoGymEasyInputMessage):
            for part in [item.content] if isinstance(item.content, str) else item.content:
                texts = self._refusals if type_of(part) == "refusal" else self._texts
                texts.append(part if isinstance(part, str) else _part_text(part))
        else:
            raise UnsupportedError(f"An item of type '{type_of(item)}'", "messages, reasoning and function calls")
        if self.return_token_id_information and isinstance(item, TokenIDLogProbMixin):
            # The last item of a generation has its tokens. What follows was made from a prompt that ends here.
            self.flush_assistant(tokens_of(item))

    def flush_assistant(self, tokens: JsonObject | None = None) -> None:
        """End the model's message, if it has said anything."""
        if not (self.is_open or tokens):
            return
        text = "".join(self._texts)
        message: JsonObject = {"role": "assistant", "content": text or None}
        if self._thoughts and self.reasoning_field:
            message["reasoning_content"] = _BETWEEN_THOUGHTS.join(self._thoughts)
        elif self._thoughts:
            message["content"] = think_tags(self._thoughts) + text
        if self._refusals:
            message["refusal"] = "".join(self._refusals)
        if self._calls:
            message["tool_calls"] = self._calls
        self.messages.append(message | (tokens or {}))
        self._thoughts, self._texts, self._refusals, self._calls = [], [], [], []


def thoughts_of(item: NeMoGymResponseReasoningItem) -> list[str]:
    """Its summaries; an item that has none may hold its whole text beside them."""
    parts = (item.model_extra or {}).get("content") or ()
    whole = [str(part.get("text") or "") for part in parts if isinstance(part, dict)]
    return [text for text in [summary.text for summary in item.summary] or whole if text]


def _part_text(part: ContentPart | NeMoGymResponseContent) -> str:
    kind = type_of(part)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise UnsupportedError(f"A part of type '{kind}' in an assistant's message", "text or a refusal")
    return text


def _chat_content(content: str | Sequence[NeMoGymResponseContent]) -> str | list[JsonObject]:
    return content if isinstance(content, str) else [_chat_part(part) for part in content]


def _chat_part(part: NeMoGymResponseContent) -> JsonObject:
    if part.type in ("input_text", "output_text"):
        return {"type": "text", "text": part.text}
    if part.type == "input_image" and part.get("image_url") is not None:
        image = without_nulls({"url": part.image_url, "detail": part.get("detail")})
        return {"type": "image_url", "image_url": image}
    if part.type == "input_video":
        return {"type": "video_url", "video_url": {"url": part.get("video_url") or part.get("video")}}
    if part.type == "input_file" and part.get("file_url") is None:
        file = without_nulls({key: part.get(key) for key in ("file_data", "file_id", "filename")})
        return {"type": "file", "file": file}
    if part.type in _CHAT_PARTS:
        return dict(part)
    raise UnsupportedError(f"A content part of type '{part.type}'", "text, an image by URL or data, or audio")


def separated(message: JsonObject) -> JsonObject:
    """An assistant's message with its thoughts in `reasoning_content`, for endpoints with a reasoning parser."""
    if message["role"] != "assistant" or not message.get("content"):
        return message
    before = message.get("reasoning_content")
    found, content = _split_content(message["content"])
    if not found:
        return message
    thoughts = [thought for thought in (before, *found) if thought]
    return {**message, "content": content or None, "reasoning_content": _BETWEEN_THOUGHTS.join(thoughts)}


def _split_content(content: str | Sequence[JsonObject]) -> tuple[list[str], str | list[JsonObject]]:
    if isinstance(content, str):
        return split_think_tags(content)
    thoughts, parts = [], []
    for part in content:
        found, rest = split_think_tags(part["text"]) if part["type"] == "text" else Thoughts([], "")
        thoughts += found
        parts.append({**part, "text": rest} if found else part)
    return thoughts, parts


def output_items(
    choice: NeMoGymChoice, *, new_id: Callable[[], str] = lambda: uuid4().hex
) -> list[NeMoGymResponseInputItem]:
    """Convert a completion to items: thoughts, then the message, then calls. Its tokens are on the last one."""
    message = choice.message
    reasoning: str | None = (message.model_extra or {}).get("reasoning_content")
    found, text = split_think_tags(message.content or "")
    thoughts = [*([reasoning] if reasoning else []), *found]
    tokens = message if isinstance(message, TokenIDLogProbMixin) else None
    items: list[NeMoGymResponseInputItem] = []
    if thoughts:
        summary = [NeMoGymSummary(text=thought) for thought in thoughts]
        items.append(NeMoGymResponseReasoningItem(id=f"rs_{new_id()}", summary=summary))
    is_silent = not (thoughts or message.tool_calls or message.refusal)
    was_cut_off = choice.finish_reason in CUT_OFF and tokens is None
    if text or message.refusal or (is_silent and not was_cut_off):
        items.append(_output_message(choice, text, f"msg_{new_id()}"))
    for call in message.tool_calls or ():
        named = {"name": call.function.name, "arguments": call.function.arguments}
        items.append(NeMoGymResponseFunctionToolCall(id=call.id, call_id=call.id, status="completed", **named))
    if tokens is not None:
        # The lists are long and already checked, so they are handed on as they are.
        kind = RESPONSES_TO_TRAIN[type(items[-1])]
        extra = message.model_extra or {}
        named = {
            name: extra[name] for name in (POLICY_VERSION_FIELD, VERSION_RUNS_FIELD) if extra.get(name) is not None
        }
        items[-1] = kind.model_construct(**set_fields(items[-1]), **tokens_of(tokens), **named)
    return items


def _output_message(choice: NeMoGymChoice, text: str, message_id: str) -> NeMoGymResponseOutputMessage:
    parts: list[NeMoGymResponseOutputText | NeMoGymResponseOutputRefusal] = []
    refusal, logprobs = choice.message.refusal, (choice.logprobs or {}).get("content")
    if text or not refusal:
        parts.append(
            NeMoGymResponseOutputText(annotations=[], text=text, **({"logprobs": logprobs} if logprobs else {}))
        )
    if refusal:
        parts.append(NeMoGymResponseOutputRefusal(refusal=refusal))
    return NeMoGymResponseOutputMessage(id=message_id, content=parts, status="completed")


def _usage(usage: NeMoGymCompletionUsage) -> NeMoGymResponseUsage:
    """Return the usage by the names of the Responses API."""
    return NeMoGymResponseUsage.model_validate(
        {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": without_nulls(usage.prompt_tokens_details),
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": without_nulls(usage.completion_tokens_details),
            "total_tokens": usage.total_tokens,
        }
    )


def response_from_completion(
    params: NeMoGymResponseCreateParamsNonStreaming | FrozenRequest,
    completion: NeMoGymChatCompletion,
    *,
    model: str,
    response_id: str | None = None,
    created_at: float | None = None,
    output: Sequence[NeMoGymResponseInputItem] | None = None,
) -> NeMoGymResponse:
    """A completion as the answer to a request, with the request's own settings repeated in it.

    It is made now and with an id of its own; `output` is for callers that have made the items already.
    """
    asked = params.params if isinstance(params, FrozenRequest) else params
    choice = completion.choices[0]
    cut_off = CUT_OFF.get(choice.finish_reason)
    items = output_items(choice) if output is None else output
    return NeMoGymResponse(
        id=response_id or f"resp_{uuid4().hex}",
        created_at=int(time.time()) if created_at is None else created_at,
        model=model,
        output=with_own_tools(items, asked.tools),
        usage=None if completion.usage is None else _usage(completion.usage),
        status="incomplete" if cut_off else "completed",
        incomplete_details=NeMoGymIncompleteDetails(reason=cut_off) if cut_off else None,
        **without_nulls({name: getattr(asked, name) for name in _ECHOED}),
    )


_REASONING_KEYS = ("reasoning_content", "reasoning")
_BROKEN_OFF = frozenset(("abort", "error", "insufficient_system_resource"))
"""Finish reasons of a generation that the endpoint aborted: an error, although the status is 200. The last is
DeepSeek's."""


def _as_text(body: bytes) -> str:
    return body.decode(errors="replace")


def normalize_completion(
    found: bytes | JsonObject, *, url: str, text_of: Callable[[bytes], str] = _as_text
) -> NeMoGymChatCompletion:
    """The completion in an endpoint's reply, or an error that shows the reply as `text_of` formats it."""
    try:
        fields = orjson.loads(found) if isinstance(found, bytes) else found
        choices = [_choice(choice, index) for index, choice in enumerate(fields["choices"])]
        broken = fields if fields.get("error") or not choices else next(filter(_is_broken_off, choices), None)
        if broken is not None:
            raise UpstreamError(url, 200, f"no generation, but {text_of(encode(broken))}", cause="model")
        whole = {
            **fields,
            "id": fields.get("id") or f"chatcmpl-{uuid4().hex}",
            "choices": choices,
            "created": int(fields.get("created") or 0),
            "model": fields.get("model") or "",
            "object": "chat.completion",
            "usage": _known_usage(fields.get("usage")),
        }
        return NeMoGymChatCompletion.model_validate(whole)
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (
            error.errors(include_url=False, include_input=False)[0] if isinstance(error, ValidationError) else error
        )
        raise UpstreamError(
            url, 200, f"no chat completion ({reason!r}): {text_of(encode(found))}", cause="model"
        ) from error


def _choice(choice: JsonObject, index: int) -> JsonObject:
    message = _message(choice["message"])
    finish = choice.get("finish_reason") or ("tool_calls" if message.get("tool_calls") else "stop")
    return {**choice, "index": choice.get("index", index), "finish_reason": str(finish).lower(), "message": message}


def _is_broken_off(choice: JsonObject) -> bool:
    return choice["finish_reason"] in _BROKEN_OFF or bool(choice.get("error"))


def _message(message: JsonObject) -> JsonObject:
    fields = {key: value for key, value in message.items() if key not in (*_REASONING_KEYS, "tool_calls")}
    thoughts, content = _content(message.get("content"))
    thoughts += [text for key in _REASONING_KEYS if isinstance(text := message.get(key), str) and text][:1]
    calls = message.get("tool_calls") or [{"function": call} for call in (message.get("function_call"),) if call]
    fields |= {"role": "assistant", "content": content, "refusal": message.get("refusal") or None}
    if thoughts:
        fields["reasoning_content"] = "".join(thoughts)
    if calls:
        fields["tool_calls"] = list(_tool_calls(calls))
    return fields


def _content(content: Any) -> tuple[list[str], str | None]:
    """Thoughts and text. A list of parts, as some endpoints give it, may hold both."""
    if content is None or isinstance(content, str):
        return [], content
    thoughts, texts = [], []
    for part in content:
        inner = part.get("thinking")
        if inner is not None:
            thoughts.append(inner if isinstance(inner, str) else "".join(step["text"] for step in inner))
        else:
            texts.append(part["text"])
    return thoughts, "".join(texts) or None


def _tool_calls(calls: Iterable[JsonObject]) -> Iterable[JsonObject]:
    """Every call with arguments as a text, and an id that no other call of the message has."""
    taken: set[str] = set()
    for call in calls:
        arguments = call["function"].get("arguments")
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
        given = call.get("id")
        call_id = given if given and given not in taken else f"call_{uuid4().hex}"
        taken.add(call_id)
        yield {**call, "id": call_id, "type": "function", "function": {**call["function"], "arguments": text}}


def _known_usage(usage: Mapping[str, Any] | None) -> JsonObject | None:
    if not usage:
        return None
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    total = usage.get("total_tokens") or prompt + completion
    return {**usage, "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def completion_refusal(error: UpstreamError, *, model: str) -> NeMoGymChatCompletion:
    """The completion that says how the rollout ended, with nothing in it. Raises `error` if it is just an error."""
    cut_off = ending_of(error)
    if cut_off is None:
        raise error
    finish = "length" if cut_off == "max_output_tokens" else "content_filter"
    message = {"role": "assistant", "content": None}
    return NeMoGymChatCompletion.model_validate(
        {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "choices": [{"index": 0, "finish_reason": finish, "message": message}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }
    )


def response_refusal(
    error: UpstreamError, params: NeMoGymResponseCreateParamsNonStreaming | FrozenRequest, *, model: str
) -> NeMoGymResponse:
    """As `completion_refusal`, in the Responses dialect."""
    return response_from_completion(params, completion_refusal(error, model=model), model=model)
