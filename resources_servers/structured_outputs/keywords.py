"""Make a schema say what it means: the type that its keywords are for, and patterns as ECMA-262 defines them."""

import re
from collections.abc import Iterator
from typing import Any

TYPE_OF_KEYWORD = {
    **dict.fromkeys(("properties", "required", "patternProperties", "additionalProperties"), "object"),
    **dict.fromkeys(("propertyNames", "minProperties", "maxProperties", "dependentRequired"), "object"),
    **dict.fromkeys(("items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"), "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
}
_LIMITING = frozenset(("type", "enum", "const", "$ref", "$dynamicRef"))
"""Keywords that say which values are meant. A schema with one of them gets no type."""

_IN_PLACE = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("not", "if")
"""Here, another type would let more values pass instead of fewer."""
_SINGLE = ("then", "else", "items", "contains", "additionalProperties", "propertyNames")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SAME_VALUE = frozenset((*_IN_PLACE, "then", "else", "dependentSchemas"))
"""Keywords whose schemas are about the same value as the schema that they are in."""


def complete(schema: Any, *, is_typed: bool = False, is_condition: bool = False) -> None:
    """Add missing types and rewrite patterns for Python, in a schema and all within it."""
    if not isinstance(schema, dict):
        return
    kinds = {TYPE_OF_KEYWORD[keyword] for keyword in schema if keyword in TYPE_OF_KEYWORD}
    is_typed = is_typed or not _LIMITING.isdisjoint(schema)
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = python_pattern(schema["pattern"])
    if isinstance(named := schema.get("patternProperties"), dict):
        schema["patternProperties"] = {python_pattern(pattern): value for pattern, value in named.items()}
    if kinds and not is_typed and not is_condition:
        schema["type"] = sorted(kinds)
    for keyword, inner in list(_within(schema)):
        complete(
            inner,
            is_typed=keyword in _SAME_VALUE and (is_typed or bool(kinds)),
            is_condition=is_condition or keyword in _CONDITIONS,
        )


def says_nothing(schema: Any) -> bool:
    """True if a schema asks for nothing but a type: every object, list, text or number fits it."""
    if not isinstance(schema, dict):
        return schema is not False
    for keyword, value in schema.items():
        if keyword in ("enum", "const", "$ref", "$dynamicRef", "if", "dependentSchemas"):
            return False
        if keyword in TYPE_OF_KEYWORD and value not in ({}, [], True, 0):
            return False
        if keyword == "not" and value is not False:
            return False
        if keyword in _IN_PLACE and isinstance(value, list) and not _say_nothing(keyword, value):
            return False
    return True


def _say_nothing(keyword: str, schemas: list[Any]) -> bool:
    if keyword == "allOf":
        return all(map(says_nothing, schemas))
    return len(schemas) == 1 and says_nothing(schemas[0]) if keyword == "oneOf" else any(map(says_nothing, schemas))


def _within(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas within a schema, each with the keyword that has it."""
    for keyword in (*_IN_PLACE, "prefixItems"):
        if isinstance(listed := schema.get(keyword), list):
            yield from ((keyword, inner) for inner in listed)
    for keyword in (*_CONDITIONS, *_SINGLE):
        yield keyword, schema.get(keyword)
    for keyword in _MAPS:
        if isinstance(named := schema.get(keyword), dict):
            yield from ((keyword, inner) for inner in named.values())


_SPACE = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_TOKEN = re.compile(r"\\.|[\[\].$]", re.DOTALL)
_FLAGS = re.compile(r"\(\?([imsx]+)\)")


def python_pattern(pattern: str) -> str:
    """Return a pattern of ECMA-262 as one of Python, or as it is if Python cannot read it.

    `$` is the end of the text and does not match before a line break, `\\d` and `\\w` are ASCII, and `.` is no line
    break of any kind."""
    flags = _FLAGS.match(pattern)
    body = pattern[flags.end() :] if flags else pattern
    written = f"(?a{flags[1] if flags else ''}:{_rewritten(body)})"
    try:
        re.compile(pattern)
        re.compile(written)
    except (re.error, OverflowError, RecursionError):
        return pattern
    return written


def _rewritten(pattern: str) -> str:
    in_class = False

    def python_token(token: re.Match[str]) -> str:
        nonlocal in_class
        match token[0]:
            case "[" | "]":
                in_class = token[0] == "["
            case "$" if not in_class:
                return r"\Z"
            case "." if not in_class:
                return r"[^\n\r\u2028\u2029]"
            case "\\s":
                return _SPACE if in_class else f"[{_SPACE}]"
            case "\\S" if not in_class:
                return f"[^{_SPACE}]"
        return token[0]

    return _TOKEN.sub(python_token, pattern)
