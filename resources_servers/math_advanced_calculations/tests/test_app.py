"""The calculators, the exact comparison, and rows solved and cheated on through the agent."""

import json
import math
import re
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.testing import (
    calls,
    client_for,
    example_row,
    message,
    response_of,
    rows_of,
    server_spec,
    tool_output,
)
from resources_servers.math_advanced_calculations.app import MathAdvancedCalculationsResourcesServer
from resources_servers.math_advanced_calculations.calculators import CALCULATORS, calculate
from resources_servers.math_advanced_calculations.expressions import evaluate
from resources_servers.math_advanced_calculations.generate import generate_rows
from resources_servers.math_advanced_calculations.schemas import tool_schemas
from tests.example_rows import WITH_PUBLIC_DATA, own_rows, public_rows, row_files
from tests.stacks import rollout_of, verified_by

OWN_ROWS, ROWS = own_rows("math_advanced_calculations"), row_files("math_advanced_calculations")
ROW = example_row(id=0, ground_truth="[5.2]", depth=1, breadth=1)

numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)


@settings(deadline=None)
@given(numbers, numbers)
def test_each_calculator_follows_its_rule(a: float, b: float) -> None:
    rules = {
        "add": (a + b) + 1.2,
        "subtract": (a - b) - 3,
        "multiply": (1.1 * a) * b,
    }
    for name, expected in rules.items():
        assert calculate(name, {"a": a, "b": b}) == expected
    if abs(b) > 1e-9:
        assert calculate("divide", {"a": a, "b": b}) == (0.5 * a) / b
    assert calculate("sin", {"radians": a}) == math.cos(a)
    assert calculate("cos", {"radians": a}) == math.sin(a)
    assert calculate("negate", {"a": a}) == calculate("return_constant", {"a": a}) == a
    assert calculate("pi", {}) == 2.718281828459045


@settings(deadline=None)
@given(st.floats(min_value=0.1, max_value=100), st.floats(min_value=-20, max_value=20))
def test_power_and_logarithm_follow_theirs(a: float, b: float) -> None:
    assert calculate("power", {"a": a, "b": b}) == a ** (b + 2)
    if abs(b + 1.5) not in (0.0, 1.0):
        assert calculate("log", {"a": a, "base": b}) == math.log(a, abs(b + 1.5))


@pytest.mark.parametrize(
    ("name", "arguments", "status", "solution"),
    [
        ("add", {"a": 1, "b": 2}, 200, 4.2),
        ("add", {"a": "1", "b": " 2.0 "}, 200, 4.2),
        ("add", {"a": True, "b": 2}, 200, 4.2),
        ("add", {"a": 1, "b": 2, "base": None, "unknown": [1]}, 200, 4.2),
        ("pi", {}, 200, math.e),
        ("pi", {"a": None}, 200, math.e),
        ("log", {"a": 6.0, "base": -5.0}, 200, math.log(6.0, 3.5)),
        ("add", {"a": 1}, 500, None),
        ("add", {"a": 1, "b": 2, "radians": 3}, 500, None),
        ("add", {}, 500, None),
        ("pi", {"a": 1}, 500, None),
        ("divide", {"a": 1, "b": 0}, 500, None),
        ("log", {"a": -1, "base": 2}, 500, None),
        ("log", {"a": 1, "base": -0.5}, 500, None),
        ("log", {"a": 1, "base": -1.5}, 500, None),
        ("power", {"a": 10, "b": 1000}, 500, None),
        ("power", {"a": -2, "b": 0.5}, 500, None),
        ("power", {"a": 0, "b": -3}, 500, None),
        ("multiply", {"a": 1e308, "b": 1e308}, 500, None),
        ("add", {"a": "inf", "b": 1}, 500, None),
        ("sin", {"radians": "nan"}, 500, None),
        ("sin", {"radians": "inf"}, 500, None),
        ("add", {"a": "two", "b": 1}, 422, None),
        ("add", {"a": [1], "b": 1}, 422, None),
        ("add", {"a": {}, "b": 1}, 422, None),
        ("modulo", {"a": 1, "b": 2}, 404, None),
        ("__class__", {"a": 1}, 404, None),
    ],
)
async def test_a_call_has_a_solution_or_a_reason(name: str, arguments: Any, status: int, solution: Any) -> None:
    async with client_for(MathAdvancedCalculationsResourcesServer) as environment:
        answer = await environment.post(f"/{name}", json=arguments)
    assert answer.status == status, answer.text
    if status == 200:
        assert answer.json() == {"solution": solution}
    else:
        assert answer.json()["detail"]
        assert "solution" not in answer.json()
    if status == 404:
        assert answer.json() == {"detail": "Function not found"}


