from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.llm_api.responses import FrozenRequest
from nemo_gym.testing import calls, message, tool_output
from responses_api_models.scripted_model.script import Reply, Script, ScriptInput

USER = {"role": "user", "content": "Hello."}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


def heard(*items: dict[str, Any]) -> ScriptInput:
    """A conversation as the Responses dialect has it."""
    body = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": list(items)})
    return ScriptInput.of_responses(FrozenRequest.of(body).items)


def script(*replies: dict[str, Any]) -> Script:
    return Script([Reply.model_validate(reply) for reply in replies])


def at_turn(turn: int) -> ScriptInput:
    return ScriptInput(user="Hello.", tool_output=None, turn=turn, replies=turn, words=1)


@pytest.mark.parametrize(
    ("items", "turn", "output"),
    [
        ([USER], 0, None),
        ([USER, calls("spell"), tool_output("s p")], 1, "s p"),
        ([USER, calls("spell"), calls("spell"), tool_output("one"), tool_output("two")], 1, "two"),
        ([USER, THOUGHT, message("Hm."), calls("spell"), tool_output("s p")], 1, "s p"),
        ([USER, THOUGHT, THOUGHT, THOUGHT], 3, None),
        ([USER, calls("spell"), tool_output("s"), THOUGHT, calls("spell"), tool_output("p")], 2, "p"),
        ([USER, message("Hi."), USER], 0, None),
        ([USER, message("Hi."), USER, message("Again.")], 1, None),
        ([{"role": "developer", "content": "Be kind."}], 0, None),
    ],
)
def test_a_turn_is_one_reply_of_the_model_since_the_last_user_message(
    items: list[dict[str, Any]], turn: int, output: str | None
) -> None:
    conversation = heard(*items)
    assert (conversation.turn, conversation.tool_output) == (turn, output)


def test_both_dialects_are_heard_alike() -> None:
    parts = [{"type": "text", "text": "What is it "}, {"type": "text", "text": "in Oslo?"}]
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "cold"},
    ]
    expected = ScriptInput(user="What is it in Oslo?", tool_output="cold", turn=1, replies=1, words=8)
    assert ScriptInput.of_chat(chat) == expected
    items = [{"type": "input_text", "text": "What is it "}, {"type": "input_text", "text": "in Oslo?"}]
    assert heard(chat[0], {"role": "user", "content": items}, calls("get_weather"), tool_output("cold")) == expected


def test_a_text_is_a_conversation_of_one_user_message() -> None:
    request = FrozenRequest.of(NeMoGymResponseCreateParamsNonStreaming(input="Hello there."))
    assert ScriptInput.of_responses(request.items) == ScriptInput("Hello there.", None, turn=0, replies=0, words=2)


def test_replies_without_conditions_go_on_after_a_message_of_the_user() -> None:
    played = heard(USER, message("Who are you?"), USER)
    assert script({"say": "Who are you?"}, {"say": "Hello, Ada."}).reply(played).say == "Hello, Ada."


def test_replies_without_conditions_are_given_in_order_and_the_last_one_from_then_on() -> None:
    plain = script({"say": "one"}, {"say": "two"})
    assert [plain.reply(at_turn(turn)).say for turn in (0, 1, 2, 7)] == ["one", "two", "two", "two"]
    assert plain.reply(at_turn(0)).say == "one", "another conversation starts anew"


def test_the_first_reply_whose_conditions_hold_is_given() -> None:
    by_rule = script({"user": "(?i)oslo", "say": "cold"}, {"user": "Cairo", "say": "warm"}, {"say": "Where?"})
    said = [by_rule.reply(heard({"role": "user", "content": text})).say for text in ("In OSLO?", "Cairo?", "Hello.")]
    assert said == ["cold", "warm", "Where?"]


def test_a_turn_is_a_condition() -> None:
    conditional = script({"turn": 1, "say": "again"}, {"say": "first"})
    assert [conditional.reply(at_turn(turn)).say for turn in (0, 1, 2)] == ["first", "again", "first"]


