"""Anthropic Messages in, and the answer back: there and back, and case by case."""

from typing import Any

import pytest
from anthropic.types import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from nemo_gym.llm_api.responses import NeMoGymResponse
from nemo_gym.llm_api.responses_anthropic import MessagesParams, message_of, responses_params
from nemo_gym.llm_api.responses_chat import UnsupportedError

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERED = st.integers(0, 3)
OFFICIAL = TypeAdapter(Message)


def asked(messages: Any = (), **fields: Any) -> dict[str, Any]:
    """The request in the Responses dialect, as it is sent."""
    params = MessagesParams.model_validate({"max_tokens": 9, "messages": list(messages), **fields})
    return responses_params(params).model_dump(mode="json", exclude_unset=True)


def answered(output: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The answer in the Messages dialect. The official types must take it."""
    whole = {"id": "resp_1", "created_at": 0, "model": "m", "output": output, **fields}
    message = message_of(NeMoGymResponse.model_validate(whole), message_id="msg_1")
    OFFICIAL.validate_python(message)
    return message


def thought(texts: list[str], encrypted: str | None = None) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text} for text in texts if text]
    item = {"type": "reasoning", "id": "rs_1", "summary": summary}
    return item | ({} if encrypted is None else {"encrypted_content": encrypted})


def said(*texts: str) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts}


def called(number: int, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": "look", "arguments": arguments}


ARGUMENTS = st.sampled_from(["{}", '{"a":[1,null]}', "{not json", "[1]", '"x"'])
THOUGHTS = st.builds(thought, st.lists(TEXT, max_size=3), st.none() | TEXT)
ITEMS = st.one_of(THOUGHTS, st.builds(said, TEXT), st.builds(called, NUMBERED, ARGUMENTS))
OUTPUTS = st.lists(ITEMS, max_size=5)


@settings(deadline=None)
@given(output=OUTPUTS, with_tokens=st.booleans())
def test_what_is_answered_and_sent_back_is_what_it_was(output: list[dict[str, Any]], with_tokens: bool) -> None:
    output = [{**item, "id": f"rs_{index}"} for index, item in enumerate(output)]
    if with_tokens and output:
        output = [*output[:-1], output[-1] | TOKENS]
    blocks = answered(output)["content"]
    back = asked([{"role": "assistant", "content": blocks}])["input"]
    assert content_of(back) == content_of(output)


def content_of(items: list[dict[str, Any]]) -> list[Any]:
    """What is said, block by block: a message may become two and two become one, as long as all is said in order."""
    found: list[Any] = []
    for item in items:
        tokens = [item[name] for name in TOKENS if name in item]
        if item["type"] == "reasoning":
            texts = [summary["text"] for summary in item["summary"]]
            found += [(item["id"], item.get("encrypted_content"), text) for text in texts or [None]]
        elif item["type"] == "function_call":
            found.append((item["call_id"], item["name"], item["arguments"]))
        else:
            found += [part["text"] for part in item["content"]]
        found += tokens
    return found


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
MESSAGES: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("a text", {"role": "user", "content": "Hi."}, [{"role": "user", "content": "Hi."}]),
    (
        "text and image are one message",
        {
            "role": "user",
            "content": [{"type": "text", "text": "What?", "cache_control": {"type": "ephemeral"}}, IMAGE],
        },
        [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
                ],
            }
        ],
    ),
    (
        "a document",
        {
            "role": "user",
            "content": [
                {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}, "title": "a.pdf"},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Hi."}},
            ],
        },
        [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_file", "filename": "a.pdf", "file_url": "https://x/a.pdf"},
                    {"type": "input_text", "text": "Hi."},
                ],
            }
        ],
    ),
    (
        "results of tools, then a text",
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "seen"},
                {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "seen"}]},
                {"type": "tool_result", "tool_use_id": "c3", "is_error": True},
                {"type": "tool_result", "tool_use_id": "c4", "content": [IMAGE]},
                {"type": "text", "text": "Go on."},
            ],
        },
        [
            {"type": "function_call_output", "call_id": "c1", "output": "seen"},
            {"type": "function_call_output", "call_id": "c2", "output": "seen"},
            {"type": "function_call_output", "call_id": "c3", "output": ""},
            {
                "type": "function_call_output",
                "call_id": "c4",
                "output": [{"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on."}]},
        ],
    ),
    (
        "a thought of another model",
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "EqQB"}]},
        [
            {
                "type": "reasoning",
                "id": "rs_b82e2178ecf4d0c5859dc2e169d7fed8",
                "summary": [{"type": "summary_text", "text": "hm"}],
            }
        ],
    ),
]


@pytest.mark.parametrize(("message", "expected"), [case[1:] for case in MESSAGES], ids=[case[0] for case in MESSAGES])
def test_messages_become_items(message: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert asked([message])["input"] == expected


TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
PARAMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"system": "Be brief."}, {"instructions": "Be brief."}),
    ({"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"instructions": "a\n\nb"}),
    ({"temperature": 0.0, "top_p": 0.9}, {"temperature": 0.0, "top_p": 0.9}),
    ({"metadata": {"user_id": "u"}}, {"metadata": {"user_id": "u"}}),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"reasoning": {"effort": "low"}}),
    ({"thinking": {"type": "enabled", "budget_tokens": 32000}}, {"reasoning": {"effort": "high"}}),
    ({"thinking": {"type": "disabled"}}, {}),
    ({"output_config": {"effort": "medium"}}, {"reasoning": {"effort": "medium"}}),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"text": {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}}},
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {
            "tools": [
                {
                    "type": "function",
                    "name": "look",
                    "description": "Look.",
                    "parameters": {"type": "object"},
                    "strict": False,
                }
            ],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ),
    ({"tools": [], "tool_choice": {"type": "auto"}}, {}),
    ({"stop_sequences": [], "top_k": None, "service_tier": "auto", "unheard_of": 1}, {}),
]


@pytest.mark.parametrize(("fields", "expected"), PARAMS)
def test_parameters_become_those_of_the_responses_dialect(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert asked(**fields) == {"input": [], "max_output_tokens": 9, **expected}


def test_a_tool_can_be_chosen() -> None:
    chosen = asked(tools=[TOOL], tool_choice={"type": "tool", "name": "look"})["tool_choice"]
    assert chosen == {"type": "function", "name": "look"}


@pytest.mark.parametrize(
    ("named", "fields"),
    [
        ("stop_sequences", {"stop_sequences": ["x"]}),
        ("top_k", {"top_k": 5}),
        ("mcp_servers", {"mcp_servers": [{"url": "x"}]}),
        ("bash_20250124", {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
        ("search_result", {"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}),
        ("'file'", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(named: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=named):
        asked(**fields)


@pytest.mark.parametrize(
    "content",
    [
        *([{}], [{"type": "text"}], [{"type": "tool_use", "id": "c"}], 7, [{"type": "image", "source": "x.png"}]),
        [{"type": "tool_use", "id": "c", "name": "t", "input": "text"}],
        [{"type": "tool_result", "tool_use_id": "c", "content": 7}],
        [{"type": "tool_result", "tool_use_id": "c", "content": [{}]}],
    ],
)
def test_a_block_that_is_none_is_refused(content: Any) -> None:
    with pytest.raises(ValidationError):
        asked([{"role": "assistant", "content": content}])


@pytest.mark.parametrize(
    ("output", "fields", "reason"),
    [
        ([said("Hi.")], {}, "end_turn"),
        ([said("Hi."), called(1)], {}, "tool_use"),
        ([said("Hi.")], {"incomplete_details": {"reason": "max_output_tokens"}}, "max_tokens"),
        ([], {"incomplete_details": {"reason": "content_filter"}}, "refusal"),
        ([{**said(), "content": [{"type": "refusal", "refusal": "No."}]}], {}, "refusal"),
    ],
)
def test_the_reason_of_the_stop_is_converted(
    output: list[dict[str, Any]], fields: dict[str, Any], reason: str
) -> None:
    assert answered(output, **fields)["stop_reason"] == reason


def test_usage_counts_what_was_cached_apart() -> None:
    details = {"cached_tokens": 3, "cache_write_tokens": 1}
    usage = {"input_tokens": 10, "input_tokens_details": details, "output_tokens": 2, "total_tokens": 12}
    assert answered([], usage=usage)["usage"] == {
        "input_tokens": 7,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 1,
        "output_tokens": 2,
    }
    assert answered([])["usage"] == {"input_tokens": 0, "output_tokens": 0}