async def reward_of(outputs: list[Any], ground_truth: Any = "[5.2]", **fields: Any) -> float:
    texts = [output if isinstance(output, str) else json.dumps(output) for output in outputs]
    items = [calls("add", call_id="call_test"), *map(tool_output, texts)]
    row = {**ROW, "ground_truth": ground_truth, "response": response_of(*items), **fields}
    record = await verified_by(MathAdvancedCalculationsResourcesServer, row)
    assert set(record) == {"responses_create_params", "response", "reward"}
    return float(record["reward"])


@pytest.mark.parametrize(
    ("outputs", "ground_truth", "reward"),
    [
        ([{"solution": 5.2}], "[5.2]", 1.0),
        ([{"solution": 5.2}], [5.2], 1.0),
        ([{"solution": "5.2"}], "[5.2]", 1.0),
        ([{"solution": 5.200000000001}], "[5.2]", 0.0),
        ([{"solution": 5.2}], "[5.2, 5.2]", 1.0),
        ([{"solution": 1.0}, {"solution": 5.2}, {"solution": 3}], "[3.0, 5.2]", 1.0),
        ([{"solution": 5.2}], "[5.2, 1.0]", 0.0),
        ([], "[]", 1.0),
        ([{"solution": 1.0}], "[]", 1.0),
        ([], "[5.2]", 0.0),
        (["5.2", "no JSON", "[5.2]", "null", '{"solution": null}', '{"solution": [5.2]}'], "[5.2]", 0.0),
        (["[" * 100_000, f'{{"solution": {"9" * 5000}}}', f'{{"solution": "{"9" * 5000}"}}'], "[5.2]", 0.0),
        (["no JSON"], "[null]", 0.0),
        ([{"solution": "nan"}], "[NaN]", 0.0),
        ([{"solution": 5.2}], "no JSON", 0.0),
        ([{"solution": 5.2}], "5.2", 0.0),
        ([{"solution": 5.2}], '{"a": 5.2}', 0.0),
        ([{"detail": "Function not found"}], "[5.2]", 0.0),
    ],
)
async def test_every_expected_number_must_have_come_out_of_a_tool(
    outputs: list[Any], ground_truth: Any, reward: float
) -> None:
    assert await reward_of(outputs, ground_truth) == reward


async def test_the_final_message_is_not_read() -> None:
    said = response_of(message("The value is 5.2: {'solution': 5.2}"))
    assert await reward_of([], response=said) == 0.0


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_survives_its_way_through_the_answer(number: float) -> None:
    from nemo_gym.llm_api.json_codec import encode

    assert json.loads(encode({"solution": number}))["solution"] == number


@pytest.mark.parametrize("field", ["id", "ground_truth", "depth", "breadth"])
async def test_every_field_of_a_row_is_required(field: str) -> None:
    row = {name: value for name, value in ROW.items() if name != field}
    async with client_for(MathAdvancedCalculationsResourcesServer) as environment:
        assert (await environment.post("/verify", json={**row, "response": response_of()})).status == 422


def test_all_calculators_are_described_with_their_arguments() -> None:
    assert [schema["name"] for schema in tool_schemas()] == list(CALCULATORS)
    for schema in tool_schemas():
        calculate(schema["name"], dict.fromkeys(schema["parameters"]["required"], 2.0))


