from pathlib import Path
from typing import Any

import pytest

from nemo_gym.testing import calls, client_for, example_row, response_of, rows_of, says
from resources_servers.example_simple_weather.app import SimpleWeatherResourcesServer
from tests.example_rows import row_files

RESPONSES: list[dict[str, Any]] = [
    says("It is cold."),
    says(""),
    response_of(),
    response_of(calls("get_weather", "no JSON")),
    response_of({"type": "message", "role": "user", "content": "a user's message in the output"}),
    response_of(incomplete_details={"reason": "max_output_tokens"}, status="incomplete"),
]


@pytest.mark.parametrize("city", ["Oslo", "", "Kraków", 'a "quoted" {city}', "x" * 10_000])
async def test_the_weather_of_any_city_is_cold(city: str) -> None:
    async with client_for(SimpleWeatherResourcesServer) as environment:
        answer = await environment.post("/get_weather", json={"city": city})
    assert answer.status == 200
    assert answer.json() == {"city": city, "weather_description": f"The weather in {city} is cold."}


async def test_a_tool_answers_in_compact_json() -> None:
    async with client_for(SimpleWeatherResourcesServer) as environment:
        answer = await environment.post("/get_weather", json={"city": "Oslo"})
    assert answer.text == '{"city":"Oslo","weather_description":"The weather in Oslo is cold."}'


@pytest.mark.parametrize("arguments", [{}, {"city": None}, {"city": 7}, {"city": ["Oslo"]}, {"town": "Oslo"}, []])
async def test_arguments_that_do_not_fit_are_refused_in_detail(arguments: Any) -> None:
    async with client_for(SimpleWeatherResourcesServer) as environment:
        answer = await environment.post("/get_weather", json=arguments)
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"][0] == "body"


async def test_an_unknown_tool_is_not_found() -> None:
    async with client_for(SimpleWeatherResourcesServer) as environment:
        answer = await environment.post("/get_wheather", json={"city": "Oslo"})
    assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize("response", RESPONSES)
async def test_whatever_the_output_the_reward_is_one(response: dict[str, Any]) -> None:
    async with client_for(SimpleWeatherResourcesServer) as environment:
        answer = await environment.post("/verify", json=example_row(response=response))
    assert answer.status == 200
    assert answer.json()["reward"] == 1.0


async def test_an_answer_holds_the_row_the_response_and_the_reward_and_no_other_field_of_the_row() -> None:
    row = example_row("Cold in Oslo?", response=says("Yes."), id=7, note="dropped")
    async with client_for(SimpleWeatherResourcesServer) as environment:
        scored = (await environment.post("/verify", json=row)).json()
    assert set(scored) == {"responses_create_params", "response", "reward"}
    assert scored["responses_create_params"]["input"][0]["content"] == "Cold in Oslo?"
    assert scored["response"]["output"][0]["content"][0]["text"] == "Yes."


async def test_a_row_with_an_unknown_request_field_is_refused() -> None:
    row = example_row(response=says("Yes."))
    row["responses_create_params"]["temprature"] = 1.0
    async with client_for(SimpleWeatherResourcesServer) as environment:
        answer = await environment.post("/verify", json=row)
    assert answer.status == 422


async def test_any_row_seeds_and_the_answer_is_empty() -> None:
    async with client_for(SimpleWeatherResourcesServer) as environment:
        answers = [await environment.post("/seed_session", json=row) for row in (example_row(), example_row(id=1), {})]
    assert [(answer.status, answer.json()) for answer in answers] == [(200, {})] * 3


@pytest.mark.parametrize(
    "path",
    row_files("example_simple_weather"),
)
async def test_every_example_row_offers_the_one_tool_and_is_scored(path: Path) -> None:
    rows = rows_of(path)
    assert len(rows) == 5
    async with client_for(SimpleWeatherResourcesServer) as environment:
        for row in rows:
            assert [tool["name"] for tool in row["responses_create_params"]["tools"]] == ["get_weather"]
            answer = await environment.post("/verify", json={**row, "response": says("It is cold.")})
            assert answer.json()["reward"] == 1.0
