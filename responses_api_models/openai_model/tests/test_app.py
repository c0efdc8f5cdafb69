import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.requests import Request

from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel
from nemo_gym.testing import BrowserLikeClient, ServerReply, calls, client_for, message, says, tool_output
from responses_api_models.openai_model.app import SimpleModelServer
from responses_api_models.scripted_model.app import ScriptedModel
from tests.stub_endpoint import stub_endpoint

KEY = "sk-very-secret"
HELLO = {"input": "Hello."}
CHAT_HELLO = {"messages": [{"role": "user", "content": "Hello."}]}
DIALECTS = [("/v1/responses", HELLO), ("/v1/chat/completions", CHAT_HELLO)]


class RecordingEndpoint(SimpleResponsesAPIModel):
    """An endpoint that keeps what it is sent, as it came over the wire."""

    heard: list[dict[str, Any]] = []  # noqa: RUF012 - a field, which pydantic copies
    keys: list[str | None] = []  # noqa: RUF012

    async def responses(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        self._keep(body, request)
        return says("Hello.")

    async def chat_completions(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        self._keep(body, request)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello."}}
        return {"id": "c", "created": 0, "model": "test", "object": "chat.completion", "choices": [choice]}

    def _keep(self, body: dict[str, Any], request: Request) -> None:
        self.heard.append(body)
        self.keys.append(request.headers.get("authorization"))


@asynccontextmanager
async def model_of(url: str, **config: Any) -> AsyncIterator[BrowserLikeClient]:
    """The server under test in front of an endpoint."""
    settings = {"openai_base_url": url, "openai_api_key": KEY, "openai_model": "gpt-test", "max_tries": 2, **config}
    async with client_for(SimpleModelServer, **settings) as model:
        yield model


@asynccontextmanager
async def model_of_script(*replies: dict[str, Any], **config: Any) -> AsyncIterator[BrowserLikeClient]:
    """The server under test in front of an endpoint that follows a script."""
    async with (
        client_for(ScriptedModel, replies=list(replies)) as endpoint,
        model_of(f"{endpoint.url}/v1", **config) as model,
    ):
        yield model


async def sent(path: str, body: dict[str, Any], *, suffix: str = "/v1") -> tuple[ServerReply, RecordingEndpoint]:
    """What the server answers, and the endpoint that it asked."""
    async with client_for(RecordingEndpoint) as endpoint, model_of(endpoint.url + suffix) as model:
        assert isinstance(endpoint.server, RecordingEndpoint)
        return await model.post(path, json=body), endpoint.server


def failed_as(answer: ServerReply) -> str:
    cause: str = answer.json()["error"]["cause"]
    return cause


@pytest.mark.parametrize(("path", "body"), DIALECTS)
async def test_a_request_is_passed_on_with_the_name_and_the_key_of_the_config(path: str, body: dict[str, Any]) -> None:
    asked = {**body, "temperature": 0.5, "model": "something else"}
    answer, endpoint = await sent(path, asked)
    assert answer.status == 200
    assert "Hello." in answer.text
    assert endpoint.keys == [f"Bearer {KEY}"]
    passed_on = endpoint.heard[0]
    assert passed_on.pop("model") == "gpt-test"
    del asked["model"]
    assert passed_on == asked, "what was not set is not sent"


async def test_all_that_a_request_says_is_passed_on() -> None:
    request = {
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
            {"role": "assistant", "content": "Hm."},
            calls("get_weather", {"city": "Oslo"}, call_id="call_1"),
            tool_output("cold", call_id="call_1"),
            {**message("It is cold."), "id": "msg_1"},
        ],
        "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": "low"},
        "parallel_tool_calls": False,
        "max_output_tokens": 7,
    }
    _, endpoint = await sent("/v1/responses", request)
    assert endpoint.heard == [{**request, "model": "gpt-test"}]


async def test_a_slash_at_the_end_of_the_address_makes_no_difference() -> None:
    answer, _ = await sent("/v1/responses", HELLO, suffix="/v1/")
    assert answer.status == 200


