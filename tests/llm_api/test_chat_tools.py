"""Tools that chat endpoints do not know: they become functions, and calls of them come back as they were offered."""

from typing import Any

import pytest

from nemo_gym.llm_api.chat import NeMoGymChatCompletion
from nemo_gym.llm_api.chat_tools import UnsupportedError
from nemo_gym.llm_api.json_codec import set_fields
from nemo_gym.llm_api.responses import (
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseCustomToolCallForTraining,
)
from nemo_gym.llm_api.responses_chat import chat_params, response_from_completion
from tests.stub_endpoint import completion

SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}}
LOOK = {"type": "function", "name": "look", "parameters": SCHEMA}
AGENTS = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [{**LOOK, "name": "close"}]}
PATCH = {"type": "custom", "name": "patch", "description": "Free text.", "format": {"type": "text"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
SEARCH = {"type": "web_search", "external_web_access": False}
TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}


def asked(**fields: Any) -> NeMoGymResponseCreateParamsNonStreaming:
    return NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": "Hi.", **fields})


def functions(**fields: Any) -> list[dict[str, Any]]:
    return [tool["function"] for tool in set_fields(chat_params(asked(**fields)))["tools"]]


def answered(name: str, arguments: str, **more: Any) -> Any:
    """The first item of a reply with one call, to a request with all of the tools."""
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    found = completion({"role": "assistant", "content": None, "tool_calls": [call], **more})
    request = asked(tools=[LOOK, AGENTS, PATCH])
    return response_from_completion(request, NeMoGymChatCompletion.model_validate(found), model="m").output[0]


def test_tools_of_a_namespace_are_functions_with_its_name() -> None:
    assert [tool["name"] for tool in functions(tools=[LOOK, AGENTS])] == ["look", "agents__close"]


def test_a_tool_of_free_text_is_a_function_of_one_text() -> None:
    plain, with_grammar = functions(tools=[PATCH, {**PATCH, "name": "other", "format": GRAMMAR}])
    assert plain["parameters"] == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
    }
    assert "start: WORD" in with_grammar["parameters"]["properties"]["input"]["description"]


@pytest.mark.parametrize("choice", [{"type": "function", "name": "close", "namespace": "agents"}])
def test_a_choice_names_the_function(choice: dict[str, Any]) -> None:
    sent = set_fields(chat_params(asked(tools=[AGENTS], tool_choice=choice)))
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "agents__close"}}


def test_a_tool_that_the_service_would_run_is_left_out_only_beside_others() -> None:
    assert [tool["name"] for tool in functions(tools=[LOOK, SEARCH])] == ["look"]
    with pytest.raises(UnsupportedError, match="web_search"):
        chat_params(asked(tools=[SEARCH]))
    with pytest.raises(UnsupportedError, match="web_search"):
        chat_params(asked(tools=[LOOK, SEARCH], tool_choice={"type": "web_search"}))
    with pytest.raises(UnsupportedError, match="file_search"):
        chat_params(asked(tools=[LOOK, {"type": "file_search", "vector_store_ids": []}]))


def test_calls_are_of_the_tools_that_were_offered() -> None:
    assert set_fields(answered("look", "{}")).get("namespace") is None
    close = answered("agents__close", "{}")
    assert (close.type, close.namespace, close.name) == ("function_call", "agents", "close")
    patch = answered("patch", '{"input": "*** Begin"}')
    assert (patch.type, patch.name, patch.call_id, patch.input) == ("custom_tool_call", "patch", "c1", "*** Begin")


@pytest.mark.parametrize("arguments", ["*** Begin", "[]", '{"input": 3}', '{"patch": "x"}'])
def test_a_call_with_other_arguments_is_passed_on_as_it_was_written(arguments: str) -> None:
    assert answered("patch", arguments).input == arguments


def test_a_call_of_free_text_keeps_its_tokens() -> None:
    item = answered("patch", '{"input": "x"}', **TOKENS)
    assert isinstance(item, NeMoGymResponseCustomToolCallForTraining)
    assert (item.prompt_token_ids, item.generation_token_ids) == ([1, 2], [3])


@pytest.mark.parametrize(
    ("call", "function"),
    [
        (
            {"type": "function_call", "name": "close", "namespace": "agents", "arguments": "{}"},
            {"name": "agents__close", "arguments": "{}"},
        ),
        (
            {"type": "custom_tool_call", "name": "patch", "input": '*** "x"'},
            {"name": "patch", "arguments": '{"input":"*** \\"x\\""}'},
        ),
    ],
)
def test_calls_and_outputs_go_back_to_the_endpoint(call: dict[str, Any], function: dict[str, str]) -> None:
    output = {"type": f"{call['type']}_output", "call_id": "c1", "output": "done"}
    sent = set_fields(chat_params(asked(input=[{**call, "call_id": "c1"}, output])))["messages"]
    assert sent[0]["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    assert sent[1] == {"role": "tool", "tool_call_id": "c1", "content": "done"}
