"""What a rollout says in items it says in chat messages, too."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from nemo_gym.analysis.chat_messages import NotChatError, Reasoning, chat_messages, chat_tools
from nemo_gym.llm_api.chat import NeMoGymChatCompletionMessageParam, NeMoGymChatCompletionToolParam
from nemo_gym.llm_api.responses import NeMoGymResponseInputItem
from nemo_gym.testing import calls, message, tool_output

ITEMS: TypeAdapter[list[Any]] = TypeAdapter(list[NeMoGymResponseInputItem])
MESSAGES: TypeAdapter[Any] = TypeAdapter(list[NeMoGymChatCompletionMessageParam])


def thinks(*texts: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": t} for t in texts], **more}


def converted(*items: dict[str, Any], reasoning: Reasoning = "field") -> list[dict[str, Any]]:
    """The messages, checked to be what the Chat Completions API takes."""
    ITEMS.validate_python(list(items))
    found = chat_messages(items, reasoning=reasoning)
    MESSAGES.validate_python(found)
    return found


def test_a_conversation_keeps_its_roles_and_texts() -> None:
    parts = [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]
    asked: dict[str, Any] = {"role": "user", "content": parts}
    prefilled = {"role": "assistant", "content": " there"}
    assert converted({"role": "system", "content": "Be brief."}, asked, message("Hi"), prefilled) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi there"},
    ]


def test_calls_of_one_turn_are_one_message_and_their_outputs_follow() -> None:
    first, second = calls("look", {"at": 1}, call_id="1"), calls("look", {"at": 2}, call_id="2")
    answers = [tool_output("one", call_id="1"), tool_output("two", call_id="2")]
    asked, *outputs, last = converted(message("Let me see."), first, second, *answers, message("Three."))
    assert asked == {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}},
            {"id": "2", "type": "function", "function": {"name": "look", "arguments": '{"at":2}'}},
        ],
    }
    assert outputs == [
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
    ]
    assert last == {"role": "assistant", "content": "Three."}


@pytest.mark.parametrize(
    ("reasoning", "expected"),
    [
        ("field", {"content": "Yes", "reasoning_content": "Hm, so"}),
        ("think", {"content": "<think>Hm, so</think>Yes"}),
        ("drop", {"content": "Yes"}),
    ],
)
def test_thoughts_go_where_they_are_wanted(reasoning: Reasoning, expected: dict[str, str]) -> None:
    assert converted(thinks("Hm,", " so"), message("Yes"), reasoning=reasoning) == [{"role": "assistant", **expected}]


def test_reasoning_in_full_comes_before_its_summary_and_none_leaves_no_trace() -> None:
    full = thinks("short", content=[{"type": "reasoning_text", "text": "at length"}])
    assert converted(full, message("Yes"))[0]["reasoning_content"] == "at length"
    hidden = thinks(encrypted_content="xyz")
    assert converted(hidden, message("Yes"), reasoning="think") == [{"role": "assistant", "content": "Yes"}]


def test_a_refusal_is_exported_as_one() -> None:
    refused = {**message(""), "content": [{"type": "refusal", "refusal": "No."}]}
    assert converted(refused) == [{"role": "assistant", "content": "", "refusal": "No."}]


def test_an_image_stays_an_image() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    (found,) = converted({"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, image]})
    assert found["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]


@pytest.mark.parametrize(
    ("item", "named"),
    [
        ({"type": "web_search_call", "id": "ws", "status": "completed"}, "web_search_call"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input_file"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "input_image"),
    ],
)
def test_what_chat_cannot_say_is_named(item: dict[str, Any], named: str) -> None:
    with pytest.raises(NotChatError, match=named):
        converted(item)


def test_tools_are_listed_as_a_chat_request_does() -> None:
    look = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True, "description": None}
    listed = chat_tools([look, {"type": "web_search"}])
    TypeAdapter(list[NeMoGymChatCompletionToolParam]).validate_python(listed)
    assert listed == [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}
    ]
