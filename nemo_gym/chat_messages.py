"""Items of the Responses API as the messages of a chat, for data that models are trained on."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from nemo_gym.errors import GymError
from nemo_gym.openai_types import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseInputImage,
    NeMoGymResponseInputText,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputRefusal,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymToolParam,
    ResponseItem,
)
from nemo_gym.wire import ContentPart, JsonObject

Reasoning = Literal["field", "think", "drop"]
"""Where a model's thoughts go: into `reasoning_content`, into the text between <think> tags, or nowhere."""


class NotChatError(GymError):
    """Something that no chat message can say."""


def chat_messages(items: Iterable[ResponseItem], *, reasoning: Reasoning) -> list[JsonObject]:
    """The messages that say what the items say. All that the model gives in one turn becomes one message."""
    messages: list[JsonObject] = []
    for item in items:
        if isinstance(item, NeMoGymFunctionCallOutput):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
        elif isinstance(item, NeMoGymEasyInputMessage | NeMoGymMessage) and item.role != "assistant":
            messages.append({"role": item.role, "content": _content(item.content)})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            _say(messages[-1], item, reasoning)
    return messages


def chat_tools(tools: Iterable[NeMoGymToolParam]) -> list[JsonObject]:
    """The function tools as a chat request lists them."""
    return [
        {
            "type": "function",
            "function": {key: value for key, value in tool.items() if key != "type" and value is not None},
        }
        for tool in tools
        if tool["type"] == "function"
    ]


def _say(message: JsonObject, item: ResponseItem, reasoning: Reasoning) -> None:
    """Add what the model did to its message."""
    if isinstance(item, NeMoGymResponseFunctionToolCall):
        function = {"name": item.name, "arguments": item.arguments}
        message.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
    elif isinstance(item, NeMoGymResponseReasoningItem):
        thought = _thought(item)
        if thought and reasoning == "field":
            message["reasoning_content"] = message.get("reasoning_content", "") + thought
        elif thought and reasoning == "think":
            message["content"] = f"{message['content'] or ''}<think>{thought}</think>"
    elif isinstance(item, NeMoGymResponseOutputMessage | NeMoGymEasyInputMessage):
        parts = item.content
        refusals = [part.refusal for part in parts if isinstance(part, NeMoGymResponseOutputRefusal)]
        said = parts if isinstance(parts, str) else [part for part in parts if part.type != "refusal"]
        text = _content(said)
        if not isinstance(text, str):
            raise NotChatError("an image from the model")
        message["content"] = (message["content"] or "") + text
        if refusals:
            message["refusal"] = message.get("refusal", "") + "".join(refusals)
    else:
        raise NotChatError(f"an item of type {item.type}")  # type: ignore[attr-defined]


def _thought(item: NeMoGymResponseReasoningItem) -> str:
    """The reasoning in full if the record has it, else its summary."""
    whole: Any = (item.model_extra or {}).get("content") or ()
    return "".join(part.get("text", "") for part in whole) or "".join(part.text for part in item.summary)


def _content(content: str | Sequence[ContentPart]) -> str | list[JsonObject]:
    """Plain text if that is all there is."""
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: ContentPart) -> JsonObject:
    if isinstance(part, NeMoGymResponseInputText | NeMoGymResponseOutputText):
        return {"type": "text", "text": part.text}
    if isinstance(part, NeMoGymResponseInputImage) and part.image_url:
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    raise NotChatError(f"a content part of type {part.get('type')}")
