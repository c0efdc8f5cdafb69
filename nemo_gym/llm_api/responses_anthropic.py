"""The Anthropic Messages API: converts its requests to the Responses dialect and the answers back, without I/O.

What comes in is typed here, what goes out are plain dicts. Content blocks that are sent back as they came become the
items they were made of.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import orjson
from pydantic import Field
from pydantic_core import PydanticCustomError

from nemo_gym.llm_api.base import (
    TOKEN_METADATA_FIELDS,
    JsonObject,
    JsonRecord,
    TextOrList,
    TokenIDLogProbMixin,
    WireModel,
    tokens_of,
    type_of,
    without_nulls,
)
from nemo_gym.llm_api.responses import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputRefusal,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseUsage,
)
from nemo_gym.llm_api.responses_chat import UnsupportedError, thoughts_of

INVALID_JSON_KEY = "_invalid_json"
"""The key for arguments that are not a JSON object, which this dialect cannot express."""

_UNSUPPORTED = ("container", "mcp_servers", "stop_sequences", "top_k")
_EFFORTS = ((4_096, "low"), (16_384, "medium"))
"""Budgets of thought, in tokens, below which an effort counts as that."""
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOP_REASONS = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


class Block(JsonRecord):
    """A part of a message."""

    REQUIRED: ClassVar[Mapping[str, Mapping[str, type]]] = {
        "text": {"text": str},
        "image": {"source": dict},
        "document": {"source": dict},
        "tool_use": {"id": str, "name": str, "input": dict},
        "tool_result": {"tool_use_id": str},
        "thinking": {"thinking": str},
        "redacted_thinking": {"data": str},
    }

    @classmethod
    def read(cls, value: Any) -> Self:
        block, content = super().read(value), None
        if block["type"] == "tool_result":
            content = block.get("content") or ""
            if not isinstance(content, str | list):
                raise PydanticCustomError("tool_result", "The content of a tool result should be a text or a list")
        return cls({**block, "content": [cls.read(part) for part in content]}) if isinstance(content, list) else block


class TextBlock(WireModel):
    type: Literal["text"]
    text: str


class MessageParam(WireModel):
    role: Literal["user", "assistant", "system"]
    content: TextOrList[Block]


class Tool(WireModel):
    name: str
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None
    type: str | None = None


class AnthropicToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(WireModel):
    type: str
    budget_tokens: int = 0


class OutputFormat(WireModel):
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(WireModel):
    effort: str | None = None
    format: OutputFormat | None = None


class MessagesParams(WireModel):
    """A request to `/v1/messages`. Fields that steer only the service of that API are passed over."""

    messages: list[MessageParam]
    max_tokens: int
    metadata: JsonObject | None = None
    output_config: OutputConfig | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    system: TextOrList[TextBlock] | None = None
    temperature: float | None = None
    thinking: Thinking | None = None
    tool_choice: AnthropicToolChoice | None = None
    tools: list[Tool] | None = None
    top_k: int | None = None
    top_p: float | None = None


# Messages -> Responses


def responses_params(params: MessagesParams) -> NeMoGymResponseCreateParamsNonStreaming:
    """The same request in the Responses dialect."""
    for name in _UNSUPPORTED:
        if getattr(params, name, None):
            raise UnsupportedError(f"'{name}'", "a request without it")
    given: JsonObject = {
        "input": [item for message in params.messages for item in _items(message)],
        "instructions": _instructions(params),
        "max_output_tokens": params.max_tokens,
        "metadata": {key: str(value) for key, value in without_nulls(params.metadata).items()} or None,
        "reasoning": _reasoning(params),
        "temperature": params.temperature,
        "text": _text(params),
        "top_p": params.top_p,
    }
    if params.tools:
        given["tools"] = [_tool(tool) for tool in params.tools]
        given |= _choice(params.tool_choice) if params.tool_choice else {}
    return NeMoGymResponseCreateParamsNonStreaming.model_validate(without_nulls(given))


def _instructions(params: MessagesParams) -> str | None:
    if params.system is None or isinstance(params.system, str):
        return params.system
    return "\n\n".join(block.text for block in params.system)


def _reasoning(params: MessagesParams) -> JsonObject | None:
    if params.output_config is not None and params.output_config.effort is not None:
        return {"effort": params.output_config.effort}
    if params.thinking is None or params.thinking.type != "enabled":
        return None
    budget = params.thinking.budget_tokens
    return {"effort": next((effort for below, effort in _EFFORTS if budget < below), "high")}


def _text(params: MessagesParams) -> JsonObject | None:
    if params.output_config is None or params.output_config.format is None:
        return None
    schema = params.output_config.format.schema_
    return {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}


def _tool(tool: Tool) -> JsonObject:
    if tool.input_schema is None:
        raise UnsupportedError(f"The tool '{tool.name}' of type '{tool.type}'", "tools with an 'input_schema'")
    described = {"description": tool.description} if tool.description else {}
    shape = {"parameters": tool.input_schema, "strict": bool(tool.strict)}
    return {"type": "function", "name": tool.name, **described, **shape}


def _choice(choice: AnthropicToolChoice) -> JsonObject:
    named = {"type": "function", "name": choice.name}
    given: JsonObject = {"tool_choice": named if choice.type == "tool" else _TOOL_CHOICES[choice.type]}
    return given | ({"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {})


def _items(message: MessageParam) -> list[JsonObject]:
    """The items of one message. Blocks that stand together and were one item become one again."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    items: list[JsonObject] = []
    for block in message.content:
        item = _item(block, message.role) | {name: block[name] for name in TOKEN_METADATA_FIELDS if name in block}
        if items and _is_more_of(items[-1], item):
            key = "summary" if item["type"] == "reasoning" else "content"
            items[-1] |= item | {key: items[-1][key] + item[key]}
        else:
            items.append(item)
    return items


