"""Model servers in a stack: one row gives one record whichever dialect the endpoint speaks, and its tokens add up."""

import re
from typing import Any

import orjson
import pytest

from nemo_gym.client.server_client import ServerReply
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import Transport, client_for, running_servers, server_spec
from nemo_gym.training.token_check import check_tokens
from responses_api_models.scripted_model.app import ScriptedModel
from tests.stacks import counter, simple_agent
from tests.stub_endpoint import Request, completion, stub_endpoint

TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False}
    for name in ("increment_counter", "get_counter_value")
]
ROW = {
    "responses_create_params": {
        "input": [{"role": "system", "content": "Count."}, {"role": "user", "content": "Add 2, then add 3."}],
        "instructions": "Use the tools.",
        "tools": TOOLS,
        "tool_choice": "auto",
        "temperature": 0.5,
        "metadata": {"kept": "yes"},
    },
    "initial_count": 1,
    "expected_count": 6,
}
REPLIES: list[dict[str, Any]] = [
    {"turn": 0, "think": "Two calls.", "say": "I add.", "call": [
        {"name": "increment_counter", "arguments": {"count": 2}},
        {"name": "increment_counter", "arguments": {"count": 3}},
    ]},
    {"turn": 1, "call": [{"name": "get_counter_value", "arguments": "{not json"}, {"name": "get_counter_value"}]},
    {"turn": 2, "think": "Six.", "say": "It is 6."},
]  # fmt: skip


def stack(model: ServerSpec) -> list[ServerSpec]:
    return [counter(), simple_agent("counter"), model]


def openai_model(url: str) -> ServerSpec:
    config = {"openai_base_url": url, "openai_api_key": "k", "openai_model": "scripted"}
    return server_spec("policy_model", "responses_api_models", "openai_model", **config)


def vllm_model(url: str, *, training: bool = False) -> ServerSpec:
    config: dict[str, Any] = {"base_url": url, "api_key": "k", "model": "scripted", "uses_reasoning_parser": True}
    return server_spec(
        "policy_model", "responses_api_models", "vllm_model", return_token_id_information=training, **config
    )


async def record(model: ServerSpec, transport: Transport) -> bytes:
    async with running_servers(stack(model), transport=transport) as client:
        return (await client.call("agent", "/run", ROW, answer=ServerReply)).content()


def without_ids(found: bytes) -> Any:
    """Ids and times differ between any two runs. What remains of a call's id is which call a result belongs to."""
    found = re.sub(rb'"(resp|msg|fc|rs)_[0-9a-f]{32}"', b'"<id>"', found)
    calls = dict.fromkeys(re.findall(rb'"call_[0-9a-f]{32}"', found))
    for number, call in enumerate(calls):
        found = found.replace(b'"id":' + call, b'"id":"<id>"').replace(call, b'"call %d"' % number)
    return orjson.loads(re.sub(rb'"created_at":[0-9.]+', b'"created_at":0', found))


@pytest.mark.parametrize("transport", ["direct", "http"])
async def test_one_row_gives_one_record_in_either_dialect(transport: Transport) -> None:
    async with client_for(ScriptedModel, replies=REPLIES) as endpoint:
        url = f"{endpoint.url}/v1"
        one, other = [await record(model, transport) for model in (openai_model(url), vllm_model(url))]
    assert without_ids(one) == without_ids(other)
    assert orjson.loads(one)["reward"] == 1.0
    assert [item["type"] for item in orjson.loads(one)["response"]["output"]] == [
        *("reasoning", "message", "function_call", "function_call", "function_call_output", "function_call_output"),
        *("function_call", "function_call", "function_call_output", "function_call_output"),
        *("reasoning", "message"),
    ]


class TokenKeeper:
    """An endpoint that takes the tokens it is sent back as the beginning of the prompt, as a trainer's does."""

    def __init__(self, *, forgetful: bool = False) -> None:
        self._forgetful = forgetful
        self._made = 100

    def __call__(self, request: Request) -> Any:
        prompt: list[int] = []
        for message in request.body["messages"]:
            if "generation_token_ids" in message and not self._forgetful:
                prompt = message["prompt_token_ids"] + message["generation_token_ids"]
            elif message["role"] == "assistant":
                prompt += [1, 2]
            else:
                prompt.append(len(prompt))
        turn = sum(message["role"] == "assistant" for message in request.body["messages"])
        ids = list(range(self._made, self._made + 3))
        self._made += 3
        call = {"id": f"c{turn}", "function": {"name": "increment_counter", "arguments": '{"count":1}'}}
        said: dict[str, Any] = {"content": "Done."} if turn == 3 else {"content": None, "tool_calls": [call]}
        made: dict[str, Any] = completion(said, prompt_token_ids=prompt)
        entries = [{"token": f"token_id:{number}", "logprob": -0.25} for number in ids]
        made["choices"][0] |= {"token_ids": ids, "logprobs": {"content": entries}}
        read, wrote = len(prompt), len(ids)
        made["usage"] = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        return made


@pytest.mark.parametrize("transport", ["direct", "http"])
async def test_tokens_of_many_turns_are_one_sequence(transport: Transport) -> None:
    async with stub_endpoint(TokenKeeper()) as stub:
        report = check_tokens([await record(vllm_model(stub.url, training=True), transport)])
    assert (report.turns, report.faults) == (4, [])


async def test_tokens_made_anew_are_noticed() -> None:
    async with stub_endpoint(TokenKeeper(forgetful=True)) as stub:
        report = check_tokens([await record(vllm_model(stub.url, training=True), "direct")])
    assert report.breaks[0].startswith("line 1, turn 2: token 3 ")


async def test_no_room_left_in_the_middle_ends_the_rollout_with_what_there_is() -> None:
    keeper = TokenKeeper()
    overflow = {
        "message": "This model's maximum context length is 9 tokens. However, your request has 10 input tokens."
    }

    def reply(request: Request) -> Any:
        return (400, overflow) if len(request.body["messages"]) > 5 else keeper(request)

    async with stub_endpoint(reply) as stub:
        found = orjson.loads(await record(vllm_model(stub.url, training=True), "direct"))
        assert len(stub.requests) == 3
    response = found["response"]
    assert (found["reward"], response["status"]) == (0.0, "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["type"] for item in response["output"]] == ["function_call", "function_call_output"] * 2
    assert response["usage"]["total_tokens"] == 16
