"""Rows from a seed: numbers to add to a counter or to take away from it, some of them several times."""

from collections.abc import Iterator
from random import Random
from typing import Any

from nemo_gym.base_resources_server import tool_schemas_of
from nemo_gym.data.generate import distinct_rows
from resources_servers.example_stateful_counter.app import StatefulCounterResourcesServer

STEPS = {
    1: "add {}",
    2: "add {} twice",
    3: "add {} three times",
    4: "add {} four times",
    -1: "take {} away",
    -2: "take {} away twice",
    -3: "take {} away three times",
    -4: "take {} away four times",
}
"""Words for each number of additions. A negative one is subtracted."""
ASKS = ("and tell me what the counter says.", "and read the counter.", "and tell me the count.")


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """There is one more number than the difficulty. Adding each number once is never right."""
    tools = tool_schemas_of(StatefulCounterResourcesServer)
    return distinct_rows(
        "example_stateful_counter",
        lambda chance, level: _row(chance, level, tools),
        seed=seed,
        count=count,
        difficulty=difficulty,
    )


def _row(chance: Random, level: int, tools: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = chance.sample(range(1, 50), level + 1)
    times = [chance.choice(list(STEPS)) for _ in numbers]
    change = sum(number * often for number, often in zip(numbers, times, strict=True))
    if change in {0, sum(numbers), *numbers}:
        return _row(chance, level, tools)
    start = chance.randint(0, 20)
    steps = ", then ".join(STEPS[often].format(number) for number, often in zip(numbers, times, strict=True))
    prompt = f"{steps.capitalize()}, {chance.choice(ASKS)}"
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": prompt}],
            "tools": tools,
        },
        "initial_count": start,
        "expected_count": start + change,
    }
