"""Streams and `/v1/messages` come with every model server, also with one written the FastAPI way."""

from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.chat import NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.responses import (
    FrozenRequest,
    NeMoGymEasyInputMessage,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server.model_endpoints import in_dialect
from nemo_gym.testing import client_for, says
from responses_api_models.scripted_model.app import ScriptedModel
from tests.stub_endpoint import completion

HELLO = {"input": "Hello."}
CHAT_HELLO = {"messages": [{"role": "user", "content": "Hello."}]}
MESSAGES_HELLO = {**CHAT_HELLO, "max_tokens": 9}
DIALECTS = [("/v1/responses", HELLO), ("/v1/chat/completions", CHAT_HELLO), ("/v1/messages", MESSAGES_HELLO)]


class Legacy(SimpleResponsesAPIModel):
    """Asks for the request, and has a route of its own."""

    heard: list[Any] = []  # noqa: RUF012 - a field, which pydantic copies

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.get("/extra")(lambda: "extra")
        return app

    async def responses(self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming) -> Any:
        self.heard.append((bool(request.session), body.model_dump(exclude_unset=True)))
        return says("Hello.")

    async def chat_completions(self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> Any:
        self.heard.append((bool(request.session), body.model_dump(exclude_unset=True)))
        return completion("Hello.")


class Hearing(SimpleResponsesAPIModel):
    """Keeps the request that it was given."""

    heard: list[Any] = []  # noqa: RUF012 - a field, which pydantic copies

    async def responses(self, body: FrozenRequest) -> Any:
        self.heard.append(body)
        return says("Hello.")

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> Any:
        return completion("Hello.")


class Changing(Hearing):
    """Changes its request, as public model servers do."""

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> Any:  # type: ignore[override]
        assert isinstance(body.input, list)
        body.input[0].content = "Changed."  # type: ignore[union-attr]
        body.input.append(NeMoGymEasyInputMessage(role="user", content="Added."))
        body.temperature = 1.5
        return await super().responses(FrozenRequest.of(body))


async def ask_directly(kind: type[Hearing], request: FrozenRequest) -> FrozenRequest:
    """Call a model server in this worker, and return the request that its handler got."""
    server = kind(
        config=BaseResponsesAPIModelConfig(name="m", host="", port=0, entrypoint=""), server_client=ServerClient()
    )
    assert (await server.asgi_app().direct("POST", "/v1/responses", request, {})).status == 200
    heard: FrozenRequest = server.heard[0]
    return heard


async def test_a_handler_that_takes_a_frozen_request_shares_the_senders_and_any_other_gets_a_copy() -> None:
    given = {"input": [{"role": "user", "content": "Hello."}], "temperature": 0.5}
    request = FrozenRequest.of(NeMoGymResponseCreateParamsNonStreaming.model_validate(given))
    assert await ask_directly(Hearing, request) is request
    changed = orjson.loads(encode(await ask_directly(Changing, request)))
    assert [item["content"] for item in changed["input"]] == ["Changed.", "Added."]
    assert changed["temperature"] == 1.5
    assert orjson.loads(encode(request)) == given


async def test_a_frozen_request_is_the_same_over_http() -> None:
    given = {"input": [{"role": "user", "content": "Hello."}], "temperature": 0.5, "tools": []}
    async with client_for(Hearing) as client:
        assert (await client.post("/v1/responses", json=given)).status == 200
        assert (await client.post("/v1/responses", json={"input": 7})).status == 400
        assert isinstance(client.server, Hearing)
        assert orjson.loads(encode(client.server.heard[0])) == given


def events_of(answer: ServerReply) -> list[Any]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else orjson.loads(line) for line in lines]


@pytest.mark.parametrize(("path", "body"), DIALECTS)
async def test_a_server_with_routes_of_its_own_streams_too(path: str, body: dict[str, Any]) -> None:
    async with client_for(Legacy) as client:
        assert (await client.get("/extra")).status == 200
        whole = await client.post(path, json=body)
        assert "Hello." in whole.text
        streamed = await client.post(path, json={**body, "stream": True, "stream_options": None})
        assert "Hello." in str(events_of(streamed))
        assert isinstance(client.server, Legacy)
        assert client.server.heard[0] == client.server.heard[1], "the handler is not told"
        assert client.server.heard[0][0], "it has its session"


async def test_a_peer_in_the_same_worker_gets_all_events_at_once() -> None:
    config = {"name": "test", "host": "", "port": 0, "entrypoint": "", "replies": [{"say": "Hello."}]}
    server = ScriptedModel(config=ScriptedModel.config_class().model_validate(config), server_client=ServerClient())
    answer = await server.asgi_app().direct("POST", "/v1/responses", {**HELLO, "stream": True}, {})
    assert answer.content().startswith(b"event: response.created\ndata: ")


@pytest.mark.parametrize(("path", "body"), DIALECTS)
@pytest.mark.parametrize("stream", ["yes please", [], {"a": 1}])
async def test_a_stream_is_asked_for_by_true_alone(path: str, body: dict[str, Any], stream: Any) -> None:
    async with client_for(ScriptedModel, replies=[{"say": "Hello."}]) as client:
        assert (await client.post(path, json={**body, "stream": stream})).status == 400
        assert (await client.post(path, json={**body, "stream": False})).status == 200


async def test_the_word_stream_in_a_text_is_no_request_for_one() -> None:
    async with client_for(ScriptedModel, replies=[{"say": "Hello."}]) as client:
        answer = await client.post("/v1/responses", json={"input": 'Say "stream": true.', "metadata": {"stream": "x"}})
        assert answer.json()["object"] == "response"


async def test_the_sequence_of_a_response_is_numbered() -> None:
    async with client_for(ScriptedModel, replies=[{"think": "Hm.", "say": "Hello."}]) as client:
        events = events_of(await client.post("/v1/responses", json={**HELLO, "stream": True}))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["output"][1]["content"][0]["text"] == "Hello."


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("garbage", ["<html>", "null", "[]", "{}"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_none_is_never_streamed(path: str, garbage: str, stream: bool) -> None:
    body = HELLO if path == "/v1/responses" else MESSAGES_HELLO
    async with client_for(ScriptedModel, replies=[{"garbage": garbage}]) as client:
        answer = await client.post(path, json={**body, "stream": stream})
        if stream or path == "/v1/messages":
            assert (answer.status, answer.json()["error"]["cause"]) == (502, "model")
        else:
            assert answer.text == garbage


async def test_what_the_other_dialect_cannot_say_is_refused() -> None:
    async with client_for(ScriptedModel, replies=[{"say": "Hello."}]) as client:
        answer = await client.post("/v1/messages", json={**MESSAGES_HELLO, "stop_sequences": ["x"]})
        assert answer.status == 400
        assert "stop_sequences" in answer.json()["detail"]


def test_a_code_that_is_no_text_and_no_number_is_not_passed_on() -> None:
    error = UpstreamError("endpoint", 400, '{"error": {"message": "No.", "type": "bad", "code": ["x"]}}')
    reply = in_dialect(ServerReply("model", 502, {"detail": "No."}), error, "openai")
    assert (reply.status, reply.value["error"]) == (
        400,
        {"type": "bad", "param": None, "code": None, "message": "No."},
    )