def test_a_tool_output_counts_only_at_the_end() -> None:
    conditional = script({"tool_output": "cold", "say": "A coat."}, {"say": "Let me see."})
    assert conditional.reply(heard(USER, calls("get_weather"), tool_output("cold"))).say == "A coat."
    assert (
        conditional.reply(heard(USER, calls("get_weather"), tool_output("cold"), message("Hm."))).say == "Let me see."
    )
    assert conditional.reply(heard(USER, calls("get_weather"), tool_output("warm"))).say == "Let me see."


def test_a_reply_with_a_count_is_given_that_often_and_takes_no_turn_of_its_own() -> None:
    conditional = script({"status": 503, "times": 2}, {"say": "one"}, {"say": "two"})
    given = [conditional.reply(at_turn(turn)) for turn in (0, 0, 0, 1)]
    assert [reply.status or reply.say for reply in given] == [503, 503, "one", "two"]


def test_groups_of_the_pattern_fill_in_what_is_said_thought_and_called() -> None:
    reply = {
        "user": r"from (\w+) to (\w+)",
        "say": r"\2 is far from \1.",
        "think": r"\1?",
        "call": [
            {"name": "go", "arguments": {"via": ["a", r"\1-\2"], "legs": 2}},
            {"name": "raw", "arguments": r"{\1"},
        ],
    }
    filled = script(reply).reply(heard({"role": "user", "content": "from Oslo to Rome"}))
    assert (filled.say, filled.think) == ("Rome is far from Oslo.", "Oslo?")
    assert [call.arguments for call in filled.call] == [{"via": ["a", "Oslo-Rome"], "legs": 2}, "{Oslo"]


def test_a_group_that_took_no_part_is_empty() -> None:
    assert (
        script({"user": "(no)?thing", "say": r"<\1>"}).reply(heard({"role": "user", "content": "thing"})).say == "<>"
    )


def test_without_groups_a_backslash_is_a_backslash() -> None:
    reply = {"user": "Hello", "say": r"C:\1\new"}
    assert script(reply).reply(heard(USER)).say == r"C:\1\new"


def test_of_two_patterns_the_last_one_with_groups_fills_in() -> None:
    both = script({"user": "(Hello)", "tool_output": "cold", "say": r"\1"}, {"say": "no"})
    assert both.reply(heard(USER, calls("get_weather"), tool_output("cold"))).say == "Hello"
    both = script({"user": "(Hello)", "tool_output": "(cold)", "say": r"\1"}, {"say": "no"})
    assert both.reply(heard(USER, calls("get_weather"), tool_output("cold"))).say == "cold"
    assert both.reply(heard({"role": "user", "content": "Bye."}, calls("x"), tool_output("cold"))).say == "no"


def test_a_script_that_has_nothing_to_say_is_a_failure_of_the_model() -> None:
    with pytest.raises(RolloutError, match="no reply to") as caught:
        script({"user": "Cairo", "say": "warm"}).reply(heard(USER))
    assert caught.value.cause == "model"


def test_a_script_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "script.jsonl"
    file.write_text('{"say": "Grüß dich\u2028"}\n\n  \n{"say": "two"}\n', encoding="utf-8")
    read = Script.read(str(file))
    assert [read.reply(at_turn(turn)).say for turn in (0, 1)] == ["Grüß dich\u2028", "two"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no JSON", "Invalid JSON"),
        ('{"sya": "Hello."}', "sya"),
        ('{"say": 7}', "say"),
        ('{"user": "(", "say": "Hello."}', "not a regular expression"),
        ('{"user": "(a)", "say": "\\\\2"}', "only 1"),
        ('{"call": [{"arguments": {}}]}', "call.0.name"),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "script.jsonl"
    file.write_text(f'{{"say": "Hello."}}\n{line}\n')
    with pytest.raises(ConfigError) as caught:
        Script.read(str(file))
    assert f"{file}, line 2" in str(caught.value)
    assert message in str(caught.value)


def test_a_mistake_in_a_list_of_replies_is_a_mistake_too() -> None:
    with pytest.raises(ValidationError, match="not a regular expression"):
        Reply(tool_output="[")
