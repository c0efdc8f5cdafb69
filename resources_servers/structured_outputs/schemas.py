"""Check if a text is JSON that fits a schema. Schemas are data and may hold hostile patterns: run this where it can be
killed. JSON Schema 2020-12, formats not checked, nothing fetched."""

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nemo_gym.answers import strict_json, without_thinking
from resources_servers.structured_outputs.keywords import complete

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

SCHEMAS_KEPT = 256
"""Checking a schema takes a hundred times as long as checking an answer, and a row is usually played several times."""


def warm_up() -> None:
    """Load the library, before any check and its time limit."""
    fits("{}", "{}")


def verdict(text: str, schema_text: str) -> bool | None:
    """True if the answer fits the schema; None if the schema is not valid."""
    return None if _validator(schema_text) is None else fits(text, schema_text)


def fits(text: str, schema_text: str) -> bool:
    """True if the answer is JSON that fits the schema, made strict. Nothing fits a schema that is not valid."""
    from referencing.exceptions import Unresolvable

    try:
        instance = _answer(text)
        validator = _validator(schema_text)
        return validator is not None and validator.is_valid(instance)
    except (ValueError, RecursionError, ArithmeticError, re.error, Unresolvable):
        return False


def _answer(text: str) -> Any:
    """The JSON value of the whole text; if it has none, that of the text without thoughts. So a `<think>` within a
    string of the answer is no thought."""
    try:
        return strict_json(text)
    except ValueError:
        return strict_json(without_thinking(text))


@lru_cache(maxsize=SCHEMAS_KEPT)
def _validator(schema_text: str) -> "Draft202012Validator | None":
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    try:
        schema = strict_json(schema_text)
        make_strict(schema)
        complete(schema)
        Draft202012Validator.check_schema(schema)
    except (ValueError, RecursionError, ArithmeticError, SchemaError):
        return None
    return Draft202012Validator(schema, registry=Registry())


def make_strict(schema: Any) -> None:
    """Require every property and allow no other, at every depth that is reached through objects alone: the branches
    of `anyOf` and its like are in lists and stay as they are."""
    if not isinstance(schema, dict):
        return
    if isinstance(properties := schema.get("properties"), dict):
        schema |= {"required": list(properties), "additionalProperties": False}
    for value in list(schema.values()):
        make_strict(value)
