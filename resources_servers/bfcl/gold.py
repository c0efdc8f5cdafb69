"""Right answers to rows with one turn, made of their first allowed values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resources_servers.bfcl.calls import Call, Language, offered_name


def gold_calls(row: Mapping[str, Any]) -> list[Call]:
    """One call for each expected one."""
    functions = {each["name"]: each for each in row["function"]}
    return [
        Call(offered_name(name), dict(_arguments(functions[name]["parameters"], allowed, row["language"])))
        for answer in row["ground_truth"]
        for name, allowed in answer.items()
    ]


def _arguments(
    parameters: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]], language: Language
) -> Iterator[tuple[str, Any]]:
    for name, values in allowed.items():
        stated = [each for each in values if each != ""]
        is_optional = "" in values and name not in parameters["required"]
        if (is_optional and values[0] == "") or not values:
            continue
        value = _without_choices(stated[0]) if stated else ""
        yield name, value if language == "python" else _source_text(value, parameters["properties"][name], language)


def _without_choices(value: Any) -> Any:
    """An object of the answer has lists of allowed values."""
    if isinstance(value, dict):
        choices = {name: each for name, each in value.items() if not isinstance(each, str)}  # a text allows nothing
        return {name: each[0] for name, each in choices.items() if each and each[0] != ""}
    if isinstance(value, list):
        return [_without_choices(each) if isinstance(each, dict) else each for each in value]
    return value


def _source_text(value: Any, schema: Mapping[str, Any], language: Language) -> str:
    """A value as a literal of Java or JavaScript."""
    kind = schema["type"]
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        inner = schema["items"] if isinstance(schema.get("items"), dict) else {"type": "any"}
        items = ", ".join(
            _element(each, inner, language, is_bare=language == "java" and kind == "Array") for each in value
        )
        forms = {"ArrayList": f"new ArrayList<>(Arrays.asList({items}))" if value else "new ArrayList<>()"}
        return forms.get(kind, f"[{items}]" if language == "javascript" else f"new Object[]{{{items}}}")
    if isinstance(value, dict) and language == "java":
        puts = " ".join(f'put("{name}", {json.dumps(each)});' for name, each in value.items())
        return f"new HashMap<>() {{{{ {puts} }}}}" if value else "new HashMap<>()"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)}: {json.dumps(each)}' for name, each in value.items())}}}"
    return f"{value}{ {'long': 'L', 'Bigint': 'n', 'float': 'f' if language == 'java' else ''}.get(kind, '') }"


def _element(value: Any, schema: Mapping[str, Any], language: Language, *, is_bare: bool) -> str:
    """An element of a list. The rule keeps quotes in arrays of Java, and around texts of the type `any`."""
    if isinstance(value, str) and (is_bare or schema["type"] == "any"):
        return value
    return json.dumps(value) if isinstance(value, str | list) else _source_text(value, schema, language)
