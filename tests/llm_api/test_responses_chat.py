"""Responses ⇄ Chat Completions: there and back, and case by case."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletion,
    NeMoGymChoice,
)
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.llm_api.responses_chat import (
    ChatMessages,
    output_items,
    response_from_completion,
    separated,
    split_think_tags,
    think_tags,
)
from tests.stub_endpoint import completion

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"), max_size=8)
SOME = TEXT.filter(bool)
CALLS = st.lists(
    st.builds(
        lambda number, name, arguments: {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        },
        st.integers(0, 9),
        SOME,
        TEXT,
    ),
    max_size=3,
)


@st.composite
def spoken(draw: st.DrawFn) -> dict[str, Any]:
    """An assistant's message as an endpoint may give it, with thoughts apart."""
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | SOME)}
    calls = draw(CALLS)
    if calls:
        message["tool_calls"] = calls
    for name in ("refusal", "reasoning_content"):
        value = draw(st.none() | SOME)
        if value is not None:
            message[name] = value
    if draw(st.booleans()):
        message |= TOKENS
    return message


def choice_of(message: dict[str, Any], finish_reason: str = "stop") -> NeMoGymChoice:
    return NeMoGymChoice.model_validate({"index": 0, "finish_reason": finish_reason, "message": message})


def through_json(items: Any) -> Any:
    """The items as another process would get them."""
    whole = {"id": "r", "created_at": 0, "model": "m", "output": items}
    return NeMoGymResponse.model_validate_json(encode(NeMoGymResponse.model_validate(whole))).output


@settings(deadline=None)
@given(message=spoken(), over_the_wire=st.booleans())
def test_what_a_completion_says_survives_the_trip(message: dict[str, Any], over_the_wire: bool) -> None:
    items = output_items(choice_of(message))
    back = ChatMessages(return_token_id_information=True, reasoning_field=True)
    back.extend(through_json(items) if over_the_wire else items)
    back.flush_assistant()
    assert back.messages == [message]


@settings(deadline=None)
@given(message=spoken())
def test_thoughts_in_tags_survive_the_trip(message: dict[str, Any]) -> None:
    thought = message.pop("reasoning_content", "")
    tagged = {**message, "content": think_tags([thought]) + (message["content"] or "") or None}
    back = ChatMessages(return_token_id_information=True)
    back.extend(output_items(choice_of(tagged)))
    back.flush_assistant()
    assert back.messages == [tagged]


@settings(deadline=None)
@given(messages=st.lists(spoken(), min_size=1, max_size=4))
def test_generations_in_a_row_stay_apart_when_their_tokens_do(messages: list[dict[str, Any]]) -> None:
    messages = [message | TOKENS for message in messages]
    back = ChatMessages(return_token_id_information=True, reasoning_field=True)
    for message in messages:
        back.extend(output_items(choice_of(message)))
        back.flush_assistant()
    assert back.messages == messages


@settings(deadline=None)
@given(thoughts=st.lists(SOME), rest=TEXT)
def test_tags_are_read_as_they_are_written(thoughts: list[str], rest: str) -> None:
    assert split_think_tags(think_tags(thoughts) + rest) == (thoughts, rest)


@settings(deadline=None)
@given(pieces=st.lists(st.sampled_from(["<think>", "</think>", "a", "\n"])))
def test_any_mix_of_tags_is_read_as_the_pattern_says(pieces: list[str]) -> None:
    text = "".join(pieces)
    pattern = re.compile(r"<think>(.*?)</think>", re.DOTALL)
    assert split_think_tags(text) == (pattern.findall(text), pattern.sub("", text))


def test_a_model_that_only_opens_tags_costs_linear_time() -> None:
    # Quadratic work on so many would take hours.
    assert split_think_tags("<think>" * 2_000_000).thoughts == []


