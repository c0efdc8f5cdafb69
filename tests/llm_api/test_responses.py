"""How the Responses API is read and written."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from nemo_gym import openai_utils
from nemo_gym.llm_api.responses import (
    RESPONSES_TO_TRAIN,
    NeMoGymEasyInputMessage,
    NeMoGymEasyInputMessageForTraining,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymMessageForTraining,
    NeMoGymOtherItem,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseFunctionWebSearch,
    NeMoGymResponseInputItem,
    NeMoGymResponseInputText,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseOutputRefusal,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseReasoningItemForTraining,
    NeMoGymResponseUsage,
    NeMoGymSummary,
    ResponseItem,
    for_resubmission,
)

ITEM: TypeAdapter[Any] = TypeAdapter(NeMoGymResponseInputItem)

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
INPUT_PARTS = [{"type": "input_text", "text": "hi"}]
OUTPUT_PARTS = [{"type": "output_text", "text": "hi", "annotations": []}]
EASY = {"role": "user", "content": "hi"}
LONG = {"role": "user", "content": INPUT_PARTS, "status": "completed", "type": "message"}
SAID = {"id": "msg_1", "role": "assistant", "content": OUTPUT_PARTS, "status": "completed", "type": "message"}
CALL = {"type": "function_call", "call_id": "c1", "name": "spell", "arguments": '{"word":"a"}'}
ANSWER = {"type": "function_call_output", "call_id": "c1", "output": '["a"]'}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}


def params(**fields: Any) -> NeMoGymResponseCreateParamsNonStreaming:
    return NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": "hi", **fields})


def response(*output: Any, **fields: Any) -> NeMoGymResponse:
    return NeMoGymResponse.model_validate(
        {"id": "resp_1", "created_at": 1.0, "model": "m", "output": list(output), **fields}
    )


RESOLUTION: list[tuple[dict[str, Any], type[ResponseItem]]] = [
    *(({"role": role, "content": "hi"}, NeMoGymEasyInputMessage) for role in ("user", "system", "developer")),
    ({"role": "assistant", "content": "hi"}, NeMoGymEasyInputMessage),
    ({"type": "message", "role": "user", "content": "hi"}, NeMoGymEasyInputMessage),
    ({"role": "user", "content": INPUT_PARTS}, NeMoGymEasyInputMessage),
    ({"role": "assistant", "content": OUTPUT_PARTS}, NeMoGymEasyInputMessage),
    ({"id": "msg_1", "role": "assistant", "content": "written by a harness"}, NeMoGymEasyInputMessage),
    ({"id": "msg_1", "role": "assistant", "content": INPUT_PARTS}, NeMoGymEasyInputMessage),
    ({"id": None, "role": "assistant", "content": OUTPUT_PARTS}, NeMoGymEasyInputMessage),
    (LONG | {"status": None}, NeMoGymEasyInputMessage),
    (LONG, NeMoGymMessage),
    (SAID, NeMoGymResponseOutputMessage),
    ({**SAID, "content": []}, NeMoGymResponseOutputMessage),
    ({**SAID, "content": [{"type": "refusal", "refusal": "no"}]}, NeMoGymResponseOutputMessage),
    ({"id": "msg_1", "role": "assistant", "content": OUTPUT_PARTS}, NeMoGymResponseOutputMessage),
    (CALL, NeMoGymResponseFunctionToolCall),
    (ANSWER, NeMoGymFunctionCallOutput),
    (THOUGHT, NeMoGymResponseReasoningItem),
    (SEARCH, NeMoGymResponseFunctionWebSearch),
    ({"type": "vendor_note", "role": "tool"}, NeMoGymOtherItem),
    (EASY | TOKENS, NeMoGymEasyInputMessageForTraining),
    (LONG | TOKENS, NeMoGymMessageForTraining),
    (SAID | TOKENS, NeMoGymResponseOutputMessageForTraining),
    (CALL | TOKENS, NeMoGymResponseFunctionToolCallForTraining),
    (THOUGHT | TOKENS, NeMoGymResponseReasoningItemForTraining),
    (SAID | dict.fromkeys(TOKENS), NeMoGymResponseOutputMessage),
    (ANSWER | TOKENS, NeMoGymFunctionCallOutput),
]


@pytest.mark.parametrize(("item", "expected"), RESOLUTION)
def test_an_item_becomes_the_class_that_its_fields_call_for(item: dict[str, Any], expected: type) -> None:
    from_python, from_json = ITEM.validate_python(item), ITEM.validate_json(json.dumps(item))
    assert from_json == from_python
    assert type(from_python) is expected


@pytest.mark.parametrize("item", [item for item, _ in RESOLUTION])
def test_an_instance_is_passed_through_as_the_same_object(item: dict[str, Any]) -> None:
    instance = ITEM.validate_python(item)
    assert ITEM.validate_python(instance) is instance
    assert params(input=[instance]).input[0] is instance
    assert response(instance).output[0] is instance


def test_an_instance_of_a_subclass_is_passed_through_and_dumped_whole() -> None:
    class Scored(NeMoGymResponseOutputMessage):
        score: float

    said = Scored(id="msg_1", content=[NeMoGymResponseOutputText(text="hi")], score=0.5)
    answer = response(said)
    assert answer.output[0] is said
    assert json.loads(answer.model_dump_json())["output"][0]["score"] == 0.5


def test_parts_of_input_messages_are_dicts_with_attributes() -> None:
    message = NeMoGymEasyInputMessage.model_validate(
        {
            "role": "user",
            "content": [
                *INPUT_PARTS,
                {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
                {"type": "input_file", "file_id": "file_1"},
                *OUTPUT_PARTS,
                NeMoGymResponseOutputRefusal(refusal="no"),
                NeMoGymResponseInputText(text="made here"),
            ],
        }
    )
    assert all(isinstance(part, dict) for part in message.content)
    first: Any = message.content[0]
    assert "text" in first
    assert first.text == first["text"] == first.get("text") == INPUT_PARTS[0]["text"]
    assert [part["type"] for part in message.content if not isinstance(part, str)][-2:] == ["refusal", "input_text"]
    assert json.loads(message.model_dump_json())["content"][-1] == {"type": "input_text", "text": "made here"}


def test_an_output_message_written_with_part_instances_is_an_output_message() -> None:
    item = ITEM.validate_python({**SAID, "content": [NeMoGymResponseOutputText(text="hi")]})
    assert type(item) is NeMoGymResponseOutputMessage


def test_numeric_strings_among_token_ids_are_coerced() -> None:
    item = ITEM.validate_json(json.dumps(SAID | TOKENS | {"prompt_token_ids": ["7", 8]}))
    assert item.prompt_token_ids == [7, 8]


def test_training_classes_are_mapped_from_their_base() -> None:
    assert len(RESPONSES_TO_TRAIN) == 6
    for base, trained in RESPONSES_TO_TRAIN.items():
        assert trained.__name__ == f"{base.__name__}ForTraining"
        assert issubclass(trained, base)
        assert issubclass(trained, openai_utils.TokenIDLogProbMixin)


@pytest.mark.parametrize(
    "item",
    [
        NeMoGymFunctionCallOutput(call_id="c1", output="x"),
        NeMoGymResponseFunctionToolCall(call_id="c1", name="f", arguments="{}"),
        NeMoGymResponseOutputMessage(id="msg_1", content=[NeMoGymResponseOutputText(text="hi")]),
        NeMoGymResponseReasoningItem(id="rs_1", summary=[NeMoGymSummary(text="hm")]),
        NeMoGymEasyInputMessage(role="user", content=[NeMoGymResponseInputText(text="hi")]),
    ],
)
def test_a_dump_of_what_was_set_is_enough_to_read_an_item_made_in_python(item: ResponseItem) -> None:
    assert ITEM.validate_python(item.model_dump(exclude_unset=True)) == item


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=3,
)
DECLARED = {field for item, _ in RESOLUTION for field in item} | {"text", "refusal", "logprobs", "encrypted_content"}
extras = st.dictionaries(st.text() | st.just("model_fields_set"), json_values, max_size=3).map(
    lambda fields: {key: value for key, value in fields.items() if key not in DECLARED}
)
token_fields: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.fixed_dictionaries(
    {
        "prompt_token_ids": st.lists(st.integers(0, 2**31)),
        "generation_token_ids": st.lists(st.integers(0, 2**31)),
        "generation_log_probs": st.lists(st.floats(max_value=0, allow_infinity=False)),
    }
)


def wire(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects with these fields, and some that nobody declared."""
    named = {key: value if isinstance(value, st.SearchStrategy) else st.just(value) for key, value in fields.items()}
    return st.builds(lambda known, unknown: unknown | known, st.fixed_dictionaries(named), extras)


