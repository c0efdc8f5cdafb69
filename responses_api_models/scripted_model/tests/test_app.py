import asyncio
from pathlib import Path
from typing import Any

import pytest

from nemo_gym import PARENT_DIR, NeMoGymChatCompletion, NeMoGymResponse
from nemo_gym.errors import ConfigError
from nemo_gym.testing import TRANSPORTS, Transport, client_for, rows_of, running_servers, server_spec, servers_of
from responses_api_models.scripted_model.app import ScriptedModel

HELLO = {"input": "Hello there."}
CHAT_HELLO = {"messages": [{"role": "user", "content": "Hello there."}]}
MODEL_CONFIG = "responses_api_models/scripted_model/configs/scripted_model.yaml"
PUBLIC_ROWS = PARENT_DIR.parent / "shared/data/example_stateful_counter/example.jsonl"

REPLY = {
    "think": "They greet me.",
    "say": "Hello yourself.",
    "call": [{"name": "wave", "arguments": {"hands": 2}}, {"name": "bow", "arguments": "no JSON"}],
}


async def test_a_reply_in_the_responses_dialect() -> None:
    async with client_for(ScriptedModel, replies=[REPLY], model="parrot") as model:
        answer = await model.post("/v1/responses", json={**HELLO, "temperature": 0.5, "parallel_tool_calls": False})
    response = NeMoGymResponse.model_validate_json(answer.content())
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == "Hello yourself."
    made = [item.model_dump() for item in response.output[2:]]
    assert [(call["name"], call["arguments"]) for call in made] == [("wave", '{"hands":2}'), ("bow", "no JSON")]
    assert len({call["call_id"] for call in made}) == 2
    assert (response.model, response.status, response.incomplete_details) == ("parrot", "completed", None)
    assert (response.temperature, response.parallel_tool_calls) == (0.5, False)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (2, 5, 7)


