"""What a model, an author and a record see of tools and rows."""

import logging
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import orjson
import pytest
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseVerifyRequest,
    BaseVerifyResponse,
    Score,
    SimpleResourcesServer,
    ToolError,
    tool,
)
from nemo_gym.client.connection import HttpSettings
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.attempts import attempt
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.types import Row, metric_fields
from nemo_gym.testing import (
    TRANSPORTS,
    Transport,
    client_for,
    example_row,
    message,
    response_of,
    running_servers,
    says,
)
from tests.stacks import scripted_servers, weather


class Files(SimpleResourcesServer):
    @tool
    async def read(self, path: str) -> str:
        """Read a file."""
        if path == "bug":
            raise KeyError("no")
        raise ToolError(f"no such file: {path}")

    async def verify(self, body: BaseVerifyRequest) -> Any:
        return "yes"


def test_the_schemas_are_known_without_a_server() -> None:
    (schema,) = Files.tool_schemas()
    assert (schema["name"], schema["description"]) == ("read", "Read a file.")
    assert schema["parameters"]["required"] == ["path"]


async def test_the_model_sees_the_text_of_an_expected_error_and_nothing_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client_for(Files) as client:
        reply = await client.post("/read", json={"path": "a.txt"})
    assert (reply.status, reply.content()) == (400, b"no such file: a.txt")
    assert not caplog.records


async def test_an_unexpected_error_is_logged_once_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    name = f"files_{uuid4().hex}"
    async with client_for(Files, name=name) as client:
        for _ in range(3):
            reply = await client.post("/read", json={"path": "bug"})
            assert (reply.status, reply.content()) == (500, b"\"KeyError('no')\"")
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.getMessage().startswith(f"a tool of {name} raised KeyError('no') at ")
    assert "test_tool_errors.py:" in record.getMessage()
    assert record.exc_info is None


class NoTextError(KeyError):
    def __repr__(self) -> str:
        raise ValueError("no text")

    __str__ = __repr__


class NoTextToolError(ToolError):
    __str__ = NoTextError.__repr__


class Textless(SimpleResourcesServer):
    @tool
    async def fail(self, kind: str) -> str:
        """Fail."""
        raise {"bug": NoTextError(), "expected": NoTextToolError(), "surrogate": ToolError("\ud800")}[kind]

    async def verify(self, body: BaseVerifyRequest) -> float:
        raise NoTextError


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("kind", "status", "text"),
    [
        ("bug", 500, '"NoTextError (its text raised ValueError)"'),
        ("expected", 400, "NoTextToolError (its text raised ValueError)"),
        ("surrogate", 400, "\\ud800"),
    ],
)
async def test_the_model_sees_the_class_of_an_error_that_has_no_text(
    transport: Transport, kind: str, status: int, text: str
) -> None:
    async with client_for(Textless) as environment, HttpClient() as http:
        name = environment.server.config.name
        local = {name: environment.server.asgi_app()} if transport == "direct" else {}
        client = ServerClient(addresses={name: environment.url}, local=local, http=http)
        reply = await client.send(name, "/fail", {"kind": kind}, cause="tool")
        assert (reply.status, reply.text) == (status, text)
        row = example_row("hi", response=says("hello"))
        with pytest.raises(RolloutError, match="NoTextError") as raised:
            await client.call(name, "/verify", row, answer=dict, cause="verifier")
    assert raised.value.cause == "verifier"


async def test_a_verifier_that_returns_text_is_named() -> None:
    async with client_for(Files) as client:
        row = example_row("hi", response=says("hello"))
        reply = await client.post("/verify", json=row)
    assert "verify returned 'yes'" in orjson.loads(reply.content())["detail"]


class UnboundedRequest(BaseVerifyRequest):
    number: str
    place: str


class UnboundedResponse(BaseVerifyResponse):
    detail: Any


class Scores(BaseModel):
    scores: list[float]


class Unbounded(SimpleResourcesServer):
    """Reports what its row says, and a number that is not finite there."""

    async def verify(self, body: UnboundedRequest) -> UnboundedResponse:
        value = float(body.number)
        places = {"field": value, "list": [1.0, value], "dict": {"a": {"b": value}}, "model": Scores(scores=[value])}
        fields = {"responses_create_params": body.responses_create_params, "response": body.response, "reward": 1.0}
        return UnboundedResponse(**fields, detail=places[body.place])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("place", ["field", "list", "dict", "model"])
@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e300"])
async def test_a_number_that_json_cannot_hold_is_a_failure_of_the_verifier(
    transport: Transport, place: str, number: str
) -> None:
    async with client_for(Unbounded) as environment, HttpClient() as http:
        name = environment.server.config.name
        local = {name: environment.server.asgi_app()} if transport == "direct" else {}
        client = ServerClient(addresses={name: environment.url}, local=local, http=http)
        row = example_row("hi", response=says("hello"), number=number, place=place)
        verified = client.call(name, "/verify", row, answer=dict, cause="verifier")
        if number == "1e300":
            assert (await verified)["reward"] == 1.0
        else:
            with pytest.raises(RolloutError, match=r"detail=.* not finite") as raised:
                await verified
            assert raised.value.cause == "verifier"


def weather_servers(**settings: Any) -> list[Any]:
    replies = [{"turn": 0, "call": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}, {"say": "Take a coat."}]
    return scripted_servers(weather(**settings), replies)


