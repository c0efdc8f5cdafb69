"""Is a call the one that a row asks for? The rule of the leaderboard, with its oddities, since they decide scores.

An answer is `{function: {parameter: [allowed values]}}`; an empty text among them means that the
parameter may be left out."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from resources_servers.bfcl.literals import JAVA_TYPES, JAVASCRIPT_TYPES, java_value, javascript_value

Language = Literal["python", "java", "javascript"]
Types = Mapping[str, type[Any]]

PYTHON_TYPES: Types = {
    "string": str,
    "any": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
}
NESTED = frozenset(("array", "tuple", "Array", "ArrayList"))
_IGNORED = re.compile(r"[ ,./\-_*^]")
_LITERALS: dict[str, tuple[Types, Callable[[str, str, str | None], Any]]] = {
    "java": (JAVA_TYPES, java_value),
    "javascript": (JAVASCRIPT_TYPES, javascript_value),
}


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


class Typed(NamedTuple):
    """A value that has a type that fits, and whether it stands for another one."""

    value: Any
    is_variable: bool


def parsed_call(name: str, arguments: str) -> Call | None:
    """A call of the model; None if its arguments are not a JSON object."""
    try:
        found = json.loads(arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return Call(name, found) if isinstance(found, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def offered_name(name: str) -> str:
    """The name of a function as a tool: tools may have no dots."""
    return name.replace(".", "_")


def is_right(
    calls: Sequence[Call],
    functions: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Mapping[str, Any]]],
    category: str,
    language: Language,
) -> bool:
    """True if the calls are those of the answer, in any order where several are expected."""
    if len(calls) != len(answers):
        return False
    left = list(calls)
    for answer in answers:
        ((name, allowed),) = answer.items()
        is_simple = "parallel" not in category and "multiple" not in category
        function = functions[0] if is_simple else next(each for each in functions if each["name"] == name)
        found = next((call for call in left if fits(call, function, allowed, language)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def fits(call: Call, function: Mapping[str, Any], allowed: Mapping[str, Any], language: Language) -> bool:
    """True if a call is that of the function with allowed values."""
    parameters = function["parameters"]
    properties, given = parameters["properties"], call.arguments
    if call.name != offered_name(function["name"]) or not all(name in given for name in parameters["required"]):
        return False
    if not all(name in given or "" in values for name, values in allowed.items()):
        return False
    return all(
        name in properties and name in allowed and _is_allowed(value, properties[name], allowed[name], language)
        for name, value in given.items()
    )


def _is_allowed(value: Any, schema: Mapping[str, Any], allowed: Sequence[Any], language: Language) -> bool:
    described, types = schema["type"], PYTHON_TYPES
    inner = schema["items"]["type"] if described in NESTED else None
    if language != "python":
        if type(value) is not str:
            return False
        types, parse = _LITERALS[language]
        value = parse(value, described, inner)
    elif described == "float" and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            return False
    expected, nested = types[described], types[inner] if inner else None
    try:
        typed = _typed(value, allowed, expected, nested)
        return typed is not None and _has_allowed_value(typed, allowed, expected, nested)
    except (TypeError, AttributeError, RecursionError):  # a list where an object was expected, inside of values
        return False


def _typed(value: Any, allowed: Sequence[Any], expected: type[Any], nested: type[Any] | None) -> Typed | None:
    """The value if its type fits. One that has the type of the answer, but not that of the description, is a
    variable: a name in place of a value."""
    answer = next((type(each) for each in allowed if each != ""), None)
    if type(value) is expected:
        if nested is None or any(_has_types(value, each, nested) for each in allowed):
            return Typed(value, answer not in (None, expected))
        return None
    return Typed(value, True) if answer is not None and type(value) is answer else None


def _has_types(items: Iterable[Any], allowed: Any, nested: type[Any]) -> bool:
    """True if all items of a list have the type of the description, or of the answer. An empty text asks nothing."""
    return type(allowed) is not list or all(_typed(item, allowed, nested, None) for item in items)


def _has_allowed_value(typed: Typed, allowed: Sequence[Any], expected: type[Any], nested: type[Any] | None) -> bool:
    value = typed.value
    if typed.is_variable:
        return value in allowed
    if expected is dict:
        return _is_allowed_object(value, allowed)
    if expected is list and nested is dict:
        return any(_are_allowed_objects(value, each) for each in allowed)
    if expected is str:
        return standardized(value) in [standardized(each) for each in allowed if type(each) is str]
    if expected is list:
        return [_standard_item(each) for each in value] in [[_standard_item(each) for each in one] for one in allowed]
    return value in allowed


def _are_allowed_objects(values: Sequence[Any], allowed: Sequence[Any]) -> bool:
    return len(values) == len(allowed) and all(
        _is_allowed_object(value, [each]) for value, each in zip(values, allowed, strict=True)
    )


def _is_allowed_object(value: Mapping[str, Any], allowed: Sequence[Any]) -> bool:
    return any(each != "" and _has_allowed_fields(value, each) for each in allowed)


def _has_allowed_fields(value: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> bool:
    if not all(name in value or "" in values for name, values in allowed.items()):
        return False
    return all(
        name in allowed and _standard_item(item) in [_standard_item(each) for each in allowed[name]]
        for name, item in value.items()
    )


def _standard_item(value: Any) -> Any:
    return standardized(value) if type(value) is str else value


def standardized(text: str) -> str:
    """A text as it is compared: without case, spaces and some punctuation, with one kind of quotes."""
    return _IGNORED.sub("", text).lower().replace("'", '"')
