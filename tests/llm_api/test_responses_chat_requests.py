"""Requests in the Responses dialect, converted to the chat dialect: case by case."""

import pickle
from typing import Any

import pytest

from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.chat import NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.llm_api.json_codec import changed, set_fields
from nemo_gym.llm_api.responses import FrozenRequest, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.llm_api.responses_chat import ChatMessages, UnsupportedError, chat_params

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
OTHER_TOKENS = {"prompt_token_ids": [1, 2, 3, 4], "generation_token_ids": [5], "generation_log_probs": [-0.1]}


def asked(**fields: Any) -> NeMoGymResponseCreateParamsNonStreaming:
    return NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": [], **fields})


def as_chat(given_input: Any = "Hi.", **fields: Any) -> dict[str, Any]:
    """The request in the chat dialect, as it is sent. It must also be valid if it is read."""
    params = set_fields(chat_params(asked(input=given_input, **fields)))
    NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(params)
    return params


def item(kind: str, **fields: Any) -> dict[str, Any]:
    defaults: dict[str, dict[str, Any]] = {
        "reasoning": {"id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        "message": {
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi.", "annotations": []}],
        },
        "function_call": {"call_id": "c1", "name": "look", "arguments": "{}"},
        "function_call_output": {"call_id": "c1", "output": "seen"},
    }
    return {"type": kind, **defaults[kind], **fields}


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
MESSAGES: list[tuple[str, Any, list[dict[str, Any]]]] = [
    ("a plain text", "Hi.", [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]),
    ("a text stays a text", [{"role": "user", "content": "Hi."}], [{"role": "user", "content": "Hi."}]),
    (
        "roles are kept",
        [{"role": role, "content": role} for role in ("system", "developer", "user")],
        [{"role": role, "content": role} for role in ("system", "developer", "user")],
    ),
    (
        "the long form, with an image",
        [
            {
                "type": "message",
                "status": "completed",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                    {"type": "input_image", "image_url": "https://x/y.png"},
                ],
            }
        ],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                ],
            }
        ],
    ),
    (
        "a file, audio, and parts that are in the chat dialect already",
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_file", "file_data": "data:;base64,AA==", "filename": "a.pdf"},
                    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                ],
            }
        ],
        [
            {
                "role": "user",
                "content": [
                    {"type": "file", "file": {"file_data": "data:;base64,AA==", "filename": "a.pdf"}},
                    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                ],
            }
        ],
    ),
    (
        "what the model did in one go is one message",
        [
            item("reasoning", summary=[{"type": "summary_text", "text": text} for text in ("a", "", "b")]),
            item("message"),
            item("function_call"),
            item("function_call", call_id="c2"),
            item("function_call_output"),
            item("function_call_output", call_id="c2", output=[{"type": "input_text", "text": "two"}]),
        ],
        [
            {
                "role": "assistant",
                "content": "<think>a</think><think>b</think>Hi.",
                "tool_calls": [CALL, {**CALL, "id": "c2"}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
        ],
    ),
    ("no empty list of calls", [item("message")], [{"role": "assistant", "content": "Hi."}]),
    ("a call alone", [item("function_call")], [{"role": "assistant", "content": None, "tool_calls": [CALL]}]),
    ("a thought alone", [item("reasoning")], [{"role": "assistant", "content": "<think>hm</think>"}]),
    (
        "a thought that is whole beside its empty summary",
        [item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "all of it"}])],
        [{"role": "assistant", "content": "<think>all of it</think>"}],
    ),
    (
        "a thought that only its maker can read says nothing here",
        [item("reasoning", summary=[], encrypted_content="x"), {"role": "user", "content": "Go on."}],
        [{"role": "user", "content": "Go on."}],
    ),
    (
        "a refusal",
        [item("message", content=[{"type": "refusal", "refusal": "No."}])],
        [{"role": "assistant", "content": None, "refusal": "No."}],
    ),
    (
        "a short form of the assistant, and a message in several parts",
        [
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "?"},
            item("message", content=[{"type": "output_text", "text": text, "annotations": []} for text in "ab"]),
        ],
        [
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "ab"},
        ],
    ),
    (
        "an unknown field of an item",
        [{"role": "user", "content": "Hi.", "id": "m", "mood": 1}],
        [{"role": "user", "content": "Hi."}],
    ),
    (
        "tokens of an item that nobody asked for",
        [item("message", **TOKENS)],
        [{"role": "assistant", "content": "Hi."}],
    ),
]


@pytest.mark.parametrize(
    ("given_input", "expected"), [case[1:] for case in MESSAGES], ids=[case[0] for case in MESSAGES]
)
def test_items_become_messages(given_input: Any, expected: list[dict[str, Any]]) -> None:
    assert as_chat(given_input)["messages"] == expected


def test_instructions_come_first() -> None:
    assert as_chat([{"role": "user", "content": "Hi."}], instructions="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
    ]


def test_tokens_go_with_the_message_they_made_and_with_no_other() -> None:
    said = [item("reasoning"), item("function_call", **TOKENS), item("function_call_output"), item("message")]
    more = [{"role": "user", "content": "?"}, item("message", **OTHER_TOKENS), {"role": "user", "content": "!"}]
    back = ChatMessages(return_token_id_information=True)
    back.extend(asked(input=[*said, *more]).input)  # type: ignore[arg-type]
    found = [{name: message[name] for name in TOKENS if name in message} for message in back.messages]
    assert found == [TOKENS, {}, {}, {}, OTHER_TOKENS, {}]


