"""The real engine with a real model. What it says is its own; what is tested is that it says it properly."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import openai
import orjson
import pytest
import pytest_asyncio

from nemo_gym import NeMoGymResponseCreateParamsNonStreaming, ServerClient
from nemo_gym.client.pool import HttpClient
from nemo_gym.errors import MissingExtraError, StartupError
from nemo_gym.llm_api.responses_chat import chat_params
from nemo_gym.testing import BrowserLikeClient, Stack, StackSpec, client_for, rows_of, server_spec
from responses_api_models.local_model.app import LocalModel
from responses_api_models.local_model.engine import Engine
from responses_api_models.local_model.tool_text import offer_of
from responses_api_models.local_model.weights import INSTALL_COMMAND, weights_here
from tests.polling import PATIENCE_S

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="no engine: pip install 'nemo-gym[local]'"),
    pytest.mark.skipif(weights_here() is None, reason=f"no weights: {INSTALL_COMMAND}"),
]

ROWS = "resources_servers/example_simple_weather/data/example.jsonl"
SETTINGS: dict[str, Any] = {
    "threads": 1,
    "context_tokens": 512,
    "num_concurrent_requests": 3,
    "max_output_tokens": 8,
    "max_tool_turns": 2,
}
ASKED = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[BrowserLikeClient]:
    async with (
        HttpClient() as http,
        client_for(LocalModel, server_client=ServerClient(http=http), **SETTINGS) as client,
    ):
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def training_model() -> AsyncIterator[BrowserLikeClient]:
    trained = {"return_token_id_information": True}
    async with (
        HttpClient() as http,
        client_for(
            LocalModel, server_client=ServerClient(http=http, caller_key="key"), **SETTINGS, **trained
        ) as client,
    ):
        yield client


def engine_of(client: BrowserLikeClient) -> Engine:
    return cast("LocalModel", client.server).engine


async def respond(client: BrowserLikeClient, asked: Any = ASKED, **params: Any) -> dict[str, Any]:
    answer = await client.post("/v1/responses", json={"input": asked, "temperature": 0, **params})
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def chat(client: BrowserLikeClient, asked: str = ASKED, **params: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": asked}]
    answer = await client.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, **params})
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def text_of(response: dict[str, Any]) -> str:
    (message,) = (item for item in response["output"] if item["type"] == "message")
    return str(message["content"][0]["text"])


def call_of(response: dict[str, Any]) -> dict[str, Any]:
    (call,) = response["output"]
    assert call["type"] == "function_call", call
    return dict(call)


async def test_it_replies_alike_in_both_dialects(model: BrowserLikeClient) -> None:
    response, completion = await respond(model, metadata={"seed": "1"}), await chat(model, seed=1)
    (choice,) = completion["choices"]
    assert text_of(response) == choice["message"]["content"] != ""
    assert response["model"] == completion["model"] == "SmolLM2-135M-Instruct.Q4_1"
    assert response["usage"]["input_tokens"] == completion["usage"]["prompt_tokens"] > 8
    assert response["usage"]["output_tokens"] == completion["usage"]["completion_tokens"] <= 8


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_same_seed_gives_the_same_reply(model: BrowserLikeClient, temperature: float) -> None:
    settings = {"temperature": temperature, "max_output_tokens": 12}
    first, again, other = [
        text_of(await respond(model, metadata={"seed": seed}, **settings)) for seed in ("7", "7", "8")
    ]
    assert again == first
    assert (other == first) is (temperature == 0)


async def test_a_seed_that_is_no_number_is_refused(model: BrowserLikeClient) -> None:
    answer = await model.post("/v1/responses", json={"input": ASKED, "metadata": {"seed": "seven"}})
    assert answer.status == 400
    assert "metadata.seed" in answer.text


async def test_a_reply_that_is_cut_off_is_incomplete(model: BrowserLikeClient) -> None:
    response, completion = await respond(model, max_output_tokens=2), await chat(model, max_completion_tokens=2)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 2
    assert completion["choices"][0]["finish_reason"] == "length"


async def test_a_reply_ends_before_a_stop_word(model: BrowserLikeClient) -> None:
    whole = (await chat(model, seed=1))["choices"][0]["message"]["content"]
    words = whole.split()
    assert len(words) > 2, whole
    choice = (await chat(model, seed=1, stop=[words[2]]))["choices"][0]
    assert choice["message"]["content"] == whole[: whole.index(words[2])]
    assert choice["finish_reason"] == "stop"


async def test_a_conversation_that_does_not_fit_ends_incomplete(
    model: BrowserLikeClient, training_model: BrowserLikeClient
) -> None:
    for client in (model, training_model):
        response = await respond(client, "hello " * 600)
        assert (response["status"], response["output"]) == ("incomplete", [])
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_reply_is_held_to_a_schema(model: BrowserLikeClient) -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    text = {"format": {"type": "json_schema", "name": "year", "schema": schema}}
    found = json.loads(text_of(await respond(model, "When did the war end?", text=text, max_output_tokens=40)))
    assert isinstance(found["year"], int)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
async def test_a_tool_is_called_as_its_schema_says(model: BrowserLikeClient, choice: Any) -> None:
    response = await respond(model, "Weather in Oslo?", tools=[WEATHER], tool_choice=choice, max_output_tokens=40)
    call = call_of(response)
    assert call["name"] == "get_weather"
    assert list(json.loads(call["arguments"])) == ["city"]


async def test_where_no_tool_may_be_called_the_model_answers(model: BrowserLikeClient) -> None:
    response = await respond(model, "Weather in Oslo?", tools=[WEATHER], tool_choice="none")
    assert "{" not in text_of(response)


CALLED = [
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "cold"},
]
OSLO = {"role": "user", "content": "Weather in Oslo?"}


@pytest.mark.parametrize(
    ("asked", "choice", "may_call"),
    [
        ([OSLO, *CALLED, *CALLED], "auto", False),
        ([OSLO, *CALLED], "auto", True),
        ([OSLO, *CALLED, *CALLED, OSLO], "auto", True),
        ([OSLO, *CALLED, *CALLED], "required", True),
    ],
)
async def test_after_the_maximum_of_turns_with_calls_the_model_may_only_answer(
    asked: list[Any], choice: str, may_call: bool
) -> None:
    config = LocalModel.config_class().model_validate(
        {"name": "m", "host": "", "port": 0, "entrypoint": "", "max_tool_turns": 2}
    )
    params = NeMoGymResponseCreateParamsNonStreaming(input=asked, tools=[WEATHER], tool_choice=choice)
    fields = LocalModel(config=config, server_client=ServerClient())._params(chat_params(params))
    assert bool(offer_of(fields).allowed) is may_call


async def test_the_model_plays_an_environment(model: BrowserLikeClient) -> None:
    """Whether it calls the tool is the model's own decision; that it comes to an end is not."""
    refs: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "weather"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    servers = [
        server_spec("weather", "resources_servers", "example_simple_weather", domain="agent"),
        server_spec("agent", "responses_api_agents", "simple_agent", **refs),
    ]
    row = rows_of(ROWS)[3]
    row["responses_create_params"] |= {"temperature": 0, "max_output_tokens": 24}
    async with Stack(StackSpec(servers, addresses={"policy_model": model.url})) as stack:
        record = await (await stack.client.post("agent", "/run", json=row)).json()
    assert record.get("reward") == 1.0, record
    kinds = [item["type"] for item in record["response"]["output"]]
    assert kinds.count("function_call") <= SETTINGS["max_tool_turns"]
    assert kinds[-1] == "message"
    call, result = record["response"]["output"][:2]
    assert (call["type"], call["name"], result["type"]) == ("function_call", "get_weather", "function_call_output")
    assert json.loads(call["arguments"])["city"] in result["output"]
    assert record["response"]["usage"]["output_tokens"] > 8