input_part = wire(type="input_text", text=st.text()) | wire(type=st.sampled_from(["input_file", "input_audio"]))
output_part = wire(type="output_text", text=st.text()) | wire(type="refusal", refusal=st.text())
items = st.builds(
    lambda item, tokens: item | tokens,
    wire(role=st.sampled_from(["user", "system", "developer", "assistant"]), content=st.text() | st.lists(input_part))
    | wire(role=st.sampled_from(["user", "system"]), content=st.lists(input_part), status="completed")
    | wire(type="message", id=st.text(), role="assistant", content=st.lists(output_part))
    | wire(type="function_call", call_id=st.text(), name=st.text(), arguments=st.text())
    | wire(type="function_call_output", call_id=st.text(), output=st.text() | st.lists(input_part))
    | wire(type="reasoning", id=st.text(), summary=st.lists(wire(type="summary_text", text=st.text())))
    | wire(type=st.sampled_from(["web_search_call", "mcp_call"])),
    token_fields,
)


@settings(deadline=None)
@given(items)
def test_items_come_back_as_they_were_sent(sent: dict[str, Any]) -> None:
    item = ITEM.validate_python(sent)
    assert item.model_dump(exclude_unset=True) == sent
    assert json.loads(ITEM.dump_json(item, exclude_unset=True)) == sent
    assert ITEM.validate_json(ITEM.dump_json(item)) == item