@settings(deadline=None)
@given(thoughts=st.lists(SOME, max_size=3), rest=TEXT, parts=st.booleans())
def test_no_thought_is_lost_to_a_reasoning_parser(thoughts: list[str], rest: str, parts: bool) -> None:
    text = think_tags(thoughts) + rest
    message = {"role": "assistant", "content": [{"type": "text", "text": text}] if parts else text}
    apart = separated(message)
    assert apart.get("reasoning_content", "") == "\n\n".join(thoughts)
    if thoughts:
        assert apart["content"] == ([{"type": "text", "text": rest}] if parts else rest or None)
    else:
        assert apart is message


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "name": "look", "description": None, "parameters": {"type": "object"}, "strict": True}
ITEMS: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("a text", {"content": "Hi."}, [{"type": "message", "text": "Hi."}]),
    ("white space is kept", {"content": " \n<think> a\n</think>\n Hi. "}, [
        {"type": "reasoning", "thoughts": [" a\n"]},
        {"type": "message", "text": " \n\n Hi. "},
    ]),
    ("several thoughts", {"content": "<think>a</think>x<think>b</think>y"}, [
        {"type": "reasoning", "thoughts": ["a", "b"]},
        {"type": "message", "text": "xy"},
    ]),
    ("thoughts apart and in tags", {"content": "<think>b</think>y", "reasoning_content": "a"}, [
        {"type": "reasoning", "thoughts": ["a", "b"]},
        {"type": "message", "text": "y"},
    ]),
    ("only a thought", {"content": "<think>a</think>"}, [{"type": "reasoning", "thoughts": ["a"]}]),
    ("an open tag is text", {"content": "<think>a"}, [{"type": "message", "text": "<think>a"}]),
    ("nothing is an empty message", {"content": None}, [{"type": "message", "text": ""}]),
    ("an empty text too", {"content": ""}, [{"type": "message", "text": ""}]),
    ("a refusal", {"content": None, "refusal": "No."}, [{"type": "message", "refusal": "No."}]),
    ("parallel calls", {"content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]}, [
        {"type": "function_call", "call_id": "c1"},
        {"type": "function_call", "call_id": "c2"},
    ]),
    ("all of it", {"content": "Hi.", "reasoning_content": "a", "tool_calls": [CALL]}, [
        {"type": "reasoning", "thoughts": ["a"]},
        {"type": "message", "text": "Hi."},
        {"type": "function_call", "call_id": "c1"},
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("message", "expected"), [case[1:] for case in ITEMS], ids=[case[0] for case in ITEMS])
@pytest.mark.parametrize("tokens", [{}, TOKENS])
def test_a_completion_becomes_items(
    message: dict[str, Any], expected: list[dict[str, Any]], tokens: dict[str, Any]
) -> None:
    items = [made.model_dump(exclude_unset=True) for made in output_items(choice_of(message | tokens))]
    assert [outline(made) for made in items] == expected
    assert [tokens.items() <= made.items() for made in items] == [not tokens] * (len(items) - 1) + [True]


def outline(made: dict[str, Any]) -> dict[str, Any]:
    kind = made["type"]
    if kind == "reasoning":
        assert made["id"].startswith("rs_")
        return {"type": kind, "thoughts": [summary["text"] for summary in made["summary"]]}
    if kind == "function_call":
        assert (made["id"], made["status"]) == (made["call_id"], "completed")
        return {"type": kind, "call_id": made["call_id"]}
    assert made["id"].startswith("msg_")
    (part,) = made["content"]
    return {"type": kind, **{key: part[key] for key in ("text", "refusal") if key in part}}


def asked(**fields: Any) -> NeMoGymResponseCreateParamsNonStreaming:
    return NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": [], **fields})


def read(**fields: Any) -> NeMoGymChatCompletion:
    return NeMoGymChatCompletion.model_validate(completion(**fields))


def answer(params: NeMoGymResponseCreateParamsNonStreaming, found: NeMoGymChatCompletion) -> dict[str, Any]:
    made = response_from_completion(params, found, model="m", response_id="resp_1", created_at=7)
    dumped: dict[str, Any] = NeMoGymResponse.model_validate_json(encode(made)).model_dump(mode="json")
    return dumped


@pytest.mark.parametrize(
    ("finish_reason", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_the_end_of_a_completion_is_converted(finish_reason: str, status: str, details: Any) -> None:
    response = answer(asked(), read(finish_reason=finish_reason))
    assert (response["status"], response["incomplete_details"]) == (status, details)
    assert [made["type"] for made in response["output"]] == ["message"]


@pytest.mark.parametrize("finish_reason", ["length", "content_filter"])
def test_a_completion_cut_off_before_it_began_has_no_output_unless_it_has_tokens(finish_reason: str) -> None:
    silent = {"role": "assistant", "content": None}
    assert answer(asked(), read(message=silent, finish_reason=finish_reason))["output"] == []
    (kept,) = answer(asked(), read(message=silent | TOKENS, finish_reason=finish_reason))["output"]
    assert kept["generation_token_ids"] == TOKENS["generation_token_ids"]


def test_the_request_is_repeated_in_the_answer() -> None:
    settings = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "temperature": 0.5,
        "text": {"format": {"type": "json_object"}},
        "tool_choice": {"type": "function", "name": "look"},
        "tools": [TOOL],
        "top_p": 0.9,
        "truncation": "disabled",
        "user": "u",
    }
    response = answer(asked(**settings), read())
    assert settings.items() <= response.items()
    assert (response["id"], response["created_at"], response["model"], response["object"]) == (
        "resp_1",
        7,
        "m",
        "response",
    )


@pytest.mark.parametrize("cached", [None, {}, {"cached_tokens": None}, {"cached_tokens": 2, "audio_tokens": None}])
def test_usage_is_filled_with_its_details(cached: Any) -> None:
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": cached,
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    response = answer(asked(), read(usage=usage))["usage"]
    assert (response["input_tokens"], response["output_tokens"], response["total_tokens"]) == (3, 2, 5)
    assert response["input_tokens_details"]["cached_tokens"] == ((cached or {}).get("cached_tokens") or 0)
    assert response["output_tokens_details"] == {"reasoning_tokens": 1}
    assert answer(asked(), read(usage=None))["usage"] is None


def test_log_probs_go_with_the_text() -> None:
    entry = {"token": "Hi", "logprob": -0.1, "bytes": [72], "top_logprobs": []}
    choice = NeMoGymChoice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": {"content": "Hi"}, "logprobs": {"content": [entry]}}
    )
    (said,) = output_items(choice)
    assert said.model_dump()["content"][0]["logprobs"] == [entry]
