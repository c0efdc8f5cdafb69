"""How tools are put into words, and read back out of them. No model is needed for that."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.llm_api.responses_chat import UnsupportedError
from responses_api_models.local_model.tool_text import (
    PREFILL,
    Offer,
    as_plain_chat,
    grammar_of,
    offer_of,
    parse_reply,
    written,
)


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


TOOLS = [tool("look"), tool("jump")]
OFFER = offer_of({"tools": TOOLS})
WORDS = st.text(max_size=5)
ARGUMENTS = st.dictionaries(WORDS, st.integers() | WORDS | st.lists(st.none() | WORDS, max_size=2), max_size=2)
FUNCTIONS = st.builds(
    lambda name, arguments, indent: {"name": name, "arguments": json.dumps(arguments, indent=indent)},
    st.sampled_from(["look", "jump", 'odd "name"']),
    ARGUMENTS,
    st.sampled_from([None, 2]),
)


@given(st.text())
def test_an_answer_is_read_as_it_is_written(text: str) -> None:
    assert parse_reply(written(text, [], OFFER), OFFER) == (text, [])
    assert parse_reply(written(text, [], Offer()), Offer()) == (text, [])


def test_an_answer_that_ends_before_it_begins_is_empty() -> None:
    assert parse_reply('{"tool": null}', OFFER) == ("", [])


@given(st.lists(FUNCTIONS, min_size=1, max_size=3))
def test_calls_are_read_as_they_are_written(functions: list[dict[str, str]]) -> None:
    text = written("", [{"function": function} for function in functions], OFFER)
    assert text.startswith(PREFILL)
    assert parse_reply(text, OFFER) == (None, functions)


@given(st.text(alphabet='{}":,tolnu agmes\n'))
def test_whatever_a_model_writes_is_a_reply(text: str) -> None:
    content, calls = parse_reply(PREFILL + text, OFFER)
    assert calls or content is not None


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "look", "arguments": {"far": tr',
        '{"tool": "look", "arguments": {}',
        '{"tool": "look", "arguments": {}} and more',
        '{"tool": "loo',
        '{"tool": nul',
        '{"tool": "look", "arguments": ' + "[" * 100_000,
    ],
)
def test_a_reply_that_is_no_whole_call_is_a_text(text: str) -> None:
    assert parse_reply(text, OFFER) == (text, [])


@pytest.mark.parametrize(
    ("choice", "allowed", "may_answer"),
    [
        (None, ["look", "jump"], True),
        ("auto", ["look", "jump"], True),
        ("none", [], True),
        ("required", ["look", "jump"], False),
        ({"type": "function", "function": {"name": "jump"}}, ["jump"], False),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "look"}}]}},
            ["look"],
            True,
        ),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}, [], True),
    ],
)
def test_a_tool_choice_decides_what_may_be_called(choice: Any, allowed: list[str], may_answer: bool) -> None:
    offer = offer_of({"tools": TOOLS, "tool_choice": choice})
    assert ([found["name"] for found in offer.allowed], offer.may_answer) == (allowed, may_answer)
    assert len(offer.tools) == 2
    grammar = grammar_of(offer, end="<end>") or ""
    assert ("answer:" in grammar) is may_answer
    assert [name in grammar for name in ("look", "jump")] == [name in allowed for name in ("look", "jump")]


@pytest.mark.parametrize(
    "params",
    [
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "fly"}}},
        {"tools": TOOLS, "tool_choice": {"type": "web_search"}},
        {"response_format": {"type": "regex"}},
    ],
)
def test_what_cannot_be_offered_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        offer_of(params)


def test_several_calls_are_allowed_only_to_those_who_ask() -> None:
    assert "call)*" not in (grammar_of(OFFER, end="") or "")
    assert "call)*" in (grammar_of(offer_of({"tools": TOOLS, "parallel_tool_calls": True}), end="") or "")


def test_a_plain_request_needs_no_grammar() -> None:
    assert grammar_of(offer_of({}), end="<end>") is None
    assert "%json" in (grammar_of(offer_of({"response_format": {"type": "json_object"}}), end="") or "")


def test_a_conversation_is_written_in_plain_roles() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"far": true}'}}
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c", "content": "here"},
        {"role": "tool", "tool_call_id": "c", "content": "there"},
        {"role": "assistant", "content": "Both."},
    ]
    system, *rest = as_plain_chat(messages, OFFER)
    assert system["role"] == "system"
    assert system["content"].startswith("Be\nbrief.\n\n")
    assert '"name": "jump"' in system["content"]
    line = '{"tool": "look", "arguments": {"far": true}}'
    hint = 'To answer: {"tool": null}'
    assert [(message["role"], message["content"]) for message in rest] == [
        ("user", "Where?"),
        ("assistant", f"{line}\n{line}"),
        ("user", f"Result: here\n\n{hint}\nResult: there\n\n{hint}"),
        ("assistant", '{"tool": null}\n\nBoth.'),
    ]
    assert as_plain_chat(messages[1:], Offer())[-1] == {"role": "assistant", "content": "Both."}
    assert as_plain_chat(messages[1:2], OFFER)[0]["role"] == "system"


def test_what_is_no_text_is_refused() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(UnsupportedError, match="image_url"):
        as_plain_chat([{"role": "user", "content": [image]}], Offer())
