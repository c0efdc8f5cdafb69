"""Calculators that do not compute what their names say: a model that trusts its tools gets it right."""

import json
import math
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, ToolName, any_tool
from nemo_gym.llm_api.responses import NeMoGymFunctionCallOutput, NeMoGymResponseFunctionToolCall
from resources_servers.math_advanced_calculations.calculators import CALCULATORS, calculate
from resources_servers.math_advanced_calculations.expressions import evaluate
from resources_servers.math_advanced_calculations.schemas import tool_schemas


class CalculatorRequest(BaseModel):
    """The arguments of all calculators; null ones count as not given."""

    a: float | None = None
    b: float | None = None
    radians: float | None = None
    base: float | None = None


class MathAdvancedCalculationsVerifyRequest(BaseVerifyRequest):
    id: int
    ground_truth: str | list[float]
    """The expected numbers, usually as JSON text."""
    depth: int
    breadth: int


class MathAdvancedCalculationsResourcesServer(SimpleResourcesServer):
    @classmethod
    def tool_schemas(cls) -> list[dict[str, Any]]:
        return tool_schemas()

    @any_tool
    async def use_calculator(self, name: ToolName, body: CalculatorRequest) -> dict[str, float]:
        """Answers `solution`, or a status of 400 and more with a reason."""
        if name not in CALCULATORS:
            raise HTTPException(404, "Function not found")
        try:
            return {"solution": calculate(name, body.model_dump(exclude_none=True))}
        except (TypeError, ArithmeticError, ValueError) as error:
            raise HTTPException(500, str(error)) from error

    @classmethod
    def check_row(cls, row: dict[str, Any]) -> None:
        """Refuse a row without expected numbers, which every reply would have found."""
        expected = expected_numbers(row["ground_truth"])
        if not expected or not all(map(math.isfinite, expected)):
            raise ValueError(f"ground_truth is no list of numbers: {row['ground_truth']!r:.100}")

    async def verify(self, body: MathAdvancedCalculationsVerifyRequest) -> float:
        """1.0 if every expected number came out of some tool, exactly. What the model says is not read."""
        expected = expected_numbers(body.ground_truth)
        return float(expected is not None and expected <= solutions(body))

    @classmethod
    def gold_response(cls, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The calls that evaluate what the prompt asks for."""
        calls = evaluate(row["responses_create_params"]["input"][-1]["content"]).calls
        return [
            {"type": "function_call", "call_id": f"call_{number}", "name": name, "arguments": json.dumps(arguments)}
            for number, (name, arguments) in enumerate(calls)
        ]


def expected_numbers(ground_truth: str | list[float]) -> set[float] | None:
    """The numbers of a row; None if it lists anything else, which nothing equals."""
    try:
        numbers = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
        return {float(number) for number in numbers} if isinstance(numbers, list) else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def solutions(body: BaseVerifyRequest) -> set[float]:
    """Return the numbers that calculators answered, also in what the row begins with. An output needs its call."""
    given = body.responses_create_params.input
    items = [*([] if isinstance(given, str) else given), *body.response.output]
    calls = [item for item in items if isinstance(item, NeMoGymResponseFunctionToolCall)]
    calculations = {call.call_id for call in calls if call.name in CALCULATORS}
    answers = [item for item in items if isinstance(item, NeMoGymFunctionCallOutput)]
    outputs = [item.output for item in answers if item.call_id in calculations]
    found = (_solution(output) for output in outputs if isinstance(output, str))
    return {number for number in found if number is not None}


def _solution(output: str) -> float | None:
    try:
        return float(json.loads(output)["solution"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
