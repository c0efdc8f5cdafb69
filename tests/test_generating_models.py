"""The official clients and the model servers that generate text themselves. What a model says is its own; what is
tested is how the packages take it, and which exception they raise when it says nothing."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any, Literal, cast

import anthropic
import openai
import pytest
import pytest_asyncio
from agents import (  # type: ignore[import-not-found,unused-ignore]
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.server.uvicorn_runner import bind, serving
from nemo_gym.testing import LOOPBACK, BrowserLikeClient, client_for
from responses_api_models.local_model.app import LocalModel
from responses_api_models.local_model.weights import INSTALL_COMMAND, weights_here
from responses_api_models.tiny_policy.app import TinyPolicy

local = pytest.param(
    "local_model",
    marks=[
        pytest.mark.skipif(find_spec("xllamacpp") is None, reason="no engine: pip install 'nemo-gym[local]'"),
        pytest.mark.skipif(weights_here() is None, reason=f"no weights: {INSTALL_COMMAND}"),
    ],
)
pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = {
    "threads": 1,
    "context_tokens": 1024,
    "num_concurrent_requests": 1,
    "max_queued_requests": 0,
    "max_output_tokens": 8,
    "max_tool_turns": 1,
}
ASKED: Any = [{"role": "user", "content": "Weather in Oslo?"}]
PROPERTIES = {"at": {"type": "string", "enum": ["Oslo", "Rome"]}}
SCHEMA: Any = {"type": "object", "properties": PROPERTIES, "required": ["at"], "additionalProperties": False}
TOOL: Any = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
MESSAGES_TOOL: Any = {"name": "look", "input_schema": SCHEMA}
SEED: Any = {"seed": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[local, "tiny_policy"])
async def model(request: pytest.FixtureRequest) -> AsyncIterator[BrowserLikeClient]:
    kind, settings = (LocalModel, SETTINGS) if request.param == "local_model" else (TinyPolicy, {})
    async with HttpClient() as http, client_for(kind, server_client=ServerClient(http=http), **settings) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def ours(model: BrowserLikeClient) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{model.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def theirs(model: BrowserLikeClient) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=model.url, api_key="any", max_retries=0) as client:
        yield client


def is_local(model: BrowserLikeClient) -> bool:
    return isinstance(model.server, LocalModel)


async def test_models_are_listed(ours: AsyncOpenAI, theirs: AsyncAnthropic) -> None:
    (listed,) = (await ours.models.list()).data
    assert (await theirs.models.retrieve(listed.id)).display_name == listed.id
    with pytest.raises(openai.NotFoundError):
        await ours.models.retrieve("another")
    with pytest.raises(anthropic.NotFoundError):
        await theirs.models.retrieve("another")


@pytest.mark.slow
async def test_a_reply_is_the_same_whole_and_streamed(ours: AsyncOpenAI, theirs: AsyncAnthropic) -> None:
    whole = await ours.responses.create(model="m", input=ASKED, temperature=0, metadata=SEED)
    events = await ours.responses.create(model="m", input=ASKED, temperature=0, metadata=SEED, stream=True)
    assert "".join([e.delta async for e in events if e.type == "response.output_text.delta"]) == whole.output_text
    assert whole.usage is not None
    assert 0 < whole.usage.output_tokens <= 8
    completion = await ours.chat.completions.create(model="m", messages=ASKED, temperature=0, seed=1)
    chunks = await ours.chat.completions.create(model="m", messages=ASKED, temperature=0, seed=1, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
    assert text == completion.choices[0].message.content
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]}]
    async with theirs.messages.stream(model="m", max_tokens=8, messages=parts) as stream:
        message = await stream.get_final_message()
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens > 0


@pytest.mark.slow
async def test_a_tool_is_called(model: BrowserLikeClient, ours: AsyncOpenAI, theirs: AsyncAnthropic) -> None:
    if not is_local(model):
        pytest.skip("random weights call tools by luck")
    response = await ours.responses.create(
        model="m", input=ASKED, tools=[TOOL], tool_choice="required", max_output_tokens=64
    )
    (call,) = (item for item in response.output if item.type == "function_call")
    assert call.name == "look"
    completion = await ours.chat.completions.create(
        model="m", messages=ASKED, tools=[CHAT_TOOL], tool_choice="required", max_completion_tokens=64
    )
    chosen: Any = completion.choices[0].message.tool_calls
    assert [each.function.name for each in chosen] == ["look"]
    message = await theirs.messages.create(
        model="m", max_tokens=64, messages=ASKED, tools=[MESSAGES_TOOL], tool_choice={"type": "any"}
    )
    (use,) = (block for block in message.content if block.type == "tool_use")
    assert use.input in ({"at": "Oslo"}, {"at": "Rome"})


async def test_the_agents_package_runs_its_loop(model: BrowserLikeClient, ours: AsyncOpenAI) -> None:
    if not is_local(model):
        pytest.skip("random weights call tools by luck")
    looked: list[str] = []

    @function_tool
    def look(at: Literal["Oslo", "Rome"]) -> str:
        """Look at the weather."""
        looked.append(at)
        return "cold"

    forced = ModelSettings(tool_choice="required", max_tokens=64, temperature=0)
    for model_class in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        chosen = model_class(model="m", openai_client=ours)
        agent = Agent(
            name="forecaster",
            tools=[look],
            model=chosen,
            model_settings=forced,
            tool_use_behavior="stop_on_first_tool",
        )
        result = await Runner.run(agent, "Weather?", run_config=RunConfig(tracing_disabled=True))
        assert result.final_output == "cold"
    assert len(looked) == 2


async def test_a_bad_request_is_400(ours: AsyncOpenAI, theirs: AsyncAnthropic) -> None:
    with pytest.raises(openai.BadRequestError):
        await ours.chat.completions.create(model="m", messages=7)  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError):
        await ours.responses.create(model="m", input="Hi.", extra_body={"temperatur": 1})
    with pytest.raises(anthropic.BadRequestError):
        await theirs.messages.create(model="m", max_tokens=9, messages=7)  # type: ignore[call-overload]


async def test_a_path_that_is_not_there_is_404(ours: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await ours.embeddings.create(model="m", input="Hi.")


async def test_another_token_than_the_runs_is_401(model: BrowserLikeClient) -> None:
    with bind(LOOPBACK, 0) as listening:
        port = listening.getsockname()[1]
        async with serving({port: model.server.asgi_app(token="right")}, [listening]):
            url = f"http://{LOOPBACK}:{port}"
            async with AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.responses.create(model="m", input="Hi.")
            async with AsyncAnthropic(base_url=url, api_key="wrong", max_retries=0) as other:
                with pytest.raises(anthropic.AuthenticationError):
                    await other.messages.create(model="m", max_tokens=9, messages=ASKED)
            async with AsyncAnthropic(base_url=url, api_key="right", max_retries=0) as known:
                assert (await known.messages.create(model="m", max_tokens=1, messages=ASKED)).content is not None


async def test_a_full_queue_is_429_and_an_engine_that_dies_is_500(
    model: BrowserLikeClient, ours: AsyncOpenAI, theirs: AsyncAnthropic
) -> None:
    if not is_local(model):
        pytest.skip("it has no queue and no engine")
    engine = cast("LocalModel", model.server).engine
    long = asyncio.create_task(
        ours.responses.create(model="m", input="Count to a million.", max_output_tokens=900, temperature=0)
    )
    async with asyncio.timeout(60):
        while not engine.in_flight:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    with pytest.raises(openai.RateLimitError):
        await ours.responses.create(model="m", input="Hi.")
    with pytest.raises(anthropic.RateLimitError):
        await theirs.messages.create(model="m", max_tokens=9, messages=ASKED)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(openai.InternalServerError):
        await long
