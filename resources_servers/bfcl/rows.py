"""Rows of the Berkeley Function Calling Leaderboard, version 4, from the files of its package."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_gym.data.hubs.pypi import Members, chosen_categories
from nemo_gym.errors import ConfigError
from resources_servers.bfcl.apis import FUNCTION_DOCS
from resources_servers.bfcl.calls import Language, offered_name

DATA = "bfcl_eval/data"
SINGLE_TURN = (
    *("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance"),
)
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
WITHOUT_ANSWER = frozenset(("irrelevance", "live_irrelevance", "live_relevance"))
MORE_FUNCTIONS = "More functions are available to you now. Please try again with them."
_JSON_TYPES = {
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
    **dict.fromkeys(("array", "list", "tuple", "Array", "ArrayList"), "array"),
    **dict.fromkeys(("float", "number"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    "integer": "integer",
}
"""The other types are texts."""


def rows(members: Members, category: str | None = None, turns: str = "single") -> Iterator[dict[str, Any]]:
    """The rows with one turn, or those with several."""
    if turns == "single" and category is not None and category.startswith("multi_turn"):
        raise ConfigError(f"'{category}' is part of another benchmark: ng eval bfcl_multi_turn --category {category}")
    for each in chosen_categories(SINGLE_TURN if turns == "single" else MULTI_TURN, category):
        problems = list(members.json_lines(f"{DATA}/BFCL_v4_{each}.json"))
        answers: Any = [{"ground_truth": []}] * len(problems)
        if each not in WITHOUT_ANSWER:
            answers = members.json_lines(f"{DATA}/possible_answer/BFCL_v4_{each}.json")
        make = single_turn_row if turns == "single" else _multi_turn(members)
        yield from (make(each, problem, answer) for problem, answer in zip(problems, answers, strict=True))


def single_turn_row(category: str, problem: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    language = language_of(category)
    tools = [tool_of(each, language) for each in problem["function"]]
    (messages,) = problem["question"]
    return {
        "responses_create_params": {"input": messages, "tools": tools, "parallel_tool_calls": True},
        "id": problem["id"],
        "category": category,
        "language": language,
        "function": problem["function"],
        "ground_truth": answer["ground_truth"],
    }


def _multi_turn(members: Members) -> Any:
    docs = {name: list(members.json_lines(f"{DATA}/multi_turn_func_doc/{file}")) for name, file in FUNCTION_DOCS}

    def make(category: str, problem: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
        tools = [tool_of(each, "python") for name in problem["involved_classes"] for each in docs[name]]
        missed = {turn: _taken(tools, names) for turn, names in problem.get("missed_function", {}).items()}
        first, *others = [each[0]["content"] if each else MORE_FUNCTIONS for each in problem["question"]]
        return {
            "responses_create_params": {"input": [{"role": "user", "content": first}], "tools": tools},
            "id": problem["id"],
            "category": category,
            "turns": others,
            "added_tools": missed,
            "initial_config": problem["initial_config"],
            "involved_classes": problem["involved_classes"],
            "ground_truth": answer["ground_truth"],
        }

    return make


def _taken(tools: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Remove the first tool of each name, and return them."""
    found = []
    for name in names:
        place = next(place for place, tool in enumerate(tools) if tool["name"] == name)
        found.append(tools.pop(place))
    return found


def language_of(category: str) -> Language:
    return "java" if category == "simple_java" else "javascript" if category == "simple_javascript" else "python"


def tool_of(function: Mapping[str, Any], language: Language) -> dict[str, Any]:
    """A function of the data as a tool of the Responses API."""
    parameters = function["parameters"]
    convert = _json_schema if language == "python" else _source_text_schema
    properties = {name: convert(each, language) for name, each in parameters["properties"].items()}
    return {
        "type": "function",
        "name": offered_name(function["name"]),
        "description": function["description"],
        "parameters": {"type": "object", "properties": properties, "required": parameters["required"]},
        "strict": False,
    }


def _json_schema(schema: Mapping[str, Any], language: Language) -> dict[str, Any]:
    found = {**schema, "type": _JSON_TYPES.get(schema.get("type", ""), "string")}
    if isinstance(schema.get("properties"), dict):
        found["properties"] = {name: _json_schema(each, language) for name, each in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        found["items"] = _json_schema(schema["items"], language)
    elif found["type"] == "array":
        found["items"] = {}
    return found


def _source_text_schema(schema: Mapping[str, Any], language: Language) -> dict[str, Any]:
    """Values of other languages are given as source text."""
    name = {"java": "Java", "javascript": "JavaScript"}.get(language, language)
    kind = schema["type"]
    if isinstance(schema.get("items"), dict):
        kind = f"{kind} of {schema['items'].get('type', 'any')}"
    text = f"{schema.get('description', '')} Write it as source code of {name}, of the type {kind}.".strip()
    return {"type": "string", "description": text}
