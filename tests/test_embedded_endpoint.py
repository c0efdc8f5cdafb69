"""`openai_model` and `vllm_model` against an OpenAI-shaped endpoint that none of us wrote: llama.cpp's own server.

Its chat template here knows tools, so that the calls are made and read by that server, too.
"""

import json
from collections.abc import AsyncIterator, Sequence
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
        client_for(LocalModel, server_client=ServerClient(http=http, caller_key="this run"), **settings) as client,
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


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ODD = '<tool_call>\n{ "name" :"get_weather" , "arguments":{ "city" :"Oslo"} }\n</tool_call>'
END = "<|im_end|>"
TRAPS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "drift": [("It is unbelievably cold in Oslo.", {"temperature": 8.0, "top_k": 0, "min_p": 0.0}), ("Yes.", {})],
    "odd spacing": [(ODD, {}), ("It is cold.", {})],
    "reasoning": [(f"<think>\nhm\n</think>\n\n{CALL}", {}), ("<think>so</think>It is cold.", {}), ("Yes.", {})],
    "parallel calls": [(f"{CALL}\n{ODD}", {"max_tokens": 100}), ("Both are cold.", {})],
    "truncation": [("It is cold in Oslo and Bergen.", {"max_tokens": 3}), ("Yes.", {})],
    "stop string": [("It is cold in Oslo.", {"stop": ["cold"]}), ("Yes.", {})],
    "empty": [("It is cold.", {"stop": ["It"]}), ("Yes.", {})],
    "end token only": [("", {}), ("Yes.", {})],
}
"""What a grammar lets the model sample in each turn, in whichever tokens it likes, and the settings of the turn."""


@pytest.mark.parametrize("model", ["vllm_model_with_tokens"], indirect=True)
@pytest.mark.parametrize("trap", TRAPS)
async def test_in_token_mode_a_conversation_is_one_segment(
    model: BrowserLikeClient, embedded: BrowserLikeClient, trap: str
) -> None:
    """With llama.cpp as the engine, and its own template for what is new."""
    output: list[dict[str, Any]] = []
    replies: list[str] = []
    for text, settings in TRAPS[trap]:
        extra = {"grammar": f"root ::= {json.dumps(text)}", **settings}
        limit = {"max_output_tokens": extra.pop("max_tokens", 60), "temperature": extra.pop("temperature", 0)}
        asked = [{"role": "user", "content": "Hi."}, *output]
        said = await post(
            model, "/v1/responses", input=asked, tools=[WEATHER], metadata={"extra_body": json.dumps(extra)}, **limit
        )
        called = [item["call_id"] for item in said["output"] if item["type"] == "function_call"]
        heard = [{"type": "function_call_output", "call_id": each, "output": "cold"} for each in called]
        output += [*said["output"], *(heard or [{"role": "user", "content": "And?"}])]
        reply = "Result: cold" if heard else "And?"
        replies.append(f"<|im_start|>user\n{reply}{END}\n" * max(1, len(heard)))
    (segment,) = trace_of({"response": {"output": output}}).segments
    assert len(segment.calls) == len(TRAPS[trap])

    async def text_of(ids: Sequence[int]) -> str:
        found: str = (await engine_of(embedded).ask("/detokenize", {"tokens": [*ids]}))["content"]
        return found

    sampled = [await text_of(call.sampled_ids) for call in segment.calls]
    for (text, _), found in zip(TRAPS[trap], sampled, strict=True):
        assert text.startswith(found.removesuffix(END).removesuffix("<|endoftext|>"))
    expected = "".join(
        f"<|im_start|>assistant\n{found.removesuffix(END)}{END}\n{reply}"
        for found, reply in zip(sampled[:-1], replies, strict=False)
    )
    read = await text_of(segment.calls[-1].prompt_ids)
    assert read.endswith(f"<|im_start|>user\nHi.{END}\n{expected}<|im_start|>assistant\n")
    assert all(value <= 0 for call in segment.calls for value in call.log_probs)
