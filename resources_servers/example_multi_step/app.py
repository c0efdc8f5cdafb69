"""Look up a number for each synonym of the right term, then hand in the numbers in the order of the list."""

import json
from typing import Any

from nemo_gym import JsonObject, NeMoGymResponse
from nemo_gym.base_resources_server import (
    BaseVerifyRequest,
    Score,
    SimpleResourcesServer,
    offered_tools,
    tool,
)
from nemo_gym.llm_api.responses import NeMoGymResponseFunctionToolCall

HAND_IN = "extract_synonym_values"


class MultiStepVerifyRequest(BaseVerifyRequest):
    id: int
    expected_synonyms: list[str]
    expected_synonym_values: list[int]
    minefield_label: str
    minefield_label_value: int


class MultiStepResourcesServer(SimpleResourcesServer):
    @tool
    async def get_synonym_value(self, synonym: str) -> dict[str, int]:
        """Look up the value of a synonym."""
        return {"synonym_value": _value_of(synonym)}

    @tool
    async def extract_synonym_values(self, synonym_values: list[int]) -> dict[str, bool]:
        """Hand in the values, in order."""
        return {"success": True}

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse expected values that the tool does not give for the expected synonyms."""
        synonyms, values = row["expected_synonyms"], row["expected_synonym_values"]
        if not values or values != [_value_of(synonym) for synonym in synonyms]:
            raise ValueError("expected_synonym_values are not the values of expected_synonyms, or there are none")

    async def verify(self, body: MultiStepVerifyRequest) -> Score:
        params, expected = body.responses_create_params, body.expected_synonym_values
        is_offered = "tools" not in params.model_fields_set or HAND_IN in offered_tools(params.tools)
        actual = handed_in(body.response) if is_offered else []
        accuracy = bool(expected) and actual == expected
        overlap = len(set(actual) & set(expected)) / len(expected) if expected else 0.0
        return Score(
            float(accuracy),
            parsed_synonym_values=[int(value) for value in actual],
            accuracy=accuracy,
            set_overlap=overlap,
            original_term_minefield_hit=body.minefield_label in actual or body.minefield_label_value in actual,
            order_instruction_following_failure=not accuracy and overlap == 1.0,
        )

    @classmethod
    def gold_response(cls, row: JsonObject) -> list[JsonObject]:
        """The hand-in alone: the look-ups before it are not verified."""
        arguments = json.dumps({"synonym_values": row["expected_synonym_values"]})
        return [{"type": "function_call", "call_id": "call_0", "name": HAND_IN, "arguments": arguments}]


def _value_of(synonym: str) -> int:
    return sum(map(ord, synonym))


def handed_in(response: NeMoGymResponse) -> list[Any]:
    """Return the arguments of the last hand-in as the model wrote them; empty if there is none that can be read."""
    calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    last = next((call for call in reversed(calls) if call.name == HAND_IN), None)
    if last is None:
        return []
    try:
        values = json.loads(last.arguments)["synonym_values"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return values if isinstance(values, list) and all(map(_is_whole, values)) else []


def _is_whole(value: Any) -> bool:
    """True for a whole number, or the text of one, of a size that every JSON reader accepts."""
    if not isinstance(value, int | float | str):
        return False
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return False
    return abs(number) < 2**63 and (isinstance(value, str) or number == value)
