"""Our types against those of the `openai` package: what one writes, the other reads."""

import json
from typing import Any

import pytest
from openai.types import Reasoning
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import (
    FunctionTool,
    Response,
    ResponseFunctionToolCall,
    ResponseInputItemParam,
    ResponseOutputMessage,
    ResponseReasoningItem,
    ResponseUsage,
)
from openai.types.responses.response_create_params import ResponseCreateParamsBase, ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from nemo_gym.llm_api.chat import NeMoGymChatCompletion, NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.llm_api.responses import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseUsage,
    accumulate_response_usage,
    for_resubmission,
)

ITEM: TypeAdapter[Any] = TypeAdapter(NeMoGymResponseInputItem)

OUTPUT_PARTS = [{"type": "output_text", "text": "hi", "annotations": []}]
EASY = {"role": "user", "content": "hi"}
LONG = {
    "role": "user",
    "content": [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
    ],
    "status": "completed",
    "type": "message",
}
SAID = {"id": "msg_1", "role": "assistant", "content": OUTPUT_PARTS, "status": "completed", "type": "message"}
CALL = {"type": "function_call", "call_id": "c1", "name": "spell", "arguments": '{"word":"a"}'}
ANSWER = {"type": "function_call_output", "call_id": "c1", "output": '["a"]'}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}


def test_every_parameter_of_the_openai_package_is_known() -> None:
    assert set(ResponseCreateParamsBase.__annotations__) <= set(NeMoGymResponseCreateParamsNonStreaming.model_fields)


REQUEST: dict[str, Any] = {
    "model": "gpt-5",
    "input": [EASY, LONG, SAID, CALL, ANSWER, THOUGHT, SEARCH],
    "instructions": "Be brief.",
    "max_output_tokens": 100,
    "metadata": {"run": "7"},
    "reasoning": {"effort": "low"},
    "service_tier": "flex",
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    "tool_choice": {"type": "function", "name": "spell"},
    "tools": [
        {
            "type": "function",
            "name": "spell",
            "description": "Spell a word.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
            "strict": True,
            "defer_loading": False,
        },
        {"type": "web_search", "search_context_size": "low"},
    ],
    "truncation": "auto",
    "conversation": {"id": "conv_1"},
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "stream_options": {"include_obfuscation": False},
}


def test_a_request_keeps_every_field_and_is_valid_for_the_openai_package() -> None:
    request = NeMoGymResponseCreateParamsNonStreaming.model_validate_json(json.dumps(REQUEST))
    sent = json.loads(request.model_dump_json(exclude_unset=True))
    assert sent == REQUEST
    TypeAdapter(ResponseCreateParamsNonStreaming).validate_python(sent)


THEIR_RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "created_at": 1700000000.0,
    "completed_at": 1700000001.0,
    "model": "gpt-5",
    "object": "response",
    "output": [
        THOUGHT | {"status": "completed", "content": [{"type": "reasoning_text", "text": "hm"}]},
        SEARCH,
        {
            **SAID,
            "content": [
                {
                    "type": "output_text",
                    "text": "See here.",
                    "annotations": [
                        {
                            "type": "url_citation",
                            "url": "https://x.org",
                            "title": "x",
                            "start_index": 0,
                            "end_index": 3,
                        }
                    ],
                    "logprobs": [{"token": "See", "bytes": [83], "logprob": -0.1, "top_logprobs": []}],
                },
                {"type": "refusal", "refusal": "Not that."},
            ],
        },
        CALL | {"id": "fc_1", "status": "completed"},
    ],
    "parallel_tool_calls": True,
    "tool_choice": {"type": "function", "name": "spell"},
    "tools": REQUEST["tools"],
    "incomplete_details": {"reason": "max_output_tokens"},
    "error": {"code": "server_error", "message": "late"},
    "instructions": [LONG],
    "reasoning": {"effort": "low", "summary": None},
    "status": "incomplete",
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "usage": {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    },
}


def test_a_response_of_the_openai_package_makes_the_trip_there_and_back() -> None:
    theirs = Response.model_validate(THEIR_RESPONSE)
    ours = NeMoGymResponse.model_validate_json(theirs.model_dump_json())
    back = Response.model_validate_json(ours.model_dump_json())
    assert back.model_dump() == theirs.model_dump()
    assert ours.output_text == theirs.output_text == "See here."
    assert ours.incomplete_details is not None
    assert ours.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (ResponseOutputMessage.model_validate(SAID), NeMoGymResponseOutputMessage),
        (ResponseFunctionToolCall.model_validate(CALL), NeMoGymResponseFunctionToolCall),
        (ResponseReasoningItem.model_validate(THOUGHT), NeMoGymResponseReasoningItem),
    ],
)
def test_an_item_dumped_by_the_openai_package_is_read(theirs: Any, expected: type) -> None:
    assert type(ITEM.validate_python(theirs.model_dump())) is expected


