"""Normalize chat completions: endpoints differ in names, places and missing fields. The content is not changed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

import orjson
from pydantic import ValidationError

from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.chat import NeMoGymChatCompletion
from nemo_gym.llm_api.json_codec import encode

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
            "usage": _usage(fields.get("usage")),
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


def _usage(usage: Mapping[str, Any] | None) -> JsonObject | None:
    if not usage:
        return None
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    total = usage.get("total_tokens") or prompt + completion
    return {**usage, "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
