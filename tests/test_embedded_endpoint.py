"""`openai_model` and `vllm_model` against an OpenAI-shaped endpoint that none of us wrote: llama.cpp's own server.

Its chat template here knows tools, so that the calls are made and read by that server, too.
"""

import json
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any, cast

import openai
import pytest
import pytest_asyncio

from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.server.base import SimpleServer
from nemo_gym.testing import BrowserLikeClient, client_for
from nemo_gym.training import trace_of
from responses_api_models.local_model.app import LocalModel
from responses_api_models.local_model.engine import Engine
from responses_api_models.local_model.weights import INSTALL_COMMAND, weights_here
from responses_api_models.openai_model.app import SimpleModelServer
from responses_api_models.vllm_model.app import VLLMModel

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="no engine: pip install 'nemo-gym[local]'"),
    pytest.mark.skipif(weights_here() is None, reason=f"no weights: {INSTALL_COMMAND}"),
]

KINDS = ("openai_model", "vllm_model", "vllm_model_for_training", "local_model")
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL_ONE: dict[str, Any] = {"input": "Call one for Paris.", "tools": [WEATHER], "max_output_tokens": 48}
TOO_LONG = "hello " * 600


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedded() -> AsyncIterator[BrowserLikeClient]:
    template = "responses_api_models/local_model/tests/tools.jinja"
    settings = {"threads": 1, "context_tokens": 512, "num_concurrent_requests": 2, "chat_template_fpath": template}
    async with (
        HttpClient() as http,
        client_for(LocalModel, server_client=ServerClient(http=http), **settings) as client,
    ):
        yield client


def engine_of(client: BrowserLikeClient) -> Engine:
    return cast("LocalModel", client.server).engine


@pytest_asyncio.fixture(loop_scope="module", params=KINDS)
async def model(request: pytest.FixtureRequest, embedded: BrowserLikeClient) -> AsyncIterator[BrowserLikeClient]:
    if request.param == "local_model":
        yield embedded
        return
    engine, client = engine_of(embedded), embedded.server.server_client
    kind, config = settings_of(request.param, f"{engine.url}/v1", engine.api_key)
    async with client_for(kind, server_client=client, **config) as served:
        yield served


def settings_of(kind: str, url: str, key: str) -> tuple[type[SimpleServer], dict[str, Any]]:
    if kind == "openai_model":
        return SimpleModelServer, {"openai_base_url": url, "openai_api_key": key, "openai_model": "m"}
    with_tokens, protocol = kind.startswith("vllm_model_"), "tokens" if kind == "vllm_model_with_tokens" else "chat"
    training = {"return_token_id_information": with_tokens, "uses_reasoning_parser": True, "protocol": protocol}
    return VLLMModel, {"base_url": url, "api_key": key, "model": "m", **training}


async def post(client: BrowserLikeClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(path, json={"temperature": 0, "max_output_tokens": 6, **body})
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_it_replies_in_both_dialects(model: BrowserLikeClient) -> None:
    response = await post(model, "/v1/responses", input="Tell me a story.")
    (message,) = response["output"]
    completion = await post(
        model, "/v1/chat/completions", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=6
    )
    (choice,) = completion["choices"]
    assert message["content"][0]["text"] == choice["message"]["content"] != ""
    assert choice["finish_reason"] == "length"
    assert response["usage"]["output_tokens"] == completion["usage"]["completion_tokens"] == 6


async def test_a_tool_call_of_the_templates_own_kind_is_passed_on(model: BrowserLikeClient) -> None:
    (call,) = (await post(model, "/v1/responses", **CALL_ONE))["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert list(json.loads(call["arguments"])) == ["city"]
    answered = {"type": "function_call_output", "call_id": call["call_id"], "output": "cold"}
    asked = [{"role": "user", "content": CALL_ONE["input"]}, call, answered]
    assert (await post(model, "/v1/responses", input=asked, max_output_tokens=2))["output"]


async def test_the_openai_package_gets_a_stream(model: BrowserLikeClient) -> None:
    ask: Any = {
        "model": "m",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 6,
        "temperature": 0,
    }
    async with openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(**ask)
        chunks = await client.chat.completions.create(**ask, stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in chunks]
        assert "".join(texts) == whole.choices[0].message.content
        request_fields: Any = {"model": "m", "input": "Tell me a story.", "max_output_tokens": 2, "stream": True}
        events = [event.type async for event in await client.responses.create(**request_fields)]
        assert events[0] == "response.created"


async def test_a_conversation_that_does_not_fit_ends_incomplete(model: BrowserLikeClient) -> None:
    response = await post(model, "/v1/responses", input=TOO_LONG)
    assert (response["status"], response["output"]) == ("incomplete", [])
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    messages = [{"role": "user", "content": TOO_LONG}]
    assert (await post(model, "/v1/chat/completions", messages=messages))["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("model", ["vllm_model_for_training"], indirect=True)
async def test_the_tokens_are_those_of_the_text(model: BrowserLikeClient, embedded: BrowserLikeClient) -> None:
    engine = engine_of(embedded)
    (message,) = (await post(model, "/v1/responses", input="Tell me a story."))["output"]
    assert len(message["generation_token_ids"]) == len(message["generation_log_probs"]) == 6
    said = await engine.ask("/detokenize", {"tokens": message["generation_token_ids"]})
    assert said["content"] == message["content"][0]["text"]
    heard = await engine.ask("/detokenize", {"tokens": message["prompt_token_ids"]})
    assert heard["content"] == "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"
    (call,) = (await post(model, "/v1/responses", **CALL_ONE))["output"]
    said = await engine.ask("/detokenize", {"tokens": call["generation_token_ids"]})
    assert said["content"].startswith("<tool_call>")


@pytest.mark.parametrize("model", ["vllm_model_with_tokens"], indirect=True)
async def test_in_token_mode_a_conversation_is_one_segment(
    model: BrowserLikeClient, embedded: BrowserLikeClient
) -> None:
    """With llama.cpp as the engine, and its own template for what is new."""
    asked: list[dict[str, Any]] = [{"role": "user", "content": "Say hello."}]
    output: list[dict[str, Any]] = []
    for text in ("And in French?", "Bye."):
        said = (await post(model, "/v1/responses", input=asked, max_output_tokens=12))["output"]
        output += said
        asked += [*said, {"role": "user", "content": text}]
    output += (await post(model, "/v1/responses", input=asked, max_output_tokens=12))["output"]
    (segment,) = trace_of({"response": {"output": output}}).segments
    assert len(segment.calls) == 3
    read = await engine_of(embedded).ask("/detokenize", {"tokens": [*segment.calls[-1].prompt_ids]})
    assert read["content"].startswith("<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n")
    assert read["content"].endswith("<|im_start|>user\nBye.<|im_end|>\n<|im_start|>assistant\n")
    assert read["content"].count("<|im_start|>") == 6
    for call, item in zip(segment.calls, output, strict=True):
        said = await engine_of(embedded).ask("/detokenize", {"tokens": [*call.sampled_ids]})
        assert said["content"].removesuffix("<|im_end|>") == item["content"][0]["text"]
        assert all(value <= 0 for value in call.log_probs)