async def test_tokens_and_log_probs_are_those_of_the_text(training_model: BrowserLikeClient) -> None:
    (item,) = (await respond(training_model, max_output_tokens=8))["output"]
    ids, log_probs = item["generation_token_ids"], item["generation_log_probs"]
    assert len(ids) == len(log_probs) == 8
    assert all(value <= 0 for value in log_probs)
    engine = engine_of(training_model)
    assert (await engine.ask("/detokenize", {"tokens": ids}))["content"] == item["content"][0]["text"]
    prompt = (await engine.ask("/detokenize", {"tokens": item["prompt_token_ids"]}))["content"]
    assert prompt.endswith(f"user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n")


async def test_a_stop_word_leaves_tokens_and_log_probs_alike(training_model: BrowserLikeClient) -> None:
    whole = (await chat(training_model))["choices"][0]["message"]
    stop = whole["content"].split()[2]
    message = (await chat(training_model, stop=stop))["choices"][0]["message"]
    count = len(message["generation_token_ids"])
    assert 0 < count == len(message["generation_log_probs"]) < len(whole["generation_token_ids"])
    assert message["generation_token_ids"] == whole["generation_token_ids"][:count]


async def test_every_token_has_a_log_prob_though_several_make_one_character(training_model: BrowserLikeClient) -> None:
    """The same reply cut off after each of its tokens, most of which end inside a character."""
    grammar = 'root ::= "a🎉b日本"'
    lengths = range(1, 13)
    replies = [
        (await chat(training_model, grammar=grammar, max_tokens=length))["choices"][0]["message"] for length in lengths
    ]
    whole_ids, whole_log_probs = replies[-1]["generation_token_ids"], replies[-1]["generation_log_probs"]
    assert "🎉" in replies[-1]["content"]
    for length, reply in zip(lengths, replies, strict=True):
        ids, log_probs = reply["generation_token_ids"], reply["generation_log_probs"]
        assert len(ids) == len(log_probs) == min(length, len(whole_ids))
        assert ids == whole_ids[:length]
        assert log_probs == pytest.approx(whole_log_probs[:length], abs=0.05)


