"""Tools as methods of a plain class: their schemas and checked arguments come from signatures."""

import inspect
import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model


class RefusedError(Exception):
    """A tool refuses what it was asked for."""


@cache
def arguments_of(method: Callable[..., Any]) -> type[BaseModel]:
    """The arguments of a method of a class, without the first."""
    fields: dict[str, Any] = {
        each.name: (each.annotation, ... if each.default is each.empty else each.default)
        for each in list(inspect.signature(method).parameters.values())[1:]
    }
    return create_model(method.__name__, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)


def schema_of(kind: type[Any], name: str) -> dict[str, Any]:
    """A method as a tool of the Responses API."""
    method = getattr(kind, name)
    schema = arguments_of(method).model_json_schema()
    parameters = {key: schema[key] for key in ("properties", "required", "$defs") if key in schema}
    empty = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    return {
        "type": "function",
        "name": name,
        "description": inspect.getdoc(method) or "",
        "parameters": {**empty, **parameters},
        "strict": False,
    }


def schemas_of(kind: type[Any], names: Iterable[str]) -> list[dict[str, Any]]:
    return [schema_of(kind, name) for name in names]


def call_tool(owner: object, name: str, arguments: dict[str, Any]) -> str:
    """What a tool answers, errors included, as text."""
    method = getattr(type(owner), name)
    try:
        checked = arguments_of(method).model_validate(arguments)
        result = method(owner, **{field: getattr(checked, field) for field in type(checked).model_fields})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        return json.dumps({"error": f"{'.'.join(map(str, found['loc']))}: {found['msg']}"})
    except RefusedError as error:
        return json.dumps({"error": str(error)})
    return json.dumps(result)
