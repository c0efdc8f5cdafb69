"""A completion by the engine's own chat endpoint, which knows the tool calls and the thoughts of many templates."""

from collections.abc import Iterable
from typing import Any

from nemo_gym import JsonObject
from responses_api_models.local_model.engine import Engine


async def complete_chat(engine: Engine, params: JsonObject) -> JsonObject:
    """The answer to a chat request. Streamed if that loses nothing, since only then a caller's leaving ends it."""
    asked = {**params, "messages": [_known_role(message) for message in params["messages"]]}
    if params.get("logprobs"):
        asked["top_logprobs"] = max(1, params.get("top_logprobs") or 0)
        (whole,) = await engine.generate("/v1/chat/completions", asked)
        _cut_logprobs(whole, params.get("top_logprobs") or 0)
        return whole
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return _whole(await engine.generate("/v1/chat/completions", asked))


def _known_role(message: JsonObject) -> JsonObject:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _cut_logprobs(whole: JsonObject, top: int) -> None:
    for choice in whole["choices"]:
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            entry["top_logprobs"] = entry["top_logprobs"][:top]


def _whole(chunks: list[JsonObject]) -> JsonObject:
    """The completion that a stream tells piece by piece."""
    choices: dict[int, JsonObject] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"index": part["index"], "message": {}})
            choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
            _add(choice["message"], part["delta"])
    return {**chunks[-1], "object": "chat.completion", "choices": [choices[index] for index in sorted(choices)]}


def _add(message: JsonObject, delta: JsonObject) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            _add_calls(message.setdefault(name, []), value)
        elif name == "role":
            message[name] = value
        elif value is not None:
            message[name] = (message.get(name) or "") + value


def _add_calls(calls: list[Any], deltas: Iterable[JsonObject]) -> None:
    for delta in deltas:
        while len(calls) <= delta["index"]:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[delta["index"]]
        call["id"] = delta.get("id") or call["id"]
        for name, value in delta.get("function", {}).items():
            call["function"][name] += value or ""
