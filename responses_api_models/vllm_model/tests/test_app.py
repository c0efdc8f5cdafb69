"""What a chat endpoint such as vLLM's is asked, and what is made of its answers."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from nemo_gym import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.llm_api.chat import NeMoGymChoice
from nemo_gym.testing import CALLER_HEADER, ServerReply
from responses_api_models.vllm_model.app import (
    VLLMConverter,
    VLLMConverterResponsesToChatCompletionsState,
    VLLMModelConfig,
)
from tests.model_servers import in_front_of
from tests.stub_endpoint import Request, StubEndpoint, completion, stub_endpoint

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
HI = [{"role": "user", "content": "Hi."}]
TRAINING: dict[str, Any] = {"return_token_id_information": True}


async def ask(
    reply: Callable[[Request], Any], body: dict[str, Any], path: str = "/v1/responses", **config: Any
) -> tuple[ServerReply, StubEndpoint]:
    """One request to a server in front of an endpoint that answers so."""
    async with (
        stub_endpoint(reply) as stub,
        in_front_of("vllm_model", "", **{"base_url": stub.url, **config}) as server,
    ):
        return await server.post(path, json=body), stub


def with_tokens(prompt: list[int], ids: list[int], *, apart: bool, message: Any = "Hi.") -> dict[str, Any]:
    """A completion with its tokens, as newer versions give them or as older ones do."""
    made: dict[str, Any] = completion(message)
    entries = [{"token": f"token_id:{number}", "logprob": -number / 10, "top_logprobs": []} for number in ids]
    made["choices"][0]["logprobs"] = {"content": entries}
    if apart:
        made["prompt_token_ids"] = prompt
        made["choices"][0]["token_ids"] = ids
    return made


async def test_thoughts_are_apart_in_both_directions() -> None:
    said = {"content": "Hi.", "reasoning_content": "hm", "tool_calls": [CALL]}
    body = {
        "input": [
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text} for text in "ab"]},
            {"role": "assistant", "content": "<think>c</think>So."},
            {"role": "user", "content": "And?"},
        ]
    }
    answer, stub = await ask(lambda _: completion(said), body)
    assert stub.requests[0].body["messages"] == [
        {"role": "assistant", "content": "So.", "reasoning_content": "a\n\nb\n\nc"},
        {"role": "user", "content": "And?"},
    ]
    assert [item["type"] for item in answer.json()["output"]] == ["reasoning", "message", "function_call"]
    assert answer.json()["output"][0]["summary"][0]["text"] == "hm"


async def test_without_a_reasoning_parser_thoughts_are_in_tags() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a"}]}
    body = {"input": [thought, {"role": "user", "content": "And?"}]}
    answer, stub = await ask(
        lambda _: completion("<think>b</think><think>c</think>Hi."), body, uses_reasoning_parser=False
    )
    assert stub.requests[0].body["messages"][0] == {"role": "assistant", "content": "<think>a</think>"}
    assert [summary["text"] for summary in answer.json()["output"][0]["summary"]] == ["b", "c"]


async def test_a_reasoning_parser_that_is_not_configured_is_an_error() -> None:
    said = {"content": "Hi.", "reasoning_content": "hm"}
    answer, _ = await ask(lambda _: completion(said), {"input": "Hi."}, uses_reasoning_parser=False)
    assert answer.status == 502
    assert "uses_reasoning_parser" in answer.json()["error"]["message"]


async def test_in_the_chat_dialect_thoughts_are_in_tags() -> None:
    said = {"content": "Hi.", "reasoning_content": "hm"}
    spoken = {"role": "assistant", "content": [{"type": "text", "text": "<think>a</think>So."}]}
    answer, stub = await ask(lambda _: completion(said), {"messages": [*HI, spoken]}, "/v1/chat/completions")
    message = answer.json()["choices"][0]["message"]
    assert message["content"] == "<think>hm</think>Hi."
    assert "reasoning_content" not in message
    assert stub.requests[0].body["messages"][1]["reasoning_content"] == "a"


@pytest.mark.parametrize("replace", [True, False])
async def test_the_developer_may_become_the_system(replace: bool) -> None:
    body = {"input": [{"role": "developer", "content": "Be brief."}, *HI]}
    _, stub = await ask(lambda _: completion(), body, replace_developer_role_with_system=replace)
    assert [message["role"] for message in stub.requests[0].body["messages"]] == [
        "system" if replace else "developer",
        "user",
    ]


def tokenizing(request: Request) -> Any:
    if request.path == "/tokenize":
        return {"tokens": [7, 8], "count": 2, "max_model_len": 99}
    return with_tokens([], [1, 2], apart=False)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_the_exact_tokens_come_with_the_answer(apart: bool, path: str) -> None:
    def reply(request: Request) -> Any:
        return with_tokens([7, 8], [1, 2], apart=True) if apart else tokenizing(request)

    body = {"input": HI} if path == "/v1/responses" else {"messages": HI}
    answer, stub = await ask(reply, body, path, **TRAINING)
    found = answer.json()["output"][-1] if path == "/v1/responses" else answer.json()["choices"][0]["message"]
    assert found["prompt_token_ids"] == [7, 8]
    assert found["generation_token_ids"] == [1, 2]
    assert found["generation_log_probs"] == [-0.1, -0.2]
    assert b"token_id:" not in answer.content()
    assert [request.path for request in stub.requests] == ["/v1/chat/completions", *([] if apart else ["/tokenize"])]
    asked = stub.requests[0].body
    assert asked["logprobs"] is asked["return_tokens_as_token_ids"] is asked["return_token_ids"] is True


@pytest.mark.parametrize(
    ("wanted", "sent"), [("last", [False, True]), ("all", [True, True]), ("none", [False, False])]
)
async def test_ids_go_back_with_the_newest_message_unless_all_or_none_are_asked_for(
    wanted: str, sent: list[bool]
) -> None:
    turns = [([1], [2, 3]), ([1, 2, 3, 4], [5]), ([1, 2, 3, 4, 5, 6], [7])]
    answers = iter([with_tokens(prompt, ids, apart=True) for prompt, ids in turns])
    items: list[Any] = list(HI)
    async with (
        stub_endpoint(lambda _: next(answers)) as stub,
        in_front_of("vllm_model", "", base_url=stub.url, **TRAINING, send_tokens=wanted) as server,
    ):
        for _ in turns:
            items += (await server.post("/v1/responses", json={"input": items})).json()["output"] + HI
    spoken = [message for message in stub.requests[2].body["messages"] if message["role"] == "assistant"]
    assert ["prompt_token_ids" in message for message in spoken] == sent
    assert ["generation_token_ids" in message for message in spoken] == sent
    assert not any("generation_log_probs" in message for message in spoken)


async def test_only_the_last_item_has_the_tokens_and_they_go_back_with_it() -> None:
    said = {"content": "I look.", "reasoning_content": "hm", "tool_calls": [CALL]}
    answers = iter([with_tokens([1], [2, 3], apart=True, message=said), with_tokens([1, 2, 3, 4], [5], apart=True)])
    async with (
        stub_endpoint(lambda _: next(answers)) as stub,
        in_front_of("vllm_model", "", base_url=stub.url, **TRAINING) as server,
    ):
        first = (await server.post("/v1/responses", json={"input": HI})).json()["output"]
        assert ["prompt_token_ids" in item for item in first] == [False, False, True]
        result = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
        await server.post("/v1/responses", json={"input": [*HI, *first, result]})
    _, spoken, heard = stub.requests[1].body["messages"]
    assert spoken["prompt_token_ids"] == [1]
    assert spoken["generation_token_ids"] == [2, 3]
    assert "generation_log_probs" not in spoken
    assert "prompt_token_ids" not in heard


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("key", ["", "0" * 64])
async def test_tokens_of_callers_from_outside_of_the_run_are_ignored(path: str, escaped: bool, key: str) -> None:
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    items = [*HI, {"role": "assistant", "content": "So.", **tokens}, *HI]
    body = orjson.dumps({"input": items} if path == "/v1/responses" else {"messages": items})
    if escaped:
        body = body.replace(b"_", b"\\u005f")
    headers = {CALLER_HEADER: key, "Content-Type": "application/json"}
    async with (
        stub_endpoint(lambda _: with_tokens([7], [1], apart=True)) as stub,
        in_front_of("vllm_model", "", base_url=stub.url, **TRAINING) as server,
    ):
        assert (await server.request("POST", path, body, headers)).status == 200
        assert (await server.request("POST", path, body, {"Content-Type": "application/json"})).status == 200
    stranger, own = (request.body["messages"][1] for request in stub.requests)
    assert set(stranger) == {"role", "content"}
    assert own["generation_token_ids"] == [2]


async def test_tokens_are_not_sent_when_not_training() -> None:
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    body = {"messages": [*HI, {"role": "assistant", "content": "So.", **tokens}]}
    _, stub = await ask(lambda _: completion(), body, "/v1/chat/completions")
    assert stub.requests[0].body["messages"][1] == {"role": "assistant", "content": "So."}
    assert "logprobs" not in stub.requests[0].body


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        (lambda made: made["choices"][0].update(token_ids=[1]), "1 token ids, but 2 log-probs"),
        (lambda made: made["choices"][0].update(logprobs=None), "2 token ids, but 0 log-probs"),
        (
            lambda made: made["choices"][0].update(
                token_ids=None, logprobs={"content": [{"token": "Hi", "logprob": -1.0}]}
            ),
            "no token ids, but the token 'Hi'",
        ),
        (lambda made: made.update(choices=[]), "no generation"),
        (lambda made: made["choices"][0].update(message={"content": 7}), "no chat completion"),
        (lambda made: made.pop("choices"), "no chat completion"),
    ],
)
async def test_tokens_that_do_not_fit_are_an_error(spoilt: Callable[[Any], Any], words: str) -> None:
    def reply(_request: Request) -> Any:
        made = with_tokens([7], [1, 2], apart=True)
        spoilt(made)
        return made

    answer, _ = await ask(reply, {"input": "Hi."}, **TRAINING)
    assert (answer.status, answer.json()["error"]["cause"]) == (502, "model")
    assert words in answer.json()["error"]["message"]


async def test_settings_of_the_config_and_of_the_request() -> None:
    config = {
        "extra_body": {"top_k": 20, "temperature": 0.1, "cache": {"no-cache": True}},
        "chat_template_kwargs": {"enable_thinking": False, "style": "a"},
        "default_headers": {"X-Team": "gym"},
    }
    body = {"messages": HI, "temperature": 0.9, "chat_template_kwargs": {"style": "b"}, "top_p": None}
    _, stub = await ask(tokenizing, body, "/v1/chat/completions", **TRAINING, **config)
    chat, tokenize = (request.body for request in stub.requests)
    assert (chat["top_k"], chat["temperature"], chat["cache"], chat["model"]) == (
        20,
        0.9,
        {"no-cache": True},
        "scripted",
    )
    template = {"enable_thinking": False, "style": "b"}
    assert chat["chat_template_kwargs"] == template
    assert tokenize == {"model": "scripted", "messages": HI, "chat_template_kwargs": template}
    assert "top_p" not in chat
    assert stub.requests[0].headers["X-Team"] == "gym"


async def test_parameters_of_a_row_and_those_that_replace_them() -> None:
    row = {"extra_body": '{"seed": 3, "top_k": 5}'}
    config: dict[str, Any] = {"sampling_overrides": {"temperature": 0.2, "top_p": None}}
    body = {"input": "Hi.", "temperature": 0.9, "top_p": 0.5, "metadata": row}
    _, stub = await ask(lambda _request: completion("Hi."), body, **config)
    sent = stub.requests[0].body
    assert {name: sent.get(name) for name in ("seed", "top_k", "temperature", "top_p")} == {
        "seed": 3,
        "top_k": 5,
        "temperature": 0.2,
        "top_p": None,
    }
    reply, _ = await ask(lambda _request: completion("Hi."), {"input": "Hi.", "metadata": {"extra_body": "[1]"}})
    assert reply.status == 400
    assert "metadata.extra_body" in reply.text


async def test_tools_are_tokenized_too() -> None:
    tools = [{"type": "function", "name": "look", "parameters": {}, "strict": True}]
    _, stub = await ask(tokenizing, {"input": HI, "tools": tools}, **TRAINING)
    assert stub.requests[1].body["tools"] == stub.requests[0].body["tools"]


OVERFLOW = {
    "object": "error",
    "message": "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens.",
    "type": "BadRequestError",
    "code": 400,
}


@pytest.mark.parametrize("config", [{}, TRAINING])
async def test_no_room_left_ends_the_rollout_after_one_try(config: dict[str, Any]) -> None:
    answer, stub = await ask(lambda _: (400, OVERFLOW), {"input": "Hi."}, **config)
    fields = answer.json()
    assert (answer.status, len(stub.requests)) == (200, 1)
    assert (fields["status"], fields["incomplete_details"], fields["output"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
        [],
    )
    assert fields["usage"]["total_tokens"] == 0


async def test_another_refusal_is_an_error() -> None:
    answer, stub = await ask(lambda _: (400, {"error": {"message": "max_tokens must be positive"}}), {"input": "Hi."})
    assert (answer.status, len(stub.requests)) == (400, 1)


async def test_what_was_asked_and_used_is_in_the_answer() -> None:
    tools = [{"type": "function", "name": "look", "parameters": {}, "strict": True}]
    choice = {"type": "function", "name": "look"}
    body = {"input": HI, "tools": tools, "tool_choice": choice, "temperature": 0.5}
    answer, _ = await ask(lambda _: completion(), body)
    fields = answer.json()
    assert (fields["tool_choice"], fields["tools"], fields["temperature"]) == (choice, tools, 0.5)
    assert (fields["model"], fields["usage"]["total_tokens"]) == ("scripted", 5)
    assert fields["id"].startswith("resp_")


async def test_a_session_stays_on_its_replica() -> None:
    async with (
        stub_endpoint(lambda _: completion("one")) as one,
        stub_endpoint(lambda _: completion("two")) as two,
        in_front_of("vllm_model", "", base_url=[one.url, two.url]) as first,
    ):
        second, third = first.another(), first.another()
        said = []
        for client in (first, second, third, first, second, third, second):
            answer = await client.post("/v1/responses", json={"input": "Hi."})
            said.append(answer.json()["output"][0]["content"][0]["text"])
        assert said == ["one", "two", "one", "one", "two", "one", "two"]


async def test_a_replica_that_is_down_is_passed_over() -> None:
    async with (
        stub_endpoint(lambda _: completion("live")) as live,
        in_front_of("vllm_model", "", base_url=["http://127.0.0.1:9/v1", live.url]) as server,
    ):
        for _ in range(3):
            assert (await server.another().post("/v1/responses", json={"input": "Hi."})).status == 200
        assert len(live.requests) == 3


def test_the_converter_by_the_names_that_others_know() -> None:
    converter = VLLMConverter(return_token_id_information=True)
    params = NeMoGymResponseCreateParamsNonStreaming(input="Hi.")
    chat = converter.responses_to_chat_completion_create_params(params)
    assert chat.model_dump(exclude_unset=True) == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]
    }
    choice = NeMoGymChoice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": {"content": "<think>a</think>Hi."}}
    )
    assert [item.type for item in converter.postprocess_chat_response(choice)] == ["reasoning", "message"]
    assert converter._wrap_reasoning_in_think_tags(["a", "", "b"]) == "<think>a</think><think>b</think>"
    assert converter._extract_reasoning_from_content("<think>a</think>b") == (["a"], "b")
    assert converter._parse_think_tags("<think>a</think>b") == (["a"], "b")
    assert VLLMConverterResponsesToChatCompletionsState(return_token_id_information=True).messages == []


def test_a_config_must_say_what_cannot_be_guessed() -> None:
    with pytest.raises(ValueError, match="uses_reasoning_parser"):
        VLLMModelConfig.model_validate(
            {"name": "m", "host": "", "port": 0, "entrypoint": "", "base_url": "u", "api_key": "k", "model": "m"}
        )


@pytest.mark.parametrize("where", ["message", "choice"])
async def test_experts_are_taken_from_the_message_or_the_choice(where: str) -> None:
    made = with_tokens([1], [2], apart=True)
    choice = made["choices"][0]
    (choice if where == "choice" else choice["message"])["routed_experts"] = [[[1, 2]]]
    answer, _ = await ask(lambda _: made, {"input": HI}, **TRAINING)
    assert answer.json()["output"][0]["routed_experts"] == [[[1, 2]]]


async def test_versions_of_single_tokens_become_runs() -> None:
    made = with_tokens([1], [2, 3, 4], apart=True)
    made["choices"][0]["policy_versions"] = [7, 7, 8]
    answer, _ = await ask(lambda _: made, {"input": HI}, **TRAINING)
    (item,) = answer.json()["output"]
    assert (item["policy_version"], item["policy_version_runs"]) == (8, [[7, 2], [8, 1]])
