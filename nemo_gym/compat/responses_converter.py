"""`ResponsesConverter`: the conversions of `responses_chat` as methods, for servers that use this class."""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from pydantic import BaseModel

from nemo_gym.llm_api.base import (
    JsonObject,
    TokenIDLogProbMixin,
    content_text,
    has_token_ids,
    tokens_of,
    type_of,
    without_nulls,
)
from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChoice,
)
from nemo_gym.llm_api.json_codec import changed
from nemo_gym.llm_api.responses import (
    RESPONSES_TO_TRAIN,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
)
from nemo_gym.llm_api.responses_chat import (
    ChatMessages,
    chat_params,
    output_items,
    response_from_completion,
    split_think_tags,
    think_tags,
)

ResponsesConverterState = ChatMessages
VLLMConverterResponsesToChatCompletionsState = ChatMessages
_SYSTEM = ("system", "developer")
_SAME_NAME = ("metadata", "model", "parallel_tool_calls", "temperature", "top_p", "user", "store")


class ResponsesConverter(BaseModel):
    """Converts requests to the chat dialect and completions to items. Reasoning is sent back in `<think>` tags."""

    return_token_id_information: bool
    uses_reasoning_parser: bool = True
    """If false, `<think>` tags in a completion stay in its text."""

    def responses_to_chat_completion_create_params(
        self, responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        """Convert a request to the chat dialect, with one system message at the start."""
        if responses_create_params.tool_choice == "required" and not responses_create_params.tools:
            raise ValueError("tool_choice is 'required', but there are no tools")
        params = chat_params(responses_create_params, with_tokens=self.return_token_id_information)
        messages = _one_system_message(params.messages)
        return changed(params, messages=[_without_empty_calls(message) for message in messages])

    def postprocess_chat_response(self, choice: NeMoGymChoice) -> list[NeMoGymResponseInputItem]:
        """Convert a completion to items."""
        items = output_items(choice, new_id=_new_id) or [_message("")]
        items = [
            changed(item, status="completed") if isinstance(item, NeMoGymResponseReasoningItem) else item
            for item in items
        ]
        if self.uses_reasoning_parser or "<think>" not in (choice.message.content or ""):
            return items
        message: Any = _message(choice.message.content or "")
        calls = [item for item in items if type_of(item) == "function_call"]
        if not calls and isinstance(choice.message, TokenIDLogProbMixin):
            kind = RESPONSES_TO_TRAIN[NeMoGymResponseOutputMessage]
            message = kind.model_validate({**message.model_dump(), **tokens_of(choice.message)})
        return [message, *calls]

    def postprocess_assistant_message_dict(self, message_dict: Mapping[str, Any]) -> list[NeMoGymResponseInputItem]:
        """Convert an assistant message to items."""
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message_dict}}
        return self.postprocess_chat_response(NeMoGymChoice.model_validate(choice))

    def chat_completions_messages_to_responses_items(
        self, messages: Iterable[Mapping[str, Any]]
    ) -> list[NeMoGymResponseInputItem]:
        """Convert chat messages to items."""
        found: list[Any] = []
        for message in messages:
            found += self._items_of(message)
        request = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": found})
        return list(request.input) if isinstance(request.input, list) else []

    def chat_completion_to_responses_create_params(
        self, params: NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> NeMoGymResponseCreateParamsNonStreaming:
        """Convert a request to the Responses dialect."""
        given = {
            **{name: getattr(params, name) for name in _SAME_NAME},
            "max_output_tokens": params.max_completion_tokens or params.max_tokens,
            "reasoning": {"effort": params.reasoning_effort} if params.reasoning_effort else None,
            "tools": [{"type": "function", **tool["function"]} for tool in params.tools or ()] or None,
            "tool_choice": params.tool_choice,
        }
        items = self.chat_completions_messages_to_responses_items(params.messages)
        return NeMoGymResponseCreateParamsNonStreaming.model_validate({**without_nulls(given), "input": items})

    def chat_completion_to_response(
        self,
        responses_create_params: NeMoGymResponseCreateParamsNonStreaming,
        chat_completion: NeMoGymChatCompletion,
        *,
        preserve_envelope_id: bool = False,
    ) -> NeMoGymResponse:
        """Convert a completion to the response to a request."""
        output = self.postprocess_chat_response(chat_completion.choices[0])
        response_id = chat_completion.id if preserve_envelope_id else f"resp_{_new_id()}"
        return response_from_completion(
            responses_create_params,
            chat_completion,
            model=chat_completion.model,
            response_id=response_id,
            created_at=chat_completion.created,
            output=output,
        )

    def _items_of(self, message: Mapping[str, Any]) -> list[Any]:
        role, content = message["role"], message.get("content")
        if role == "tool":
            return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": _input(content)}]
        if role != "assistant":
            return [{"type": "message", "role": role, "content": _input(content)}]
        text = content_text(content)
        known = {"content": text or None, **{key: message[key] for key in _ASSISTANT if message.get(key)}}
        tokens = dict(message) if has_token_ids(dict(message)) else {}
        return list(self.postprocess_assistant_message_dict({**tokens, **known}))

    @staticmethod
    def _wrap_reasoning_in_think_tags(texts: Sequence[str]) -> str:
        return think_tags(texts)

    @staticmethod
    def _parse_think_tags(content: str) -> tuple[list[str], str]:
        return split_think_tags(content)

    def _extract_reasoning_from_content(self, content: str) -> tuple[list[str], str]:
        return self._parse_think_tags(content)


def _new_id() -> str:
    """Return an id by `uuid4` of the module that model servers import this from: their tests replace it there."""
    return str(importlib.import_module("nemo_gym.responses_converter").uuid4().hex)


def _message(text: str) -> NeMoGymResponseOutputMessage:
    part = NeMoGymResponseOutputText(annotations=[], text=text)
    return NeMoGymResponseOutputMessage(id=f"msg_{_new_id()}", content=[part], status="completed")


_ASSISTANT = ("tool_calls", "reasoning_content", "refusal")

VLLMConverter = ResponsesConverter


def _one_system_message(messages: Sequence[Any]) -> list[Any]:
    leading = list(takewhile(lambda message: message["role"] in _SYSTEM, messages))
    if len(leading) < 2:
        return list(messages)
    content = "\n\n".join(content_text(message["content"]) for message in leading)
    return [{"role": "system", "content": content}, *messages[len(leading) :]]


def _without_empty_calls(message: JsonObject) -> JsonObject:
    return {key: value for key, value in message.items() if key != "tool_calls" or value}


def _input(content: Any) -> Any:
    """Convert the content of a chat message to that of an input item."""
    if not isinstance(content, list):
        return content or ""
    return [_input_part(part) for part in content]


def _input_part(part: Mapping[str, Any]) -> JsonObject:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    if part["type"] == "image_url":
        return {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
    if part["type"] == "video_url":
        return {"type": "input_video", "video_url": part["video_url"]["url"]}
    return dict(part)


def split_responses_input_output_items(items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Split items before the first one that a model wrote. Tool outputs are not written by a model."""
    at = next((index for index, item in enumerate(items) if _is_by_model(item)), len(items))
    return list(items[:at]), list(items[at:])


def _is_by_model(item: Any) -> bool:
    kind = type_of(item) or "message"
    role = item.get("role") if isinstance(item, Mapping) else getattr(item, "role", None)
    return role == "assistant" if kind == "message" else kind == "reasoning" or kind.endswith("_call")


def usage_detail(usage: Any, group: str, name: str, *aliases: str) -> int | None:
    """Return the first known count: from the nested details, then under other names at the top level."""
    fields = usage.model_dump() if isinstance(usage, BaseModel) else usage or {}
    nested = fields.get(group) or {}
    found = (nested.get(name), *(fields.get(alias) for alias in aliases))
    return next((count for count in found if isinstance(count, int) and count >= 0), None)


_usage_detail = usage_detail