async def played(servers: list[Any], row: dict[str, Any], transport: Transport = "direct") -> dict[str, Any]:
    async with running_servers(servers, transport=transport) as client:
        outcome = await attempt(client, Row(0, 0, "0" * 16, "agent", orjson.dumps(row)))
    assert outcome.error is None, outcome
    record: dict[str, Any] = orjson.loads(outcome.line())
    return record


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_row_without_tools_gets_those_of_its_environment(transport: Transport) -> None:
    row = {"responses_create_params": {"input": "What is the weather in Oslo?"}}
    record = await played(weather_servers(), row, transport)
    assert [tool["name"] for tool in record["responses_create_params"]["tools"]] == ["get_weather"]
    outputs = [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]
    assert "Oslo" in outputs[0]


async def test_a_row_that_says_there_are_no_tools_gets_none() -> None:
    row = {"responses_create_params": {"input": "What is the weather in Oslo?", "tools": []}}
    record = await played(weather_servers(), row)
    assert record["responses_create_params"]["tools"] == []
    outputs = [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]
    assert "There is no tool 'get_weather'" in outputs[0]


async def test_a_record_carries_the_fields_of_its_row_but_they_are_no_results() -> None:
    row = {"responses_create_params": {"input": "Oslo?"}, "answer": "coat", "level": 3, "_row_hash": "forged"}
    record = await played(weather_servers(), row)
    assert (record["answer"], record["level"], record["_row_fields"]) == ("coat", 3, ["answer", "level"])
    assert record["_row_hash"] == "0" * 16
    assert not {"answer", "level"} & set(metric_fields(record)["values"])


async def test_an_environment_can_keep_the_fields_of_its_rows_out_of_records() -> None:
    row = {"responses_create_params": {"input": "Oslo?"}, "answer": "coat"}
    record = await played(weather_servers(record_row_fields=False), row)
    assert not {"answer", "_row_fields"} & set(record)


class Hoarder(SimpleResourcesServer):
    @tool
    async def hoard(self, size: int) -> str:
        """Return a long text."""
        return "x" * size

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_tool_may_return_as_much_in_process_as_over_http(transport: Transport) -> None:
    async with AsyncExitStack() as stack:
        environment = await stack.enter_async_context(client_for(Hoarder))
        http = await stack.enter_async_context(HttpClient(HttpSettings(max_response_bytes=10_000)))
        name = environment.server.config.name
        local = {name: environment.server.asgi_app()} if transport == "direct" else {}
        client = ServerClient(addresses={name: environment.url}, local=local, http=http)
        assert len((await client.send(name, "/hoard", {"size": 9_000}, cause="tool")).text) == 9_000
        with pytest.raises(RolloutError, match="the reply exceeded max_response_bytes, 10000") as raised:
            await client.send(name, "/hoard", {"size": 11_000}, cause="tool")
    assert (raised.value.cause, raised.value.server, raised.value.retryable) == ("tool", name, False)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_rollout_that_its_last_step_ended_says_so_and_is_counted(transport: Transport) -> None:
    call = {"call": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}
    row = {"responses_create_params": {"input": "Oslo?"}}
    record = await played(scripted_servers(weather(), [call], max_steps=2), row, transport)
    assert (record["response"]["ended_by"], record["reward"]) == ("max_steps", 1.0)
    metrics = RunningMetrics()
    metrics.add(record)
    assert metrics.summary()["cut_off"] == 1
    answered = await played(scripted_servers(weather(), [{"turn": 0, **call}, {"say": "Cold."}], max_steps=2), row)
    assert "ended_by" not in answered["response"]


class UntypedVerifyRequest(BaseModel):
    responses_create_params: Any
    response: Any


class OfTypes(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


class OfAnything(SimpleResourcesServer):
    async def verify(self, body: UntypedVerifyRequest) -> float:
        return 1.0


class OfDict(SimpleResourcesServer):
    async def verify(self, body: dict[str, Any]) -> float:
        return 1.0


@pytest.mark.parametrize("kind", [OfTypes, OfAnything, OfDict])
async def test_a_reply_that_was_cut_off_can_have_a_reward_of_its_own(kind: type[SimpleResourcesServer]) -> None:
    async with client_for(kind, cut_off_reward=0.0) as client:
        row = example_row("hi", response=says("hello"))
        assert orjson.loads((await client.post("/verify", json=row)).content())["reward"] == 1.0
        row["response"] = {
            **orjson.loads(orjson.dumps(row["response"])),
            "incomplete_details": {"reason": "max_output_tokens"},
        }
        assert orjson.loads((await client.post("/verify", json=row)).content())["reward"] == 0.0


class Scoring(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> Score:
        said = body.response.output_text
        return Score(float(said), words=[said], best=None, ratio=float("inf") if said == "2" else 0.5)


async def test_a_score_is_completed_with_what_the_caller_sent() -> None:
    async with client_for(Scoring) as client:
        for said, status in (("1", 200), ("2", 502), ("nan", 502)):
            sent = {"responses_create_params": {"input": "?"}, "response": response_of(message(said))}
            reply = await client.post("/verify", json=sent)
            assert reply.status == status
            if status == 200:
                record = orjson.loads(reply.content())
                assert list(record) == ["responses_create_params", "response", "reward", "words", "best", "ratio"]
                assert (record["reward"], record["words"], record["best"], record["ratio"]) == (1.0, ["1"], None, 0.5)
                assert record["response"]["output"][0]["content"][0]["text"] == "1"
            else:
                assert orjson.loads(reply.content())["error"]["cause"] == "verifier"
