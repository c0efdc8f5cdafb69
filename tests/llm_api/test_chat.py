"""How the Chat Completions API is read and written."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionAssistantMessageForTrainingParam,
    NeMoGymChatCompletionContentPartTextParam,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
    NeMoGymChatCompletionUserMessageParam,
    NeMoGymChoice,
    NeMoGymCompletionUsage,
)

TOKENS: dict[str, Any] = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
SAID: dict[str, Any] = {"role": "assistant", "content": "hi"}


def choice(message: Any) -> NeMoGymChoice:
    return NeMoGymChoice.model_validate({"index": 0, "finish_reason": "stop", "message": message})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (SAID, NeMoGymChatCompletionMessage),
        (SAID | TOKENS, NeMoGymChatCompletionMessageForTraining),
        (SAID | dict.fromkeys(TOKENS), NeMoGymChatCompletionMessage),
        (SAID | {"content": None, "reasoning_content": "hm"}, NeMoGymChatCompletionMessage),
    ],
)
def test_a_message_with_tokens_is_one_for_training(message: dict[str, Any], expected: type) -> None:
    read = choice(message)
    assert type(read.message) is expected
    assert NeMoGymChoice.model_validate_json(read.model_dump_json()) == read
    assert read.message.model_dump(exclude_unset=True) == message


def test_message_instances_are_passed_through_as_the_same_object() -> None:
    for message in (NeMoGymChatCompletionMessage(**SAID), NeMoGymChatCompletionMessageForTraining(**SAID, **TOKENS)):
        assert choice(message).message is message


def test_message_params_are_made_by_calling_them_and_stay_dicts() -> None:
    part = NeMoGymChatCompletionContentPartTextParam(type="text", text="hi")
    asked = NeMoGymChatCompletionUserMessageParam(role="user", content=[part])
    said = NeMoGymChatCompletionAssistantMessageForTrainingParam(
        role="assistant",
        content="hi",
        prompt_token_ids=[1, 2],
        generation_token_ids=[3],
        generation_log_probs=[-0.5],
    )
    request = NeMoGymChatCompletionCreateParamsNonStreaming(messages=[asked, said])
    assert request.messages == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, SAID | TOKENS]


def test_token_ids_of_a_message_sent_back_are_checked() -> None:
    with pytest.raises(ValidationError) as caught:
        NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(
            {"messages": [SAID | TOKENS | {"prompt_token_ids": ["x"]}]}
        )
    assert [error["loc"] for error in caught.value.errors()] == [
        ("messages", 0, "assistant_for_training", "prompt_token_ids", 0)
    ]


def test_unknown_fields_survive_everywhere() -> None:
    request = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "x": 1}], "x": 2},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "x": 3},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "x": 4}, "x": 5}],
        "chat_template_kwargs": {"enable_thinking": True},
        "top_k": 20,
    }
    read = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate_json(json.dumps(request))
    assert json.loads(read.model_dump_json(exclude_unset=True)) == request


@pytest.mark.parametrize(
    ("message", "where", "what"),
    [
        ({"role": "critic", "content": "x"}, ("messages", 0), "role user, system, developer, assistant or tool"),
        ("hi", ("messages", 0), "should be an object"),
        ({"role": "tool", "content": "x"}, ("messages", 0, "tool", "tool_call_id"), "Field required"),
        ({"role": "user", "content": 5}, ("messages", 0, "user", "content"), "Input should be a text or a list"),
    ],
)
def test_an_error_names_the_message_and_the_field_once(message: Any, where: tuple[Any, ...], what: str) -> None:
    with pytest.raises(ValidationError) as caught:
        NeMoGymChatCompletionCreateParamsNonStreaming.model_validate({"messages": [message]})
    (error,) = caught.value.errors()
    assert error["loc"] == where
    assert what in error["msg"]


def test_usages_add_up_also_when_one_has_no_details() -> None:
    usage = NeMoGymCompletionUsage(
        prompt_tokens=1, completion_tokens=2, total_tokens=3, prompt_tokens_details={"cached_tokens": 1}
    )
    bare = NeMoGymCompletionUsage(prompt_tokens=10, completion_tokens=20, total_tokens=30)
    for total in (usage + bare, bare + usage):
        assert (total.prompt_tokens, total.completion_tokens, total.total_tokens) == (11, 22, 33)
        assert total.prompt_tokens_details == {"cached_tokens": 1}


def test_the_types_can_be_described_as_json_schema() -> None:
    assert TypeAdapter(NeMoGymChatCompletion).json_schema(mode="serialization")
    assert NeMoGymChatCompletionCreateParamsNonStreaming.model_json_schema()
