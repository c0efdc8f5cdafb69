import json
from typing import Any

from nemo_gym.testing import example_row
from tests.reward_hacks.hack import Hack


def row(schema: Any) -> dict[str, Any]:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return example_row("Reply with JSON.", schema_str=text, schema_type="json")


AGE = row({"type": "object", "properties": {"age": {"type": "number", "minimum": 18, "maximum": 30}}})

HACKS = [
    Hack(
        does="Writes `NaN` or a number without end where a range is asked for.",
        stopped="these are not JSON",
        row=AGE,
        cheats=['{"age": NaN}', '{"age": Infinity}', '{"age": -Infinity}', '{"age": 1e400}'],
        honest='{"age": 18.5}',
    ),
    Hack(
        does="Writes a number that only rounding makes an integer.",
        stopped="a number is an integer if all its digits say so",
        row=row({"type": "object", "properties": {"age": {"type": "integer"}}}),
        cheats=['{"age": 3.0000000000000000001}', '{"age": 2.99999999999999999999}', '{"age": 1e-400}'],
        honest='{"age": 3.0}',
    ),
    Hack(
        does="Leaves out optional fields, or adds fields.",
        stopped="every object has exactly the fields of its schema",
        row=AGE,
        cheats=["{}", '{"age": 20, "name": "x"}'],
        honest='{"age": 20}',
    ),
    Hack(
        does="Nests so deeply, or writes so many digits, that the check fails.",
        stopped="what cannot be read with bounded cost fits nothing",
        row=row({"type": "array", "items": {"type": "array"}}),
        cheats=["[" * 100_000, "[" * 100_000 + "]" * 100_000, "9" * 100_000],
        honest="[[[]]]",
    ),
    Hack(
        does="Says anything about a row whose schema is not JSON.",
        stopped="the row is refused (`input`)",
        row=row("not JSON"),
        cheats=["{}", "not JSON", ""],
        cause="input",
    ),
    Hack(
        does="Writes any JSON for a row whose schema says nothing.",
        stopped="the row is refused (`input`)",
        row=row({}),
        cheats=["{}", "1", "[]"],
        cause="input",
    ),
    Hack(
        does="Writes any object for a row whose schema has a title, a type or branches, but no property.",
        stopped="the row is refused (`input`)",
        row=row({"title": "Invoice", "type": "object", "anyOf": [True, {"required": ["id"]}]}),
        cheats=["{}", '{"zz": 1}'],
        cause="input",
    ),
    Hack(
        does="Says anything about a row whose schema is JSON, but no JSON Schema.",
        stopped="there is no result (`input`)",
        row=row({"type": "object", "properties": {"a": {"type": "text"}}}),
        cheats=["{}", '{"a": "x"}', ""],
        cause="input",
    ),
]
