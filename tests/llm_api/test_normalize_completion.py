"""The ways of endpoints with the chat API, each as it was seen, and what is made of them."""

from typing import Any

import orjson
import pytest

from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.llm_api.responses_chat import normalize_completion, output_items, response_from_completion

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"sky"}'}}
ASKED = NeMoGymResponseCreateParamsNonStreaming(input="Hi.")

OPENAI = {
    "id": "chatcmpl-9",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "gpt-5-2025",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi.", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 0, "accepted_prediction_tokens": 0},
    },
    "service_tier": "default",
    "system_fingerprint": "fp_1",
}
VLLM = {
    "id": "chatcmpl-v",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "q",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "tool_calls": [{**CALL, "id": "chatcmpl-tool-1"}],
                "reasoning": "hm",
                "reasoning_content": "hm",
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
            "stop_reason": None,
            "token_ids": None,
        }
    ],
    "service_tier": None,
    "system_fingerprint": None,
    "usage": {"prompt_tokens": 9, "total_tokens": 13, "completion_tokens": 4, "prompt_tokens_details": None},
    "prompt_logprobs": None,
    "prompt_token_ids": None,
    "kv_transfer_params": None,
}
SGLANG = {
    "id": "0a1b",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "q",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hi.",
                "reasoning_content": None,
                "tool_calls": [
                    {"id": "call_0", "index": 0, "type": "function", "function": CALL["function"]},
                    {"id": "call_0", "index": 1, "type": "function", "function": CALL["function"]},
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
            "matched_stop": None,
        }
    ],
    "usage": {
        "prompt_tokens": 9,
        "total_tokens": 13,
        "completion_tokens": 4,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    },
    "metadata": {"weight_version": "default"},
}
GATEWAY = {  # LiteLLM, in front of another vendor
    "id": "chatcmpl-g",
    "created": 1700000000.7,
    "model": "claude",
    "object": "chat.completion",
    "system_fingerprint": None,
    "choices": [
        {
            "finish_reason": "stop",
            "message": {
                "content": "Hi.",
                "role": "assistant",
                "tool_calls": None,
                "function_call": None,
                "reasoning_content": "hm",
                "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}],
                "provider_specific_fields": {"citations": None},
            },
        }
    ],
    "usage": {
        "completion_tokens": 4,
        "prompt_tokens": 9,
        "total_tokens": 13,
        "completion_tokens_details": None,
        "prompt_tokens_details": {"audio_tokens": None, "cached_tokens": 2, "text_tokens": None},
        "cache_creation_input_tokens": 0,
    },
}


@pytest.mark.parametrize("found", [OPENAI, VLLM, SGLANG, GATEWAY], ids=["OpenAI", "vLLM", "SGLang", "LiteLLM"])
def test_a_whole_answer_of_each_kind_of_endpoint(found: dict[str, Any]) -> None:
    completion = normalize_completion(orjson.dumps(found), url="u")
    response = response_from_completion(ASKED, completion, model="m", response_id="resp_1", created_at=0)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (9, 4)
    message = found["choices"][0]["message"]
    assert response.output_text == (message["content"] or "")
    thoughts = [item.summary[0].text for item in response.output if item.type == "reasoning"]  # type: ignore[union-attr]
    assert thoughts == [text for text in (message.get("reasoning_content"),) if text]
    calls = [item.call_id for item in response.output if item.type == "function_call"]  # type: ignore[union-attr]
    assert len(calls) == len(set(calls)) == len(message.get("tool_calls") or ())


MESSAGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "a text in parts",
        {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"content": "ab"},
    ),
    (
        "thoughts among the parts",
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "Hi."},
            ]
        },
        {"content": "Hi.", "reasoning_content": "hm"},
    ),
    ("another name for thoughts", {"content": "Hi.", "reasoning": "hm"}, {"reasoning_content": "hm"}),
    ("both names", {"content": "Hi.", "reasoning": "hm", "reasoning_content": "hm"}, {"reasoning_content": "hm"}),
    ("no role", {"role": None, "content": "Hi."}, {"role": "assistant"}),
    ("an empty refusal", {"content": "Hi.", "refusal": ""}, {"refusal": None}),
    ("no calls", {"content": "Hi.", "tool_calls": []}, {"tool_calls": None}),
    ("an unknown field", {"content": "Hi.", "mood": 1}, {"mood": 1}),
]


@pytest.mark.parametrize(("message", "expected"), [case[1:] for case in MESSAGES], ids=[case[0] for case in MESSAGES])
def test_a_message_is_read_where_it_stands(message: dict[str, Any], expected: dict[str, Any]) -> None:
    completion = normalize_completion({"choices": [{"message": message}]}, url="u")
    assert expected.items() <= completion.choices[0].message.model_dump().items()


CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("as it should be", CALL, '{"at":"sky"}'),
    ("without type and id", {"function": CALL["function"]}, '{"at":"sky"}'),
    ("with nulls", {**CALL, "id": None, "type": None}, '{"at":"sky"}'),
    ("arguments as an object", {"function": {"name": "look", "arguments": {"at": "sky"}}}, '{"at":"sky"}'),
    ("no arguments", {"id": "c1", "function": {"name": "look", "arguments": None}}, "{}"),
    ("arguments that are no JSON", {"id": "c1", "function": {"name": "look", "arguments": "{at"}}, "{at"),
]


@pytest.mark.parametrize(("call", "arguments"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
@pytest.mark.parametrize("finish_reason", [None, "stop", "tool_calls"])
def test_a_call_is_read_whatever_is_left_out(call: dict[str, Any], arguments: str, finish_reason: str | None) -> None:
    message = {"content": None, "tool_calls": [call]}
    completion = normalize_completion({"choices": [{"message": message, "finish_reason": finish_reason}]}, url="u")
    (made,) = output_items(completion.choices[0])
    assert (made.type, made.name, made.arguments) == ("function_call", "look", arguments)  # type: ignore[union-attr]
    assert made.call_id  # type: ignore[union-attr]


def test_the_old_way_to_call_is_read_too() -> None:
    message = {"content": None, "function_call": {"name": "look", "arguments": "{}"}}
    (choice,) = normalize_completion({"choices": [{"message": message}]}, url="u").choices
    assert choice.finish_reason == "tool_calls"
    assert [item.type for item in output_items(choice)] == ["function_call"]


@pytest.mark.parametrize("usage", [{}, None, {"prompt_tokens": None}])
def test_usage_may_be_missing_or_in_part(usage: Any) -> None:
    found = {"choices": [{"message": {"content": "Hi."}}], "usage": usage}
    completion = normalize_completion(found, url="u")
    assert completion.usage is None or completion.usage.total_tokens == 0


@pytest.mark.parametrize(
    "found",
    [
        b"<html>502</html>",
        b"null",
        b"[]",
        b"{}",
        {"choices": []},
        {"choices": None, "error": {"message": "Provider returned error", "code": 502}},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": 7}}]},
        {"choices": [{"message": {"tool_calls": [{"function": {}}]}}]},
        {"choices": [{"message": {"content": "Hi"}, "finish_reason": "abort"}]},
        {"choices": [{"message": {"content": "Hi"}, "finish_reason": "error"}]},
        {"choices": [{"message": {"content": "Hi"}, "finish_reason": "insufficient_system_resource"}]},
        {"choices": [{"message": {"content": "Hi"}, "error": {"message": "GPU died", "code": 502}}]},
        {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "error": {"message": "GPU died"}},
    ],
)
def test_what_is_no_completion_is_an_error_of_the_model(found: Any) -> None:
    with pytest.raises(UpstreamError, match="http://model") as caught:
        normalize_completion(found, url="http://model")
    assert caught.value.cause == "model"