@WITH_PUBLIC_DATA
def test_our_schemas_offer_what_the_public_ones_do() -> None:
    public = rows_of(public_rows("math_advanced_calculations"))[0]["responses_create_params"]["tools"]
    shapes = [
        [(tool["name"], tool["parameters"]["required"], tool["strict"]) for tool in tools]
        for tools in (public, tool_schemas())
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("file", ROWS)
def test_the_rows_expect_what_the_calculators_give(file: Path) -> None:
    for row in rows_of(file):
        prompt = row["responses_create_params"]["input"][-1]["content"]
        assert evaluate(prompt).values == json.loads(row["ground_truth"])


@pytest.mark.parametrize(
    "prompt", ["Hello.", "work out x.", "work out 2 % 3.", "work out tan(1.0).", "work out log(1.0)."]
)
def test_what_cannot_be_evaluated_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"no values|no calculator|shorter"):
        evaluate(prompt)


ENVIRONMENT = server_spec("calculators", "resources_servers", "math_advanced_calculations", domain="agent")


async def rollout(row: dict[str, Any], replies: list[dict[str, Any]]) -> dict[str, Any]:
    return await rollout_of(ENVIRONMENT, row, replies)


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": [{"name": name, "arguments": arguments}]}


@pytest.mark.parametrize("file", ROWS)
async def test_a_model_that_trusts_its_tools_is_rewarded(file: Path) -> None:
    for row in rows_of(file):
        right = evaluate(row["responses_create_params"]["input"][-1]["content"]).calls
        replies = [called(name, **arguments) for name, arguments in right]
        record = await rollout(row, [called("divide", a=1, b=0), *replies, {"say": "Done."}])
        assert record["reward"] == 1.0


@pytest.mark.parametrize("difficulty", [None, 1, 2, 3, 4, 5])
async def test_generated_rows_are_solved_by_their_gold_response(difficulty: int | None) -> None:
    rows = list(generate_rows(3, 8, difficulty))
    assert json.dumps(rows) == json.dumps(list(generate_rows(3, 8, difficulty)))
    async with client_for(MathAdvancedCalculationsResourcesServer) as environment:
        for row in rows:
            items = MathAdvancedCalculationsResourcesServer.gold_response(row)
            outputs = [
                (await environment.post(f"/{item['name']}", content=item["arguments"].encode())).text for item in items
            ]
            response = response_of(calls("add", call_id="call_test"), *map(tool_output, outputs))
            assert (await environment.post("/verify", json={**row, "response": response})).json()["reward"] == 1.0


def all_single_calls(prompt: str) -> list[dict[str, float]]:
    """What a policy hears that knows no expression: every tool called with every pair of numbers in the prompt."""
    known = {float(number) for number in re.findall(r"[0-9.]*[0-9]", prompt)} | {math.pi, math.e}
    made = [(tool["name"], tool["parameters"]["required"]) for tool in tool_schemas()]
    given = [
        (name, zip(names, values, strict=True)) for name, names in made for values in product(known, repeat=len(names))
    ]
    found = []
    for name, arguments in given:
        with suppress(ArithmeticError, ValueError):
            found.append({"solution": calculate(name, dict(arguments))})
    return found


@pytest.mark.parametrize("difficulty", [1, 2, 3, 4, 5])
async def test_calling_every_tool_with_every_pair_of_numbers_earns_nothing(difficulty: int) -> None:
    rewards = []
    async with client_for(MathAdvancedCalculationsResourcesServer) as environment:
        for row in generate_rows(17, 200, difficulty):
            heard = all_single_calls(row["responses_create_params"]["input"][0]["content"])
            response = response_of(
                calls("add", call_id="call_test"), *(tool_output(json.dumps(each)) for each in heard)
            )
            rewards.append((await environment.post("/verify", json={**row, "response": response})).json()["reward"])
    assert sum(rewards) < 0.05 * 200
