"""Chat messages of other datasets as Responses items: OpenAI's `messages`, and ShareGPT's `conversations`."""

from collections.abc import Sequence
from typing import Any

import orjson

from nemo_gym.llm_api.base import JsonObject

_SHARE_GPT_ROLES = {"human": "user", "gpt": "assistant", "function_response": "tool"}
_ROLES = frozenset(("system", "developer", "user", "assistant"))


class NotMessagesError(ValueError):
    """A value is not a list of chat messages."""


def items_of(messages: Any) -> list[JsonObject]:
    """The `input` of a row that has these messages."""
    if isinstance(messages, str):
        messages = _decoded(messages)
    if not isinstance(messages, Sequence) or not messages:
        raise NotMessagesError("no list of messages")
    return [item for message in messages for item in _items(message)]


def _decoded(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        raise NotMessagesError("no list of messages") from None


def _items(message: Any) -> list[JsonObject]:
    if not isinstance(message, dict):
        raise NotMessagesError("a message that is no object")
    role = message.get("role") or message.get("from")
    role = _SHARE_GPT_ROLES.get(role, role) if isinstance(role, str) else role
    content = message.get("content") if "content" in message else message.get("value")
    if role == "tool":
        call_id = str(message.get("tool_call_id") or message.get("call_id") or "call_0")
        return [{"type": "function_call_output", "call_id": call_id, "output": _text(content)}]
    if role not in _ROLES:
        raise NotMessagesError(f"a message with the role {role!r}")
    calls = [_call(call) for call in _listed(message.get("tool_calls"))]
    has_text = content not in (None, "", [])
    return [*([{"role": role, "content": _content(content)}] if has_text or not calls else []), *calls]


def _listed(calls: Any) -> Sequence[Any]:
    if calls is not None and not isinstance(calls, list):
        raise NotMessagesError("tool calls that are not a list")
    return calls or ()


def _call(call: Any) -> JsonObject:
    function = (call.get("function") or call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise NotMessagesError("a tool call without a name")
    arguments = function.get("arguments") or "{}"
    return {
        "type": "function_call",
        "call_id": str(call.get("id") or "call_0"),
        "name": function["name"],
        "arguments": arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode(),
    }


def _text(content: Any) -> str:
    return content if isinstance(content, str) else orjson.dumps(content).decode()


def _content(content: Any) -> Any:
    """A text, or a list of parts; other parts than texts and images stay as they are."""
    if content is None:
        return ""
    return [_part(part) for part in content] if isinstance(content, list) else _text(content)


def _part(part: Any) -> Any:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "input_image", "image_url": url}
    return part


def tools_of(tools: Any) -> list[JsonObject]:
    """Tools in the form of Chat Completions or of Responses, in that of Responses."""
    listed = _decoded(tools) if isinstance(tools, str) else tools
    if not isinstance(listed, list):
        raise NotMessagesError("tools that are not a list")
    return [{"type": "function", **tool["function"]} if "function" in tool else tool for tool in listed]
