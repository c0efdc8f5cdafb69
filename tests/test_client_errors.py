"""What official clients make of our model servers: models, counts, completions, and the exception for each status."""

import asyncio
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any

import anthropic
import openai
import pytest
from agents import (  # type: ignore[import-not-found,unused-ignore]
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from nemo_gym.testing import client_for
from responses_api_models.local_model.app import LocalModel
from responses_api_models.local_model.weights import weights_here
from tests.litellm_process import LITELLM, run_litellm
from tests.model_servers import KINDS, in_front_of, model_server
from tests.stub_endpoint import Request, stub_endpoint

STATUSES = {
    400: ("BadRequestError", "BadRequestError"),
    401: ("AuthenticationError", "AuthenticationError"),
    403: ("PermissionDeniedError", "PermissionDeniedError"),
    404: ("NotFoundError", "NotFoundError"),
    422: ("UnprocessableEntityError", "UnprocessableEntityError"),
    429: ("RateLimitError", "RateLimitError"),
    500: ("InternalServerError", "InternalServerError"),
}
SAID = {"said", "streamed", "called", "response", "message", "models"}
REPLIES: list[dict[str, Any]] = [
    *({"user": f"Fail {status}", "status": status, "retry_after_s": 7} for status in STATUSES),
    {"user": "Weather", "turn": 0, "call": [{"name": "look", "arguments": {"at": "Oslo"}}]},
    {"tool_output": "cold", "say": "It is cold."},
    {"say": "Hello."},
]


def clients(url: str) -> tuple[AsyncOpenAI, AsyncAnthropic]:
    return (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0),
        AsyncAnthropic(base_url=url, api_key="any", max_retries=0),
    )


def tries(kind: str) -> dict[str, Any]:
    return {} if kind == "scripted_model" else {"max_tries": 1}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_exception_is_that_of_the_endpoints_status(kind: str) -> None:
    async with model_server(kind, REPLIES, **tries(kind)) as server:
        ours, theirs = clients(server.url)
        async with ours, theirs:
            for status, (openai_name, anthropic_name) in STATUSES.items():
                asked: Any = [{"role": "user", "content": f"Fail {status}!"}]
                for stream in (False, True):
                    with pytest.raises(getattr(openai, openai_name)) as of_responses:
                        await ours.responses.create(model="m", input=f"Fail {status}!", stream=stream)
                    with pytest.raises(getattr(openai, openai_name)) as of_chat:
                        await ours.chat.completions.create(model="m", messages=asked, stream=stream)
                    with pytest.raises(getattr(anthropic, anthropic_name)) as of_messages:
                        await theirs.messages.create(model="m", max_tokens=9, messages=asked, stream=stream)
                for caught in (of_responses, of_chat):
                    assert f"{status}" in str(caught.value.body["message"])
                body: Any = of_messages.value.body
                assert body["type"] == "error"
                assert isinstance(body["error"]["type"], str)
                if status == 429:
                    for raised in (of_responses, of_chat, of_messages):
                        assert raised.value.response.headers["retry-after"] == "7"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_is_not_valid_is_refused_in_the_dialects_own_shape(kind: str) -> None:
    async with model_server(kind, REPLIES) as server:
        ours, theirs = clients(server.url)
        async with ours, theirs:
            with pytest.raises(openai.BadRequestError) as of_chat:
                await ours.chat.completions.create(model="m", messages=7)  # type: ignore[call-overload]
            assert of_chat.value.type == "invalid_request_error"
            assert "messages" in str(of_chat.value.body)
            with pytest.raises(openai.BadRequestError, match="temperatur"):
                await ours.responses.create(model="m", input="Hi.", extra_body={"temperatur": 1})
            with pytest.raises(anthropic.BadRequestError, match="messages"):
                await theirs.messages.create(model="m", max_tokens=9, messages=7)  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", KINDS)