async def test_each_turn_extends_the_tokens_of_the_turn_before(training_model: BrowserLikeClient) -> None:
    asked = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Weather in Oslo?"}]
    common = {"tools": [WEATHER], "max_output_tokens": 40}
    call = call_of(await respond(training_model, asked, tool_choice="required", **common))
    first = [*call["prompt_token_ids"], *call["generation_token_ids"]]
    answered = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"weather": "cold"}'}
    (message,) = (await respond(training_model, [*asked, call, answered], tool_choice="none", **common))["output"]
    assert message["prompt_token_ids"][: len(first)] == first
    second = [*message["prompt_token_ids"], *message["generation_token_ids"]]
    thanks = {"role": "user", "content": "Thanks!"}
    (last,) = (await respond(training_model, [*asked, call, answered, message, thanks], tools=[WEATHER]))["output"]
    assert last["prompt_token_ids"][: len(second)] == second
    added = await engine_of(training_model).ask("/detokenize", {"tokens": last["prompt_token_ids"][len(second) :]})
    assert "Thanks!" in added["content"]


async def test_log_probs_are_returned_if_requested(model: BrowserLikeClient) -> None:
    completion = await chat(model, logprobs=True, top_logprobs=2, max_tokens=3)
    entries = completion["choices"][0]["logprobs"]["content"]
    assert len(entries) == 3
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in entries)
    response = await respond(model, max_output_tokens=3, include=["message.output_text.logprobs"])
    fields = response["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in fields] == [entry["token"] for entry in entries]


async def test_requests_at_once_get_the_answers_they_would_get_alone(model: BrowserLikeClient) -> None:
    questions = ["What is tea?", "Who was Plato?", "Where is Peru?"]
    alone = [text_of(await respond(model, question, metadata={"seed": "3"})) for question in questions]
    together = await asyncio.gather(*(respond(model, question, metadata={"seed": "3"}) for question in questions))
    assert [text_of(response) for response in together] == alone


async def test_work_for_a_client_that_goes_away_ends(model: BrowserLikeClient) -> None:
    endless = asyncio.create_task(chat(model, "Tell me a story.", max_tokens=450, ignore_eos=True))
    await until_busy(model, True)
    endless.cancel()
    await until_busy(model, False)


async def until_busy(client: BrowserLikeClient, expected: bool) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await is_busy(client) != expected:  # noqa: ASYNC110 - the engine tells only when asked
            await asyncio.sleep(0.01)


async def is_busy(client: BrowserLikeClient) -> bool:
    engine = engine_of(client)
    key = {"Authorization": f"Bearer {engine.api_key}"}
    answer = await client.http.fetch("GET", f"{engine.url}/slots", headers=key, timeout_s=PATIENCE_S)
    return any(slot["is_processing"] for slot in orjson.loads(answer.content()))


async def test_the_openai_package_drives_it(model: BrowserLikeClient) -> None:
    ask: dict[str, Any] = {"model": "any", "temperature": 0, "seed": 1}
    messages: Any = [{"role": "user", "content": ASKED}]
    async with openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="none", max_retries=0) as client:
        completion = await client.chat.completions.create(messages=messages, **ask)
        expected = completion.choices[0].message.content
        chunks = await client.chat.completions.create(messages=messages, stream=True, **ask)
        parts = [chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices]
        assert "".join(parts) == expected
        events = await client.responses.create(model="any", input=ASKED, stream=True, temperature=0)
        last = [event async for event in events][-1]
        assert last.type == "response.incomplete"
    assert await asyncio.to_thread(said_to_a_plain_client, f"{model.url}/v1", ask) == expected


def said_to_a_plain_client(url: str, ask: dict[str, Any]) -> str | None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        content: str | None = (
            client.chat.completions.create(messages=[{"role": "user", "content": ASKED}], **ask)
            .choices[0]
            .message.content
        )
        return content


async def test_an_engine_that_died_is_started_again(training_model: BrowserLikeClient) -> None:
    await respond(training_model, max_output_tokens=1)
    engine = engine_of(training_model)
    first = engine.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while engine.pid is not None:  # noqa: ASYNC110 - a death is noticed, not told
            await asyncio.sleep(0.01)
    assert text_of(await respond(training_model, max_output_tokens=2))
    assert engine.pid not in (None, first)


async def test_a_request_too_many_is_refused() -> None:
    settings = {**SETTINGS, "num_concurrent_requests": 1, "max_queued_requests": 0}
    async with (
        HttpClient() as http,
        client_for(LocalModel, server_client=ServerClient(http=http), **settings) as client,
    ):
        endless = asyncio.create_task(chat(client, "Tell me a story.", max_tokens=450, ignore_eos=True))
        await until_busy(client, True)
        refused = await client.post("/v1/responses", json={"input": ASKED})
        endless.cancel()
        await until_busy(client, False)
        assert text_of(await respond(client))
    assert refused.status == 429
    assert "max_queued_requests" in refused.text


async def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF, but not really")
    async with HttpClient() as http:
        with pytest.raises(StartupError, match=r"could not load .*wrong\.gguf"):
            async with client_for(LocalModel, server_client=ServerClient(http=http), gguf_fpath=str(wrong)):
                pass


async def test_without_the_engine_the_error_has_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xllamacpp", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nemo-gym\[local\]'"):
        async with client_for(LocalModel):
            pass