@pytest.mark.parametrize("item", [EASY, LONG, SAID, CALL, ANSWER, THOUGHT])
def test_an_item_dumped_by_us_is_read_by_the_openai_package(item: dict[str, Any]) -> None:
    sent = for_resubmission(ITEM.validate_python(item))
    read: Any = TypeAdapter(ResponseInputItemParam).validate_python(sent)
    assert set(item) <= set(read)


CHAT_REQUEST: dict[str, Any] = {
    "model": "gpt-5",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be exact."}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}},
            ],
            "name": "ann",
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "spell", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "spell", "description": "d", "parameters": {"type": "object"}}}
    ],
    "tool_choice": {"type": "function", "function": {"name": "spell"}},
    "stop": ["END"],
    "max_completion_tokens": 10,
    "prompt_cache_key": "k",
    "verbosity": "low",
}


def test_a_chat_request_keeps_every_field_and_is_valid_for_the_openai_package() -> None:
    request = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate_json(json.dumps(CHAT_REQUEST))
    sent = json.loads(request.model_dump_json(exclude_unset=True))
    assert sent == CHAT_REQUEST
    TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(sent)


def test_a_chat_completion_of_the_openai_package_makes_the_trip_there_and_back() -> None:
    theirs = ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "gpt-5",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "logprobs": {
                        "content": [{"token": "a", "bytes": [97], "logprob": -0.1, "top_logprobs": []}],
                        "refusal": None,
                    },
                    "message": {
                        "role": "assistant",
                        "content": "Let me see.",
                        "refusal": None,
                        "annotations": [],
                        "tool_calls": [
                            {"id": "c1", "type": "function", "function": {"name": "spell", "arguments": "{}"}}
                        ],
                    },
                }
            ],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "total_tokens": 14,
                "completion_tokens_details": {"reasoning_tokens": 2},
                "prompt_tokens_details": {"cached_tokens": 3},
            },
            "system_fingerprint": "fp",
        }
    )
    ours = NeMoGymChatCompletion.model_validate_json(theirs.model_dump_json())
    assert ChatCompletion.model_validate_json(ours.model_dump_json()).model_dump() == theirs.model_dump()


def test_objects_of_the_package_are_accepted_where_a_response_has_them() -> None:
    tool = FunctionTool(type="function", name="look", parameters={}, strict=False)
    usage = ResponseUsage.model_validate(
        {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 3,
        }
    )
    said = ResponseOutputMessage.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
        }
    )
    named: Any = {"id": "resp_1", "created_at": 0, "model": "m"}
    response = NeMoGymResponse(**named, output=[said], tools=[tool], usage=usage, reasoning=Reasoning(effort="low"))
    assert response.output_text == "hi"
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 1
    assert response.reasoning == {"effort": "low"}
    (found,) = response.tools
    assert (found.name, found["name"], found.model_dump()["type"]) == ("look", "look", "function")
    assert NeMoGymResponse.model_validate_json(response.model_dump_json()) == response


def test_explicit_nulls_are_read_as_if_the_key_were_absent() -> None:
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(
        {"input": "hi", "tool_choice": None, "tools": None, "parallel_tool_calls": None}
    )
    assert (params.tool_choice, params.tools) == ("auto", [])
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "output_tokens_details": None}
    details = {"cached_tokens": None}
    stored = {"id": "r", "created_at": 0, "model": "m", "output": [], "tool_choice": None, "tools": None}
    response = NeMoGymResponse.model_validate_json(
        json.dumps({**stored, "parallel_tool_calls": None, "usage": {**usage, "input_tokens_details": details}})
    )
    assert (response.tool_choice, response.tools, response.parallel_tool_calls) == ("auto", [], True)
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens is None
    total = accumulate_response_usage(response.usage, response.usage)
    assert total is not None
    assert (total.input_tokens, total.input_tokens_details.cached_tokens) == (2, None)
    assert NeMoGymResponseUsage.sum_from_list([response.usage] * 3) == response.usage + total
