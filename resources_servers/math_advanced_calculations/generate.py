"""Rows from a seed: expressions whose values, as the calculators give them, are finite and of a readable size. No
value is the result of a single call with numbers of the prompt, so trying all such calls earns nothing."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from random import Random
from typing import Any

from nemo_gym.data.generate import distinct_rows
from resources_servers.math_advanced_calculations.calculators import calculate
from resources_servers.math_advanced_calculations.expressions import evaluate
from resources_servers.math_advanced_calculations.schemas import tool_schemas

LARGEST = 1e9
BINARY = ("({} + {})", "({} - {})", "({} * {})", "({} / {})", "({} ** {})", "log({}, {})")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
UNARY = ("sin({})", "cos({})", "-({})")


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """Expressions are nested one deeper than the difficulty, and there are up to as many of them."""
    made = distinct_rows("math_advanced_calculations", _row, seed=seed, count=count, difficulty=difficulty)
    return ({"id": number, **row} for number, row in enumerate(made))


def _row(chance: Random, level: int) -> dict[str, Any]:
    depth, breadth = level + 1, chance.randint(1, level + 1)
    prompt = _prompt(chance, depth, breadth)
    while single_calls(prompt) & {*evaluate(prompt).values}:
        prompt = _prompt(chance, depth, breadth)
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": prompt}],
            "tools": tool_schemas(),
            "parallel_tool_calls": False,
            "temperature": 1.0,
        },
        "ground_truth": json.dumps(evaluate(prompt).values),
        "depth": depth,
        "breadth": breadth,
    }


def _prompt(chance: Random, depth: int, breadth: int) -> str:
    expressions = [_expression(chance, depth) for _ in range(breadth)]
    listed = expressions[0] if breadth == 1 else f"{', '.join(expressions[:-1])} and {expressions[-1]}"
    return f"With the given tools alone, work out {listed}."


def single_calls(prompt: str) -> set[float]:
    """The numbers of a prompt, with pi as the tool gives it, and all that one call of a tool makes of them."""
    numbers = {float(number) for number in _NUMBER.findall(prompt)} | {calculate("pi", {})}
    found = set(numbers)
    for tool in tool_schemas():
        names = tool["parameters"]["required"]
        for values in product(numbers, repeat=len(names)):
            with suppress(ValueError, ArithmeticError):
                found.add(calculate(tool["name"], dict(zip(names, values, strict=True))))
    return found


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
