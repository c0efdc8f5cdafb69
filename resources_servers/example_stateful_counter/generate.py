"""Rows from a seed: numbers to add to a counter."""

from collections.abc import Iterator
from random import Random
from typing import Any

from nemo_gym.base_resources_server import tool_schemas_of
from nemo_gym.row_generators import distinct_rows
from resources_servers.example_stateful_counter.app import StatefulCounterResourcesServer

ASKS = ("and tell me what the counter says.", "and read the counter.", "and tell me the count.")


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """There is one more number than the difficulty; from 3 on some are negative."""
    tools = tool_schemas_of(StatefulCounterResourcesServer)
    return distinct_rows(
        "example_stateful_counter",
        lambda chance, level: _row(chance, level, tools),
        seed=seed,
        count=count,
        difficulty=difficulty,
    )


def _row(chance: Random, level: int, tools: list[dict[str, Any]]) -> dict[str, Any]:
    lowest = 1 if level < 3 else -20
    numbers = [chance.choice([number for number in range(lowest, 50) if number]) for _ in range(level + 1)]
    start = chance.randint(0, 20)
    added = ", then ".join(f"add {number}" for number in numbers)
    prompt = f"{added.capitalize()}, {chance.choice(ASKS)}"
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": prompt}],
            "tools": tools,
        },
        "initial_count": start,
        "expected_count": start + sum(numbers),
    }