NO_ITEM = "should be an object with a 'type', or a 'role' if it is a message"
NO_CALL_ID = {"type": "function_call", "name": "f", "arguments": "{}"}
CRITIC = {"role": "critic", "content": "hi"}
NO_TEXT = {"role": "user", "content": [{"type": "input_text"}]}
BAD_TOKEN = SAID | TOKENS | {"prompt_token_ids": [1, "x"]}


@pytest.mark.parametrize(
    ("item", "where", "what"),
    [
        ({"type": "function_call", "name": "f", "arguments": ""}, ".call_id", "required"),
        (CRITIC, ".role", "should be 'user', 'assistant', 'system' or 'developer'"),
        ({"role": "user", "content": None}, ".content", "should be a text or a list"),
        (NO_TEXT, ".content.list.0", "'text' is required"),
        (SAID | {"prompt_token_ids": [1]}, "", "must include all required fields; missing: generation_token_ids"),
        (BAD_TOKEN, ".prompt_token_ids.1", "should be a valid integer"),
        ({"role": "tool", "content": "x"}, "", "give a tool's answer as a 'function_call_output' item"),
        ({"content": "x"}, "", NO_ITEM),
        ({"type": {}}, "", NO_ITEM),
        ("hi", "", NO_ITEM),
    ],
)
def test_an_error_names_the_item_and_the_field_once(item: Any, where: str, what: str) -> None:
    request = {"input": [EASY, item]}
    with pytest.raises(ValidationError) as from_python:
        NeMoGymResponseCreateParamsNonStreaming.model_validate(request)
    with pytest.raises(ValidationError) as from_json:
        NeMoGymResponseCreateParamsNonStreaming.model_validate_json(json.dumps(request))
    for caught in (from_python, from_json):
        (error,) = caught.value.errors()
        assert ".".join(map(str, error["loc"])) == f"input.list.1{where}"
        assert what in error["msg"]