async def test_earlier_output_goes_back_without_what_endpoints_refuse() -> None:
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}
    content = [{"type": "reasoning_text", "text": "Hm."}]
    reasoning: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
    spoken = [
        {"role": "user", "content": "Hello."},
        {**reasoning, "status": "completed", "content": content},
        {**reasoning, "id": "rs_2", "encrypted_content": "abc", **tokens},
        {**calls("get_weather", {"city": "Oslo"}, call_id="call_1"), **tokens},
        tool_output("cold", call_id="call_1"),
        {**message("Cold."), **tokens},
    ]
    _, endpoint = await sent("/v1/responses", {"input": spoken})
    assert endpoint.heard[0]["input"] == [
        {"role": "user", "content": "Hello."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "abc"},
        calls("get_weather", {"city": "Oslo"}, call_id="call_1"),
        tool_output("cold", call_id="call_1"),
        message("Cold."),
    ]


async def test_a_request_that_does_not_fit_is_not_passed_on() -> None:
    answer, endpoint = await sent("/v1/responses", {"inptu": "Hello."})
    assert (answer.status, endpoint.heard) == (400, [])


@pytest.mark.parametrize(("path", "body"), DIALECTS)
async def test_a_busy_endpoint_is_asked_again_after_the_pause_it_names(path: str, body: dict[str, Any]) -> None:
    async with model_of_script({"status": 429, "retry_after_s": 0.6, "times": 1}, {"say": "Better now."}) as model:
        started = time.monotonic()
        answer = await model.post(path, json=body)
    assert time.monotonic() - started >= 0.6
    assert answer.status == 200
    assert "Better now." in answer.text


async def test_every_fault_that_may_pass_is_tried_again() -> None:
    statuses = [408, 429, 500, 502, 503, 504, 520, 529]
    faults = [{"user": str(status), "status": status, "times": 1} for status in statuses]
    async with model_of_script(*faults, {"say": "Better now."}) as model:
        asking = (model.post("/v1/responses", json={"input": str(status)}) for status in statuses)
        answers = await asyncio.gather(*asking)
    assert [answer.status for answer in answers] == [200] * len(statuses)


async def test_a_fault_that_stays_is_a_failure_of_the_model_after_all_tries() -> None:
    async with model_of_script({"status": 503, "times": 2}, {"say": "Better now."}) as model:
        answer = await model.post("/v1/responses", json=HELLO)
        assert (answer.status, failed_as(answer)) == (503, "model")
        assert "answered 503: " in answer.json()["error"]["message"]
        assert (await model.post("/v1/responses", json=HELLO)).status == 200, "it was asked twice, no more"


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_refused_request_is_not_tried_again(status: int) -> None:
    async with model_of_script({"status": status, "times": 1}, {"say": "Better now."}) as model:
        answer = await model.post("/v1/responses", json=HELLO)
        assert (answer.status, failed_as(answer)) == (status, "model")
        assert f"answered {status}: " in answer.json()["error"]["message"]
        assert (await model.post("/v1/responses", json=HELLO)).status == 200


@pytest.mark.parametrize(("path", "body"), DIALECTS)
@pytest.mark.parametrize("garbage", ["<html>Sign in</html>", "", "null", '{"id": "resp_1"}', '{"output": "'])
async def test_an_answer_that_is_none_is_a_failure_of_the_model(path: str, body: dict[str, Any], garbage: str) -> None:
    async with model_of_script({"garbage": garbage}) as model:
        answer = await model.post(path, json=body)
    assert (answer.status, failed_as(answer)) == (502, "model")
    assert garbage in answer.json()["error"]["message"]


