"""Items of a response as chat messages. All that the model produced in one turn becomes one message."""

from collections.abc import Iterable
from typing import Literal

from nemo_gym.errors import GymError
from nemo_gym.llm_api.base import JsonObject

Reasoning = Literal["field", "think", "drop"]
"""Put a model's thoughts into `reasoning_content`, into the text between <think> tags, or nowhere."""


class NotChatError(GymError):
    """An item that cannot be expressed as a chat message."""


def chat_messages(items: Iterable[JsonObject], *, reasoning: Reasoning) -> list[JsonObject]:
    """Convert items to chat messages. All that the model produced in one turn becomes one message."""
    messages: list[JsonObject] = []
    for item in items:
        if not isinstance(item, dict):
            raise NotChatError(f"an item that is no object but {item!r:.40}")
        kind = item.get("type", "message")
        if kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])})
        elif kind == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": _content(item["content"])})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            _add_item(messages[-1], kind, item, reasoning)
    return messages


def chat_tools(tools: Iterable[JsonObject]) -> list[JsonObject]:
    """Convert function tools to the form of a chat request."""
    return [
        {
            "type": "function",
            "function": {key: value for key, value in tool.items() if key != "type" and value is not None},
        }
        for tool in tools
        if tool["type"] == "function"
    ]


def _add_item(message: JsonObject, kind: str, item: JsonObject, reasoning: Reasoning) -> None:
    """Add an item of the model to its message."""
    if kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        thought = _thought(item)
        if thought and reasoning == "field":
            message["reasoning_content"] = message.get("reasoning_content", "") + thought
        elif thought and reasoning == "think":
            message["content"] = f"{message['content'] or ''}<think>{thought}</think>"
    elif kind == "message":
        content = item["content"]
        parts = content if isinstance(content, list) else [{"type": "output_text", "text": content}]
        refusals = [part["refusal"] for part in parts if part["type"] == "refusal"]
        text = _content([part for part in parts if part["type"] != "refusal"])
        if not isinstance(text, str):
            raise NotChatError("an image from the model")
        message["content"] = (message["content"] or "") + text
        if refusals:
            message["refusal"] = message.get("refusal", "") + "".join(refusals)
    else:
        raise NotChatError(f"an item of type {kind}")


def _thought(item: JsonObject) -> str:
    """Return the full reasoning if the record has it, else its summary."""
    whole = "".join(part.get("text", "") for part in item.get("content") or ())
    return whole or "".join(part["text"] for part in item["summary"])


def _content(content: str | list[JsonObject]) -> str | list[JsonObject]:
    """Return plain text if all parts are text, else the converted parts."""
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: JsonObject) -> JsonObject:
    if part["type"] in ("input_text", "output_text"):
        return {"type": "text", "text": part["text"]}
    if part["type"] == "input_image" and part.get("image_url"):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    raise NotChatError(f"a content part of type {part['type']}")