def test_input_that_is_neither_text_nor_list_is_refused() -> None:
    with pytest.raises(ValidationError, match="a text or a list"):
        params(input=5)


def test_a_misspelt_parameter_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_output_token\n  Extra inputs"):
        params(max_output_token=5)


def test_streaming_is_refused() -> None:
    with pytest.raises(ValidationError, match="stream"):
        params(stream=True)


def test_parameters_have_the_defaults_of_the_api() -> None:
    request = params()
    assert (request.parallel_tool_calls, request.tool_choice, request.tools) == (True, "auto", [])
    assert request.model_dump(exclude_unset=True) == {"input": "hi"}


@pytest.mark.parametrize(
    ("tool", "where"),
    [
        ({"type": "function"}, ("tools", 0, "function", "name")),
        ({"name": "spell"}, ("tools", 0, "other", "type")),
    ],
)
def test_a_tool_that_lacks_a_field_is_named(tool: dict[str, Any], where: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        params(tools=[tool])
    assert [error["loc"] for error in caught.value.errors()] == [where]


def test_a_response_has_its_fields_on_the_wire_also_when_they_are_null() -> None:
    wire_fields = json.loads(response().model_dump_json())
    assert wire_fields == {
        "id": "resp_1", "created_at": 1.0, "error": None, "incomplete_details": None, "instructions": None,
        "metadata": None, "model": "m", "object": "response", "output": [], "parallel_tool_calls": True,
        "temperature": None, "tool_choice": "auto", "tools": [], "top_p": None, "background": None,
        "conversation": None, "max_output_tokens": None, "max_tool_calls": None, "previous_response_id": None,
        "prompt": None, "prompt_cache_key": None, "reasoning": None, "safety_identifier": None, "service_tier": None,
        "status": None, "text": None, "top_logprobs": None, "truncation": None, "usage": None, "user": None,
    }  # fmt: skip


def test_an_output_may_hold_tool_answers_user_messages_and_plain_texts() -> None:
    answer = response(CALL, ANSWER, EASY, {**SAID, "content": "from a harness"}, SEARCH, x_vendor=1)
    dumped = json.loads(answer.model_dump_json(exclude_unset=True))
    assert dumped["output"] == [CALL, ANSWER, EASY, {**SAID, "content": "from a harness"}, SEARCH]
    assert dumped["x_vendor"] == 1
    assert answer.output_text == ""


def test_what_an_endpoint_refuses_stays_in_the_record_but_is_not_sent_again() -> None:
    sent = THOUGHT | {"status": "completed", "content": [{"type": "reasoning_text", "text": "hm"}], "x_vendor": 1}
    thought = ITEM.validate_python(sent | {"encrypted_content": None})
    assert thought.model_dump(exclude_none=True) == sent
    assert for_resubmission(thought) == THOUGHT | {"x_vendor": 1}
    assert for_resubmission(ITEM.validate_python(SAID)) == SAID


def test_usages_add_up_with_their_details_and_unknown_counts() -> None:
    usage = NeMoGymResponseUsage.model_validate(
        {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 15,
            "x_images": 1,
        }
    )
    bare = NeMoGymResponseUsage(input_tokens=1, output_tokens=2, total_tokens=3)
    assert (usage + bare + usage).model_dump() == {
        "input_tokens": 21,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 33,
        "x_images": 2,
    }


def test_the_types_can_be_described_as_json_schema() -> None:
    for model in (NeMoGymResponseCreateParamsNonStreaming, NeMoGymResponse):
        for mode in ("validation", "serialization"):
            assert "NeMoGymFunctionCallOutput" in model.model_json_schema(mode=mode)["$defs"]