@pytest.mark.parametrize("fault", [{"status": 401}, {"status": 503}, {}])
async def test_a_key_that_the_endpoint_repeats_is_not_shown(
    fault: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with model_of_script({**fault, "garbage": f"Your key {KEY} is wrong."}) as model:
        answer = await model.post("/v1/responses", json=HELLO)
    assert failed_as(answer) == "model"
    assert "Your key **** is wrong." in answer.text
    assert KEY not in answer.text + caplog.text


async def test_an_endpoint_out_of_reach_is_a_failure_of_the_model() -> None:
    with socket.socket() as silent:  # it has the port, and does not listen
        silent.bind(("127.0.0.1", 0))
        async with model_of(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", max_tries=1) as model:
            answer = await model.post("/v1/responses", json=HELLO)
    assert (answer.status, failed_as(answer)) == (502, "model")
    assert "no connection to" in answer.text
    assert KEY not in answer.text


async def test_an_endpoint_that_takes_too_long_is_a_timeout_and_not_asked_again() -> None:
    async with model_of_script({"latency_s": 60, "times": 1}, {"say": "Now."}, request_timeout_s=1.0) as model:
        answer = await model.post("/v1/responses", json=HELLO)
        assert (answer.status, failed_as(answer)) == (504, "timeout")
        assert (await model.post("/v1/responses", json=HELLO)).status == 200


async def test_an_address_without_a_scheme_is_refused_at_start() -> None:
    with pytest.raises(ValidationError, match=r"'localhost:8000/v1'.*expected"):
        async with model_of("localhost:8000/v1"):
            raise AssertionError("it started")


async def test_a_web_page_instead_of_a_response_asks_for_the_address() -> None:
    async with stub_endpoint(lambda _: "<html>Welcome</html>") as stub, model_of(stub.url) as model:
        answer = await model.post("/v1/responses", json=HELLO)
    assert "answered 200: not JSON." in answer.text
    assert "<html>Welcome</html>" in answer.text


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ('{"id": "\\ud800"}', "Invalid JSON: unexpected end of hex escape"),
        ('\ufeff{"id": "resp_1"}', "Invalid JSON: expected value at line 1 column 1"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "Invalid JSON: recursion limit exceeded"),
        ('{"id": "resp_1', "Invalid JSON: EOF while parsing a string"),
    ],
)
async def test_an_object_that_cannot_be_read_is_not_taken_for_a_web_page(reply: str, reason: str) -> None:
    async with stub_endpoint(lambda _: reply) as stub, model_of(stub.url) as model:
        answer = await model.post("/v1/responses", json=HELLO)
    assert failed_as(answer) == "model"
    assert f"{stub.url} answered 200: not a Response ({reason}" in answer.text
    assert "Is this the address" not in answer.text


async def test_json_that_is_no_object_asks_for_the_address() -> None:
    async with stub_endpoint(lambda _: [1]) as stub, model_of(stub.url) as model:
        answer = await model.post("/v1/responses", json=HELLO)
    assert "answered 200: not a Response" in answer.text


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize(("status", "text"), [(204, ""), (202, "Come back later.")])
async def test_a_success_without_an_object_is_an_error_with_its_status(path: str, status: int, text: str) -> None:
    async with stub_endpoint(lambda _: (status, text)) as stub, model_of(stub.url) as model:
        answer = await model.post(path, json=HELLO if path == "/v1/responses" else {"messages": []})
    assert failed_as(answer) == "model"
    assert f"answered {status}: {text}" in answer.text
    assert len(stub.requests) == 1


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_an_error_names_the_endpoint_that_replied_badly(path: str) -> None:
    async with stub_endpoint(lambda _: {"bad": 1}) as one, stub_endpoint(lambda _: {"bad": 2}) as two:
        config: dict[str, Any] = {"openai_base_url": [one.url, two.url], "openai_api_key": "k", "openai_model": "m"}
        async with client_for(SimpleModelServer, **config) as model:
            body: dict[str, Any] = {"input": "Hi."} if path == "/v1/responses" else {"messages": []}
            errors = [(await model.another().post(path, json=body)).text for _ in range(2)]
    assert [f"{one.url} answered 200" in errors[0], f"{two.url} answered 200" in errors[1]] == [True, True]
