"""Schemas of the calculators as the model sees them. They say what the calculators claim to compute."""

from typing import Any

DESCRIPTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "multiply": ("The product a * b.", {"a": "The first factor.", "b": "The second factor."}),
    "divide": ("The quotient a / b.", {"a": "The dividend.", "b": "The divisor."}),
    "add": ("The sum a + b.", {"a": "The first number.", "b": "The second number."}),
    "sin": ("The sine of an angle.", {"radians": "The angle in radians."}),
    "cos": ("The cosine of an angle.", {"radians": "The angle in radians."}),
    "subtract": ("The difference a - b.", {"a": "The number to subtract from.", "b": "The number to subtract."}),
    "power": ("The power a ** b.", {"a": "The base.", "b": "The exponent."}),
    "log": ("The logarithm log(a, base).", {"a": "The number.", "base": "The base."}),
    "pi": ("The number pi, as it is here.", {}),
    "negate": ("The negative -a.", {"a": "The number."}),
    "return_constant": ("The number a itself.", {"a": "The number."}),
}


def tool_schemas() -> list[dict[str, Any]]:
    """The tools as a row's `responses_create_params.tools` lists them."""
    return [_schema(name, text, arguments) for name, (text, arguments) in DESCRIPTIONS.items()]


def _schema(name: str, text: str, arguments: dict[str, str]) -> dict[str, Any]:
    properties = {argument: {"type": "number", "description": meaning} for argument, meaning in arguments.items()}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": text, "parameters": parameters, "strict": True}