async def test_both_packages_list_the_model_and_find_it_by_its_name(kind: str) -> None:
    async with model_server(kind, REPLIES) as server:
        ours, theirs = clients(server.url)
        async with ours, theirs:
            (listed,) = (await ours.models.list()).data
            assert (await ours.models.retrieve(listed.id)).id == listed.id
            (also,) = [model async for model in theirs.models.list()]
            assert also.id == listed.id
            assert (await theirs.models.retrieve(listed.id)).display_name == listed.id
            with pytest.raises(openai.NotFoundError, match="'nobody/nothing'"):
                await ours.models.retrieve("nobody/nothing")
            counted = await theirs.messages.count_tokens(
                model="m", messages=[{"role": "user", "content": "Hello " * 100}]
            )
            assert 50 < counted.input_tokens < 500


@pytest.mark.parametrize("kind", ["openai_model", "vllm_model"])
async def test_text_is_completed_where_the_endpoint_can(kind: str) -> None:
    def reply(request: Request) -> Any:
        choice = {"index": 0, "text": f"{request.body['prompt']} and on", "finish_reason": "stop", "logprobs": None}
        return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}

    async with stub_endpoint(reply) as stub, in_front_of(kind, stub.url.removesuffix("/v1")) as server:
        ours, theirs = clients(server.url)
        async with ours, theirs:
            whole = await ours.completions.create(model="m", prompt="On")
            assert whole.choices[0].text == "On and on"
            chunks = [chunk async for chunk in await ours.completions.create(model="m", prompt="On", stream=True)]
            assert "".join(chunk.choices[0].text for chunk in chunks) == "On and on"
    assert {request.path for request in stub.requests} == {"/v1/completions"}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_agents_package_runs_its_loop_with_our_models(kind: str) -> None:
    looked: list[str] = []

    @function_tool
    def look(at: str) -> str:
        """Look at the weather."""
        looked.append(at)
        return "cold"

    async with model_server(kind, REPLIES) as server:
        ours, theirs = clients(server.url)
        async with ours, theirs:
            for model_class in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
                model = model_class(model="m", openai_client=ours)
                agent = Agent(name="forecaster", instructions="Be brief.", tools=[look], model=model)
                config = RunConfig(tracing_disabled=True)
                result = await Runner.run(agent, "Weather?", run_config=config)
                assert result.final_output == "It is cold."
                streamed = Runner.run_streamed(agent, "Weather?", run_config=config)
                assert [event async for event in streamed.stream_events()]
                assert streamed.final_output == "It is cold."
    assert looked == ["Oslo"] * 4


@pytest.mark.slow
@pytest.mark.skipif(not LITELLM.exists(), reason="`make litellm` installs it, in a virtualenv of its own")
async def test_litellm() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(model_server(kind, REPLIES, **tries(kind))) for kind in KINDS]
        if find_spec("xllamacpp") and weights_here():
            settings: dict[str, Any] = {"threads": 1, "context_tokens": 512, "max_output_tokens": 8}
            servers.append(await stack.enter_async_context(client_for(LocalModel, **settings)))
        told = await asyncio.to_thread(run_litellm, [server.url for server in servers])
    for lines in told[len(KINDS) :]:  # what a real model says is its own
        assert {key for line in lines for key in line} == {
            "said",
            "streamed",
            "called",
            "response",
            "message",
            "models",
        }
        assert [line["called"] for line in lines if "called" in line] == [["look"]]
    for lines in told[: len(KINDS)]:
        assert {key: value for line in lines for key, value in line.items() if "raised" not in line} == {
            "said": "Hello.",
            "streamed": "Hello.",
            "called": ["look"],
            "response": "Hello.",
            "message": "Hello.",
            "models": 1,
        }
        assert {line["status"]: line["raised"] for line in lines if "raised" in line} == {
            400: "BadRequestError",
            401: "AuthenticationError",
            404: "NotFoundError",
            429: "RateLimitError",
            500: "InternalServerError",
        }
