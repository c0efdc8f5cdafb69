"""Tools and their calls: Responses ⇄ Chat Completions.

Chat endpoints know functions alone. A tool in a namespace becomes the function `<namespace>__<tool>`, and a tool of
free text (`custom`) a function of one text. Calls of them are converted back: the caller sees its own tools."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import JsonObject, TokenIDLogProbMixin
from nemo_gym.llm_api.json_codec import changed, set_fields
from nemo_gym.llm_api.responses import (
    RESPONSES_TO_TRAIN,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseCustomToolCall,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseInputItem,
)

logger = logging.getLogger(__name__)

OFFERED_UNASKED = frozenset(("web_search", "web_search_preview", "image_generation"))
"""Tools that the service of the Responses API runs itself, and that harnesses offer whatever the endpoint is. Beside
other tools they are left out; alone, or demanded by `tool_choice`, they are refused."""
FREE_TEXT = "input"
"""The argument of a function that stands for a tool of free text."""
_TOOL_KEYS = ("name", "description", "parameters", "strict")
_JOINT = "__"


class UnsupportedError(RolloutError, NotImplementedError):
    """A request that the other dialect cannot express."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__("input", f"{found} cannot be passed on in the endpoint's dialect; expected {expected}.")


# Requests


def tool_params(params: NeMoGymResponseCreateParamsNonStreaming) -> JsonObject:
    """Return the tools and what is said about them. Endpoints refuse a choice among no tools, so without tools nothing
    is said."""
    if not params.tools:
        return {}
    choice = {"tool_choice": _chat_choice(params.tool_choice), "parallel_tool_calls": params.parallel_tool_calls}
    given = {name: value for name, value in choice.items() if name in params.model_fields_set}
    return {"tools": _chat_tools(params.tools), **given}


def chat_call(item: NeMoGymResponseFunctionToolCall | NeMoGymResponseCustomToolCall) -> JsonObject:
    """A call of the model in the chat dialect."""
    if isinstance(item, NeMoGymResponseFunctionToolCall):
        function = {"name": _flat_name(item.namespace, item.name), "arguments": item.arguments}
        return {"id": item.call_id, "type": "function", "function": function}
    fields = item.model_extra or {}
    written = orjson.dumps({FREE_TEXT: str(fields.get("input") or "")}).decode()
    function = {"name": str(fields.get("name")), "arguments": written}
    return {"id": str(fields.get("call_id")), "type": "function", "function": function}


def _chat_tools(tools: Iterable[Mapping[str, Any]]) -> list[JsonObject]:
    left_out: list[Mapping[str, Any]] = []
    found: list[JsonObject] = []
    for tool in tools:
        if tool["type"] in OFFERED_UNASKED:
            left_out.append(tool)
        else:
            found += _chat_tool(tool)
    if left_out and not found:
        raise _unsupported_tool(left_out[0])
    for tool in left_out:
        _warn_left_out(str(tool["type"]))
    return found


@lru_cache
def _warn_left_out(kind: str) -> None:
    logger.warning("The endpoint has no tool '%s': the model is offered the others alone.", kind)


def _chat_tool(tool: Mapping[str, Any], namespace: str | None = None) -> Iterator[JsonObject]:
    if tool["type"] == "namespace":
        for each in tool.get("tools") or ():
            yield from _chat_tool(each, str(tool.get("name")))
        return
    fields = {key: tool[key] for key in _TOOL_KEYS if tool.get(key) is not None}
    if tool["type"] == "custom":
        fields["parameters"] = _free_text_schema(tool.get("format") or {})
    elif tool["type"] != "function":
        raise _unsupported_tool(tool)
    yield {"type": "function", "function": {**fields, "name": _flat_name(namespace, str(tool["name"]))}}


def _free_text_schema(wanted: Mapping[str, Any]) -> JsonObject:
    text: JsonObject = {"type": "string"}
    if wanted.get("type") == "grammar":
        text["description"] = f"A text of this {wanted.get('syntax')} grammar:\n{wanted.get('definition')}"
    return {"type": "object", "properties": {FREE_TEXT: text}, "required": [FREE_TEXT]}


def _flat_name(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace}{_JOINT}{name}"


def _unsupported_tool(tool: Mapping[str, Any]) -> UnsupportedError:
    return UnsupportedError(f"A tool of type '{tool['type']}'", "'function', 'custom' or 'namespace'")


def _chat_choice(choice: str | Mapping[str, Any]) -> str | JsonObject:
    if isinstance(choice, str):
        return choice
    if choice.get("type") in ("function", "custom") and "name" in choice:
        name = _flat_name(choice.get("namespace"), str(choice["name"]))
        return {"type": "function", "function": {"name": name}}
    if choice.get("type") == "allowed_tools":
        tools = [_chat_choice(tool) for tool in choice.get("tools", ())]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": tools}}
    if choice.get("type") == "function" and "function" in choice:
        return dict(choice)
    raise UnsupportedError(f"A tool_choice of type '{choice.get('type')}'", "'function' or 'allowed_tools'")


# Answers


def with_own_tools(
    items: Sequence[NeMoGymResponseInputItem], tools: Iterable[Mapping[str, Any]]
) -> list[NeMoGymResponseInputItem]:
    """Return a reply's items with calls as the caller's own tools have them."""
    special = [tool for tool in tools if tool["type"] in ("namespace", "custom")]
    if not special:
        return list(items)
    custom = {str(tool["name"]) for tool in special if tool["type"] == "custom"}
    spaces = {
        _flat_name(str(space.get("name")), str(tool["name"])): (str(space.get("name")), str(tool["name"]))
        for space in special
        if space["type"] == "namespace"
        for tool in space.get("tools") or ()
    }
    return [_own_call(item, custom, spaces) for item in items]


def _own_call(
    item: NeMoGymResponseInputItem, custom: set[str], spaces: Mapping[str, tuple[str, str]]
) -> NeMoGymResponseInputItem:
    if not isinstance(item, NeMoGymResponseFunctionToolCall):
        return item
    if item.name in spaces:
        namespace, name = spaces[item.name]
        return changed(item, namespace=namespace, name=name)
    if item.name not in custom:
        return item
    fields = {name: value for name, value in set_fields(item).items() if name not in ("arguments", "type")}
    made = {**fields, "type": "custom_tool_call", "input": _free_text(item.arguments)}
    kind = NeMoGymResponseCustomToolCall
    return (RESPONSES_TO_TRAIN[kind] if isinstance(item, TokenIDLogProbMixin) else kind).model_construct(**made)


def _free_text(arguments: str) -> str:
    """What the model wrote for a tool of free text; as it is if that is not the argument of the function."""
    try:
        found = orjson.loads(arguments)[FREE_TEXT]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return arguments
    return found if isinstance(found, str) else arguments