FORMAT = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": None}
TOOL = {"type": "function", "name": "look", "description": None, "parameters": {"type": "object"}, "strict": True}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}
CHOSEN = {"type": "function", "function": {"name": "look"}}
PARAMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"max_output_tokens": 5, "temperature": 0.5, "top_p": 0.9}, {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9}),
    ({"temperature": 0.0, "metadata": {"a": "b"}}, {"temperature": 0.0, "metadata": {"a": "b"}}),
    ({"metadata": {"seed": "7"}}, {"metadata": {"seed": "7"}, "seed": 7}),
    ({"metadata": {"seed": "7²"}}, {"metadata": {"seed": "7²"}}),
    ({"user": "u", "store": False, "service_tier": "flex"}, {"user": "u", "store": False, "service_tier": "flex"}),
    ({"prompt_cache_key": "k", "safety_identifier": "s"}, {"prompt_cache_key": "k", "safety_identifier": "s"}),
    ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
    ({"reasoning": {"effort": None}}, {}),
    ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    (
        {"text": {"format": FORMAT}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
            }
        },
    ),
    ({"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": True}),
    ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
    ({"truncation": "disabled", "max_tool_calls": 3, "include": []}, {}),
    ({"tools": [TOOL]}, {"tools": [CHAT_TOOL]}),
    ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
    (
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [CHAT_TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look"}},
        {"tools": [CHAT_TOOL], "tool_choice": CHOSEN},
    ),
    ({"tools": [TOOL], "tool_choice": CHOSEN}, {"tools": [CHAT_TOOL], "tool_choice": CHOSEN}),
    (
        {
            "tools": [TOOL],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
        },
        {
            "tools": [CHAT_TOOL],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHOSEN]}},
        },
    ),
    (dict.fromkeys(["instructions", "temperature", "text", "reasoning", "metadata", "top_logprobs", "user"]), {}),
]


@pytest.mark.parametrize(("fields", "expected"), PARAMS)
def test_parameters_become_those_of_the_chat_dialect(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    sent = as_chat(**fields)
    del sent["messages"]
    assert sent == expected


def test_newer_endpoints_want_another_name_for_the_most_tokens() -> None:
    sent = set_fields(chat_params(asked(max_output_tokens=5), max_tokens_key="max_completion_tokens"))
    assert sent == {"messages": [], "max_completion_tokens": 5}


UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("previous_response_id", {"previous_response_id": "resp_1"}),
    ("conversation", {"conversation": {"id": "conv_1"}}),
    ("prompt", {"prompt": {"id": "p"}}),
    ("background", {"background": True}),
    ("web_search", {"tools": [{"type": "web_search"}]}),
    ("file_search", {"tools": [TOOL], "tool_choice": {"type": "file_search"}}),
    ("web_search_call", {"input": [{"type": "web_search_call", "id": "w"}]}),
    ("input_image", {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}),
    ("hologram", {"input": [{"role": "user", "content": [{"type": "hologram"}]}]}),
    ("input_image", {"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "u"}]}]}),
]


@pytest.mark.parametrize(("named", "fields"), UNSUPPORTED)
def test_what_cannot_be_said_is_refused_by_name(named: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=named) as caught:
        chat_params(asked(**fields))
    assert isinstance(caught.value, NotImplementedError | RolloutError)
    assert caught.value.cause == "input"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("with_tokens", [True, False])
@pytest.mark.parametrize("reasoning_field", [True, False])
def test_a_conversation_that_grows_is_converted_as_if_it_were_whole_and_each_item_once(
    with_tokens: bool, reasoning_field: bool
) -> None:
    turn = [item("reasoning"), item("message"), item("function_call", **TOKENS), item("function_call_output")]
    params = asked(input=[{"role": "user", "content": "Hi."}, *turn, *turn, item("message")], instructions="Think.")
    options = {"with_tokens": with_tokens, "reasoning_field": reasoning_field}
    growing = FrozenRequest.of(changed(params, input=[]))
    for number, given in enumerate(params.input, 1):
        growing = growing.extended([given])  # type: ignore[list-item]
        whole = changed(params, input=params.input[:number])
        assert [*chat_params(growing, **options).messages] == chat_params(whole, **options).messages  # type: ignore[arg-type]
    again = [chat_params(growing, **options).messages for _ in range(2)]  # type: ignore[arg-type]
    assert all(one is other for one, other in zip(again[0][:-1], again[1][:-1], strict=True))


def test_other_items_or_instructions_are_converted_again() -> None:
    request = FrozenRequest.of(asked(input=[item("function_call_output")]))
    assert chat_params(request).messages[0]["content"] != "Shortened."
    shortened = changed(request.items[0], output="Shortened.")
    assert chat_params(request.changed(input=[shortened])).messages[0]["content"] == "Shortened."
    instructed = chat_params(request.changed(instructions="Think.")).messages
    assert [message["role"] for message in instructed] == ["system", "tool"]
