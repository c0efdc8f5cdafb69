"""What a harness repeats is recognized, however it writes it."""

from typing import Any

import orjson
import pytest

from nemo_gym import NeMoGymChatCompletion, NeMoGymResponse
from nemo_gym.interop.harness_calls import HarnessTrace
from nemo_gym.testing import calls, message, response_of, tool_output

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
USER = {"role": "user", "content": "Hi"}


def completion(said: dict[str, Any]) -> NeMoGymChatCompletion:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **said}}
    fields = {"id": "c", "created": 0, "model": "m", "object": "chat.completion", "choices": [choice]}
    return NeMoGymChatCompletion.model_validate(fields)


def continued(said: dict[str, Any], echo: dict[str, Any]) -> HarnessTrace:
    """A trace of two calls: the second repeats what was said as `echo`."""
    trace = HarnessTrace()
    trace.add_chat({"messages": [USER]}, completion({**said, **TOKENS}), seconds=0.5)
    messages = [USER, {"role": "assistant", **echo}, {"role": "user", "content": "More"}]
    trace.add_chat({"messages": messages}, completion({"content": "Done"}), seconds=0.5)
    return trace


def threads(trace: HarnessTrace) -> list[tuple[str, int]]:
    items = [orjson.loads(item.model_dump_json()) for item in trace.output]
    return [(item["produced_by"], item["thread"]) for item in items]


@pytest.mark.parametrize(
    ("said", "echo"),
    [
        ({"content": "Yes"}, {"content": "Yes"}),
        ({"content": "Yes"}, {"content": [{"type": "text", "text": "Yes"}], "refusal": None, "annotations": []}),
        ({"content": "Yes", "reasoning_content": "Hm."}, {"content": "Yes"}),
        ({"content": "<think>Hm.</think>Yes"}, {"content": "<think>Hm.</think>Yes"}),
        ({"tool_calls": [CALL]}, {"content": "", "tool_calls": [CALL]}),
        (
            {"content": "I add.", "tool_calls": [CALL]},
            {
                "content": "I add.",
                "tool_calls": [{**CALL, "function": {"name": "add", "arguments": '{"b": 2, "a": 1}'}}],
            },
        ),
    ],
)
def test_a_repeated_reply_continues_its_thread(said: dict[str, Any], echo: dict[str, Any]) -> None:
    trace = continued(said, echo)
    assert {thread for _, thread in threads(trace)} == {0}
    assert [who for who, _ in threads(trace)].count("harness") == 1
    assert (trace.calls, trace.model_seconds) == (2, 1.0)


@pytest.mark.parametrize("echo", [{"content": "No"}, {"tool_calls": [CALL]}, {"content": " Yes"}])
def test_a_changed_reply_starts_another_thread(echo: dict[str, Any]) -> None:
    assert threads(continued({"content": "Yes"}, echo))[-1] == ("policy", 1)


def test_tokens_go_back_to_the_model_with_the_reply_they_belong_to() -> None:
    trace = continued({"content": "Yes"}, {"content": "Yes"})
    other, assistant = {"role": "user", "content": "Other"}, {"role": "assistant", "content": "Yes"}
    assert trace.messages_with_tokens([USER, assistant]) == [USER, {**assistant, **TOKENS}]
    assert trace.messages_with_tokens([other, assistant]) == [other, assistant]
    for invalid in (None, "Hi", [7], {"role": "user"}):
        assert trace.messages_with_tokens(invalid) == invalid


def test_a_message_of_an_unknown_role_is_kept_as_it_is() -> None:
    trace = HarnessTrace()
    odd = {"role": "function", "name": "add", "content": "3"}
    trace.add_chat({"messages": [USER, odd]}, completion({"content": "Yes"}), seconds=0)
    assert trace.given[1] == {"type": "chat_message", "message": odd}


def test_items_of_the_responses_api_may_come_back_without_reasoning_and_ids() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    call = calls("add", {"a": 1}, call_id="call_1")
    trace = HarnessTrace()
    first = NeMoGymResponse.model_validate(response_of(thought, message("Wait."), call))
    trace.add_response({"instructions": "Add.", "input": "Hi"}, first, seconds=0)
    again = [USER, {"role": "assistant", "content": "Wait."}, call, tool_output("3", call_id="call_1")]
    second = NeMoGymResponse.model_validate(response_of(message("3")))
    trace.add_response({"instructions": "Add.", "input": again}, second, seconds=0)
    assert threads(trace) == [("policy", 0)] * 3 + [("tool", 0), ("policy", 0)]
    assert trace.response().output_text == "Wait.3"
