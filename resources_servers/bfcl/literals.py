"""Values that rows for Java and JavaScript have as source text. Text that is no literal of the type stays a text."""

import re
from collections.abc import Callable, Mapping
from typing import Any

MAX_CHARS = 20_000
"""Longer texts are no literals: patterns would take long to look through them."""

JAVA_TYPES: Mapping[str, type[Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("char", "String", "any"), str),
    **dict.fromkeys(("Array", "ArrayList", "Queue", "Stack"), list),
    **dict.fromkeys(("HashMap", "Hashtable"), dict),
    "boolean": bool,
}
JAVASCRIPT_TYPES: Mapping[str, type[Any]] = {
    **dict.fromkeys(("String", "any"), str),
    **dict.fromkeys(("integer", "Bigint"), int),
    "float": float,
    "Boolean": bool,
    "dict": dict,
    "array": list,
}
_INTEGER = re.compile(r"-?[0-9]{1,4000}")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_EXPONENT = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def java_value(text: str, kind: str, inner: str | None = None) -> Any:
    """The value of a literal of Java."""
    if len(text) > MAX_CHARS:
        return text
    match kind:
        case "byte" | "short" | "integer":
            return _number(text, _INTEGER, int)
        case "long":
            return _number(text, _INTEGER, int, ending="lL")
        case "float":
            return _number(text, _EXPONENT, float, ending="fF")
        case "double":
            return _number(text, _EXPONENT, float)
        case "boolean":
            return {"true": True, "false": False}.get(text, text)
        case "ArrayList":
            return _java_list(text, inner)
        case "Array":
            found = re.search(r"new\s+\w+\[\]\s*\{([^}]*)\}", text)
            return [_java_item(each, inner) for each in _split(found[1])] if found else text
        case "HashMap":
            return _java_map(text)
    return text


def _number(text: str, pattern: re.Pattern[str], convert: Callable[[str], Any], *, ending: str = "") -> Any:
    bare = text[:-1] if ending and text[-1:] and text[-1] in ending else text
    is_number = pattern.fullmatch(bare) is not None and (not ending or bare != text)
    return convert(bare) if is_number else text


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _java_list(text: str, inner: str | None) -> Any:
    if found := re.search(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)", text):
        return [_java_element(each.strip(), inner) for each in found[1].split(",")]
    if found := re.search(r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*(.+?)\s*\}\}", text, re.DOTALL):
        return [_java_element(each.strip(), inner) for each in re.findall(r"add\((.+?)\)", found[1])]
    return [] if re.search(r"new\s+ArrayList<\w*>\(\)", text) else text


def _java_element(text: str, inner: str | None) -> Any:
    return text[1:-1] if inner in ("char", "String") else _java_item(text, inner)


def _java_item(text: str, inner: str | None) -> Any:
    return java_value(text, inner) if inner else _guessed(text)


def _java_map(text: str) -> Any:
    if found := re.search(r"new\s+HashMap<.*?>\s*\(\)\s*\{\s*\{?\s*(.*?)\s*\}?\s*\}", text, re.DOTALL):
        return {key: _guessed(value.strip()) for key, value in re.findall(r"put\(\"(.*?)\",\s*(.*?)\)", found[1])}
    return {} if re.search(r"new\s+HashMap<.*?>\s*\(\)", text) else text


def _guessed(text: str) -> Any:
    """The value of a literal of Java whose type is not known."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    for kind in ("long", "float"):
        if (value := java_value(text, kind)) != text:
            return value
    return _plain_number(text)


def _plain_number(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def javascript_value(text: str, kind: str, inner: str | None = None) -> Any:
    """The value of a literal of JavaScript."""
    if len(text) > MAX_CHARS:
        return text
    match kind:
        case "String":
            return text[1:-1] if _is_quoted(text) else text
        case "integer":
            return _number(text, _INTEGER, int)
        case "float":
            return _number(text, _DECIMAL, float)
        case "Bigint":
            return _number(text, _INTEGER, int, ending="n")
        case "Boolean":
            return {"true": True, "false": False}.get(text, text)
        case "array":
            return _javascript_array(text.strip(), inner)
        case "dict":
            return _javascript_object(text.strip())
    return text


def _is_quoted(text: str) -> bool:
    return any(text.startswith(quote) and text.endswith(quote) for quote in "\"'")


def _javascript_item(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if _is_quoted(text) else _plain_number(text)


def _javascript_array(text: str, inner: str | None) -> Any:
    nested = re.match(r"(?:\[|new\s+Array\()\s*((?:\[[^\[\]]*\]\s*,?\s*)+)[\])]", text)
    if nested:
        return [
            [_javascript_item(each) for each in one.split(",")] for one in re.findall(r"\[([^\[\]]*)\]", nested[1])
        ]
    found = re.match(r"\[([^\]]*)\]|new\s+Array\(([^)]*)\)", text)
    if not found:
        return text
    content = (found[1] if found[1] is not None else found[2]).strip()
    items = content.split(",") if content else []
    return [javascript_value(each.strip(), inner) if inner else _javascript_item(each) for each in items]


def _javascript_object(text: str) -> Any:
    if text == "{}":
        return {}
    found = re.match(r"\{([^}]*)\}", text)
    if not found:
        return text
    pairs = re.findall(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)", found[1])
    return {key.strip().strip("'\""): _javascript_field(value.strip()) for key, value in pairs}


def _javascript_field(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        return _javascript_array(text, None)
    if text.startswith("{") and text.endswith("}"):
        return _javascript_object(text)
    return _javascript_item(text.strip("'\""))