def _is_more_of(before: JsonObject, item: JsonObject) -> bool:
    if before["type"] == item["type"] == "reasoning":
        return bool(before["id"] == item["id"])
    return bool(before["type"] == item["type"] == "message")


def _item(block: Block, role: str) -> JsonObject:
    kind = block["type"]
    if kind == "tool_use":
        call = {"call_id": block["id"], "name": block["name"], "arguments": _arguments(block["input"])}
        return {"type": "function_call", **call}
    if kind == "tool_result":
        return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": _output(block)}
    if kind == "thinking":
        thought = block["thinking"]
        mark = _read_mark(block.get("signature") or "", thought)
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}], **mark}
    if kind == "redacted_thinking":
        return {"type": "reasoning", "summary": [], **_read_mark(block["data"], block["data"])}
    is_own_text = kind == "text" and role == "assistant"
    part = {"type": "output_text", "text": block["text"], "annotations": []} if is_own_text else _input_part(block)
    return {"type": "message", "role": role, "content": [part]}


def _arguments(given: JsonObject) -> str:
    invalid = given.get(INVALID_JSON_KEY)
    return invalid if isinstance(invalid, str) else orjson.dumps(given).decode()


def _output(block: Block) -> str | list[JsonObject]:
    content = block.get("content") or ""
    if isinstance(content, str):
        return content
    parts = [_input_part(part) for part in content]
    return str(parts[0]["text"]) if [part["type"] for part in content] == ["text"] else parts


def _input_part(block: Block) -> JsonObject:
    kind = block["type"]
    if kind == "text":
        return {"type": "input_text", "text": block["text"]}
    if kind not in ("image", "document"):
        raise UnsupportedError(f"A content block of type '{kind}'", "text, images, documents, thoughts or tools")
    source = block["source"]
    if source.get("type") == "text":
        return {"type": "input_text", "text": source.get("data") or ""}
    if source.get("type") not in ("base64", "url"):
        raise UnsupportedError(f"A source of type '{source.get('type')}'", "'base64', 'text' or 'url'")
    url = source.get("url")
    data = url or f"data:{source.get('media_type')};base64,{source.get('data')}"
    if kind == "image":
        return {"type": "input_image", "image_url": data, "detail": "auto"}
    return {
        "type": "input_file",
        "filename": block.get("title") or "document",
        "file_url" if url else "file_data": data,
    }


# Responses -> Messages


def message_of(response: NeMoGymResponse, *, message_id: str) -> JsonObject:
    """The answer in the Messages dialect."""
    content = [block for item in response.output for block in _blocks(item)]
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": content,
        "stop_reason": _stop_reason(response),
        "stop_sequence": None,
        "usage": _usage(response.usage),
    }


def _stop_reason(response: NeMoGymResponse) -> str:
    reason = response.incomplete_details.reason if response.incomplete_details else None
    if reason is not None:
        return _STOP_REASONS.get(reason, "max_tokens")
    messages = [item for item in response.output if isinstance(item, NeMoGymResponseOutputMessage)]
    if any(isinstance(part, NeMoGymResponseOutputRefusal) for message in messages for part in message.content):
        return "refusal"
    return "tool_use" if any(type_of(item) == "function_call" for item in response.output) else "end_turn"


def _usage(usage: NeMoGymResponseUsage | None) -> JsonObject:
    """In this dialect, what was read from a cache is not among the input."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    cached = usage.input_tokens_details.cached_tokens or 0
    return {
        "input_tokens": usage.input_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": (usage.input_tokens_details.model_extra or {}).get("cache_write_tokens") or 0,
        "output_tokens": usage.output_tokens,
    }


def _blocks(item: NeMoGymResponseInputItem) -> list[JsonObject]:
    """An item as blocks. Its tokens, if it has them, are on the last one."""
    blocks: list[JsonObject]
    if isinstance(item, NeMoGymResponseReasoningItem):
        mark, thoughts = _mark(item), thoughts_of(item)
        blocks = [{"type": "thinking", "thinking": thought, "signature": mark} for thought in thoughts]
        blocks = blocks or [{"type": "redacted_thinking", "data": mark}]
    elif isinstance(item, NeMoGymResponseFunctionToolCall):
        blocks = [{"type": "tool_use", "id": item.call_id, "name": item.name, "input": _input(item.arguments)}]
    elif isinstance(item, NeMoGymResponseOutputMessage):
        texts = [
            part.refusal if isinstance(part, NeMoGymResponseOutputRefusal) else part.text for part in item.content
        ]
        blocks = [{"type": "text", "text": text} for text in texts]
    else:
        raise UnsupportedError(f"An output item of type '{type_of(item)}'", "messages, reasoning and function calls")
    if blocks and isinstance(item, TokenIDLogProbMixin):
        blocks[-1] |= tokens_of(item)
    return blocks


def _input(arguments: str) -> JsonObject:
    try:
        found = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        found = None
    return found if isinstance(found, dict) else {INVALID_JSON_KEY: arguments}


def _mark(item: NeMoGymResponseReasoningItem) -> str:
    """Return the fields of a reasoning item beside its text. The client sends them back unread."""
    return orjson.dumps([item.id, item.encrypted_content]).decode()


def _read_mark(mark: str, text: str) -> JsonObject:
    try:
        item_id, encrypted = orjson.loads(mark)
        return {"id": str(item_id)} | ({} if encrypted is None else {"encrypted_content": str(encrypted)})
    except (orjson.JSONDecodeError, TypeError, ValueError):
        return {"id": f"rs_{hashlib.sha256(text.encode()).hexdigest()[:32]}"}  # A thought of another model.
