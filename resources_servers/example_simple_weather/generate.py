"""Rows from a seed: questions about the weather of cities."""

from collections.abc import Iterator
from random import Random
from typing import Any

from nemo_gym.base_resources_server import tool_schemas_of
from nemo_gym.data.generate import distinct_rows
from nemo_gym.testing import calls
from resources_servers.example_simple_weather.app import SimpleWeatherResourcesServer

DEVELOPER = "You help people plan their day. Look the weather up with the tool before you give advice."
CITIES = (
    *("Accra", "Bergen", "Cusco", "Dakar", "Essen", "Fez", "Galway", "Hanoi", "Izmir", "Jaipur", "Kyoto", "Lima"),
    *("Malmö", "Nairobi", "Oslo", "Perth", "Quito", "Riga", "Seoul", "Tunis", "Utrecht", "Varna", "Wellington"),
)
QUESTIONS = (
    "Do I need a coat in {}?",
    "What is the weather like in {}?",
    "Is it warm enough for a picnic in {}?",
    "I am off to {} tomorrow. What should I wear?",
    "Can my plants stay outside in {} tonight?",
)


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """The difficulty is the number of cities."""
    tools = tool_schemas_of(SimpleWeatherResourcesServer)
    return distinct_rows(
        "example_simple_weather",
        lambda chance, level: _row(chance, level, tools),
        seed=seed,
        count=count,
        difficulty=difficulty,
    )


def _row(chance: Random, level: int, tools: list[dict[str, Any]]) -> dict[str, Any]:
    cities = chance.sample(CITIES, level)
    listed = cities[0] if level == 1 else f"{', '.join(cities[:-1])} and {cities[-1]}"
    return {
        "responses_create_params": {
            "input": [
                {"role": "developer", "content": DEVELOPER},
                {"role": "user", "content": chance.choice(QUESTIONS).format(listed)},
            ],
            "tools": tools,
        },
        "gold_response": [
            calls("get_weather", {"city": city}, call_id=f"call_{number}") for number, city in enumerate(cities)
        ],
    }