async def test_a_reply_in_the_chat_dialect() -> None:
    async with client_for(ScriptedModel, replies=[REPLY]) as model:
        answer = await model.post("/v1/chat/completions", json=CHAT_HELLO)
    completion = NeMoGymChatCompletion.model_validate_json(answer.content())
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    said = choice.message.model_dump()
    assert (said["content"], said["reasoning_content"]) == ("Hello yourself.", "They greet me.")
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == ['{"hands":2}', "no JSON"]
    assert answer.json()["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}


async def test_a_reply_that_was_cut_off_says_so() -> None:
    async with client_for(ScriptedModel, replies=[{"say": "Hel", "incomplete": "max_output_tokens"}]) as model:
        response = (await model.post("/v1/responses", json=HELLO)).json()
        completion = (await model.post("/v1/chat/completions", json=CHAT_HELLO)).json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert completion["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("path", "body"), [("/v1/responses", HELLO), ("/v1/chat/completions", CHAT_HELLO)])
async def test_faults_come_and_go_as_the_script_says(path: str, body: dict[str, Any]) -> None:
    faults = [
        {"status": 429, "retry_after_s": 0.25, "times": 1},
        {"garbage": "<html>", "times": 1},
        {"status": 502, "garbage": "Bad gateway", "times": 1},
    ]
    async with client_for(ScriptedModel, replies=[*faults, {"say": "Better now."}]) as model:
        answers = [await model.post(path, json=body) for _ in range(4)]
    assert [answer.status for answer in answers] == [429, 200, 502, 200]
    assert answers[0].headers["Retry-After"] == "0.25"
    assert answers[0].json()["error"]["message"] == "The script answers 429."
    assert [answer.text for answer in answers[1:3]] == ["<html>", "Bad gateway"]
    assert "Better now." in answers[3].text


async def test_a_reply_takes_its_time_or_else_the_time_of_the_model() -> None:
    replies = [{"latency_s": 0, "turn": 0, "say": "Quick."}, {"say": "Late."}]
    async with client_for(ScriptedModel, latency_s=600, replies=replies) as model:
        assert (await model.post("/v1/responses", json=HELLO)).status == 200
        spoken = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hm."}]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(model.post("/v1/responses", json={"input": spoken}), 0.5)


async def test_a_script_without_a_reply_fails_as_the_model() -> None:
    async with client_for(ScriptedModel, replies=[{"user": "Goodbye", "say": "Bye."}]) as model:
        answer = await model.post("/v1/responses", json=HELLO)
    assert answer.status == 502
    assert answer.json()["error"]["cause"] == "model"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "either script_fpath"),
        ({"replies": [], "script_fpath": "x.jsonl"}, "either script_fpath"),
        ({"replies": [{"sya": "Hello."}]}, "sya"),
        ({"script_fpath": "x.jsonl"}, "No script 'x.jsonl'"),
    ],
)
async def test_a_model_needs_one_valid_script(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        async with running_servers([server_spec("policy_model", "responses_api_models", "scripted_model", **config)]):
            pass


async def play(
    agent: str, config: str, rows: Path | str, transport: Transport, **settings: Any
) -> list[dict[str, Any]]:
    """The scored rollouts of rows with the shipped script."""
    async with running_servers(servers_of(config, MODEL_CONFIG, **settings), transport=transport) as client:
        answers = [await client.post(agent, "/run", json=row) for row in rows_of(rows)]
        return [await answer.json() for answer in answers]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_shipped_script_asks_for_the_weather_of_the_city_in_each_example_row(transport: Transport) -> None:
    folder = "resources_servers/example_simple_weather"
    config, rows = f"{folder}/configs/simple_weather.yaml", f"{folder}/data/example.jsonl"
    played = await play("simple_weather_simple_agent", config, rows, transport)
    assert [scored["reward"] for scored in played] == [1.0] * 5
    said = [scored["response"]["output"][-1]["content"][0]["text"] for scored in played]
    cities = ["Bergen", "Buenos Aires", "Kraków", "Addis Ababa", "Saint-Malo"]
    assert said == [f"The weather in {city} is cold. Dress warmly." for city in cities]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param("resources_servers/example_stateful_counter/data/example.jsonl", id="own"),
        pytest.param(
            PUBLIC_ROWS,
            id="public",
            marks=pytest.mark.skipif(not PUBLIC_ROWS.is_file(), reason="the public rows are not on this machine"),
        ),
    ],
)
async def test_the_shipped_script_counts_in_each_example_row(rows: Path | str, transport: Transport) -> None:
    config = "resources_servers/example_stateful_counter/configs/stateful_counter.yaml"
    played = await play("stateful_counter_simple_agent", config, rows, transport)
    assert [scored["reward"] for scored in played] == [1.0] * 5
    expected = [row["expected_count"] for row in rows_of(rows)]
    said = [scored["response"]["output"][-1]["content"][0]["text"] for scored in played]
    assert said == [f"The counter stands at {count}." for count in expected]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_script_for_many_steps_solves_each_example_row(transport: Transport) -> None:
    folder = "resources_servers/example_multi_step"
    config, rows = f"{folder}/configs/example_multi_step.yaml", f"{folder}/data/example.jsonl"
    script = {"script_fpath": "responses_api_models/scripted_model/data/multi_step.jsonl"}
    settings = {"policy_model": {"responses_api_models": {"scripted_model": script}}}
    played = await play("example_multi_step_simple_agent", config, rows, transport, **settings)
    assert [(scored["reward"], scored["original_term_minefield_hit"]) for scored in played] == [(1.0, False)] * 5
    outputs = [item["output"] for item in played[0]["response"]["output"] if item["type"] == "function_call_output"]
    expected = rows_of(rows)[0]["expected_synonym_values"]
    assert outputs == [*(f'{{"synonym_value":{value}}}' for value in expected), '{"success":true}']
