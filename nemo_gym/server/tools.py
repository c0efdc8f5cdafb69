"""`@tool`: a method that the model may call. Its arguments, and the schema the model sees, come from its signature."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import orjson
from pydantic import BaseModel, create_model

from nemo_gym.client.server_client import ServerClient
from nemo_gym.llm_api.base import FailFastModel, JsonObject

Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "__nemo_gym_tool__"
_ANY_MARK = "__nemo_gym_any_tool__"
NOT_TOOLS = frozenset(
    [
        "seed_session",
        "next_message",
        "verify",
        "verify_group",
        "tool_schemas",
        "aggregate_metrics",
        "run",
        "health",
        "session",
        "session_copy",
        "mcp",
    ]
)
"""Routes of a server that no model may call, whatever its row offers."""
RESTORE_PATH = "/restore_mode"
"""The path at which an environment says how it comes back to an earlier step."""
SESSION_COPY_PATH = "/session_copy"
"""The path at which an environment that restores by copy saves and loads the state of a session."""
TOOL_NAME = re.compile(r"[\w.-]+")


class ToolName(str):
    """The tool that was called: what a handler of `ANY_TOOL` names in its signature to learn it."""

    __slots__ = ()


POLICY = "policy"
PARTICIPANT_COOKIE = "nemo_gym_participant"


class Participant(str):
    """The caller: the name of a policy, or `user`. A handler names it in its signature to learn it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The arguments of `@tool`."""

    name: str
    description: str


@overload
def tool(method: Method) -> Method: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[Method], Method]: ...
def tool(
    method: Method | None = None, *, name: str | None = None, description: str | None = None
) -> Method | Callable[[Method], Method]:
    """Offer a method of an environment to the model, by default under its own name and docstring."""

    def mark(method: Method) -> Method:
        text = description if description is not None else inspect.getdoc(method) or ""
        setattr(method, _MARK, ToolSpec(name or method.__name__, text))
        return method

    return mark if method is None else mark(method)


def any_tool(method: Method) -> Method:
    """Have a method answer the calls of every tool that is no `@tool` method, under whatever name it is called.

    It takes a `ToolName` and a `body`, and lists no schema: the environment describes such tools itself.
    """
    setattr(method, _ANY_MARK, True)
    return method


def tools_of(owner: object) -> dict[str, Callable[..., Any]]:
    """The tools of a server: name to bound method, in the order in which the class names them. Of a class they are
    bound to the class, which is enough to read their signatures."""
    return {spec.name: method for spec, method in _marked(owner, _MARK)}


def any_tools_of(server: object) -> list[Callable[..., Any]]:
    """The methods marked with `@any_tool`. Only the first is used."""
    return [method for _, method in _marked(server, _ANY_MARK)]


def _marked(owner: object, mark: str) -> list[tuple[Any, Callable[..., Any]]]:
    """The methods with this mark, each with its value."""
    kind = owner if isinstance(owner, type) else type(owner)
    members = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
    return [(getattr(each, mark), each.__get__(owner, kind)) for each in members.values() if hasattr(each, mark)]


def offered_tools(tools: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """The names of the tools of a row that may be called. Every call of another tool is refused, whoever makes it."""
    named = [str(tool.get("name")) for tool in tools or () if tool.get("type") == "function"]
    return [name for name in named if name not in NOT_TOOLS and TOOL_NAME.fullmatch(name)]


async def default_tools(client: ServerClient, environment: str) -> list[JsonObject]:
    """The tools that rows of an environment get if they do not mention `tools`. None if it does not list any."""
    reply = await client.send(environment, "/tool_schemas", {}, cause="environment")
    answer = orjson.loads(reply.content()) if reply.status == 200 else {}
    listed = answer.get("tools") if isinstance(answer, dict) else None
    if not isinstance(listed, list) or not all(isinstance(tool, dict) and "name" in tool for tool in listed):
        return []
    return listed


def with_tools(row: JsonObject, tools: list[JsonObject]) -> JsonObject:
    """The row or, if it does not mention `tools`, the row with these."""
    params = row["responses_create_params"]
    return {**row, "responses_create_params": {"tools": tools, **params}} if tools else row


def no_such_tool(name: object, offered: Iterable[str]) -> str:
    """The error text for a call of a tool that is not offered."""
    return f"There is no tool '{name}'. Tools: {', '.join(sorted(offered)) or 'none'}."


def arguments_model(
    name: str, parameters: list[inspect.Parameter], base: type[BaseModel] | None = None
) -> type[BaseModel]:
    """A model with one field for each parameter, and the fields of `base`."""
    fields: dict[str, Any] = {
        parameter.name: (
            Any if parameter.annotation is parameter.empty else parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in parameters
    }
    return create_model(f"{name}_arguments", __base__=base or FailFastModel, **fields)


def function_tool(method: Callable[..., Any], arguments: type[BaseModel] | None) -> dict[str, Any]:
    """A tool as a row's `responses_create_params.tools` lists it."""
    mark: ToolSpec = getattr(method, _MARK)
    schema = arguments.model_json_schema() if arguments else {"properties": {}}
    properties = {
        name: {key: value for key, value in item.items() if key != "title"}
        for name, item in schema["properties"].items()
    }
    required = schema.get("required", [])
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    return {
        "type": "function",
        "name": mark.name,
        "description": mark.description,
        "parameters": {**parameters, "additionalProperties": False},
        "strict": len(required) == len(properties),
    }
