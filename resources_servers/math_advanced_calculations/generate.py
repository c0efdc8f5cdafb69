"""Rows from a seed: expressions whose values, as the calculators give them, are finite and of a readable size."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from nemo_gym.row_generators import distinct_rows
from resources_servers.math_advanced_calculations.expressions import evaluate
from resources_servers.math_advanced_calculations.schemas import tool_schemas

LARGEST = 1e9
BINARY = ("({} + {})", "({} - {})", "({} * {})", "({} / {})", "({} ** {})", "log({}, {})")
UNARY = ("sin({})", "cos({})", "-({})")


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """The difficulty is how deep expressions are nested, and there are up to one more of them than that."""
    made = distinct_rows("math_advanced_calculations", _row, seed=seed, count=count, difficulty=difficulty)
    return ({"id": number, **row} for number, row in enumerate(made))


def _row(chance: Random, level: int) -> dict[str, Any]:
    breadth = chance.randint(1, level + 1)
    expressions = [_expression(chance, level) for _ in range(breadth)]
    listed = expressions[0] if breadth == 1 else f"{', '.join(expressions[:-1])} and {expressions[-1]}"
    prompt = f"With the given tools alone, work out {listed}."
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": prompt}],
            "tools": tool_schemas(),
            "parallel_tool_calls": False,
            "temperature": 1.0,
        },
        "ground_truth": json.dumps(evaluate(prompt).values),
        "depth": level,
        "breadth": breadth,
    }


def _expression(chance: Random, depth: int) -> str:
    while True:
        expression = _nested(chance, depth)
        try:
            [value] = evaluate(f"work out {expression}").values
        except (ValueError, ArithmeticError):
            continue
        if abs(value) <= LARGEST:
            return expression


def _nested(chance: Random, depth: int) -> str:
    if depth == 0:
        return "pi" if chance.random() < 0.1 else f"{chance.randint(1, 10)}.0"
    if chance.random() < 0.3:
        return chance.choice(UNARY).format(_nested(chance, depth - 1))
    parts = [_nested(chance, depth - 1), _nested(chance, chance.randrange(depth))]
    chance.shuffle(parts)
    return chance.choice(BINARY).format(*parts)
