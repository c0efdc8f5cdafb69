"""A NeMo Gym environment for `GRPOTrainer(environment_factory=...)` of TRL: tools are methods, the verifier is a
reward function. This module needs neither TRL nor torch."""

import inspect
import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.interop.environment_host import EnvironmentHost, HostedEpisode, check_row
from nemo_gym.llm_api.base import JsonObject, content_text

logger = logging.getLogger(__name__)

ROW_COLUMN = "nemo_gym_row"
PYTHON_TYPES = {"integer": int, "number": float, "string": str, "boolean": bool, "array": list, "object": dict}
NOT_TOOLS = ("reset", "get_reward")


class TrlEnvironment:
    """`environment_factory` and `reward_func` are for the trainer, `dataset()` for `Dataset.from_list`."""

    def __init__(
        self,
        *config_paths: str | Path,
        host: EnvironmentHost | None = None,
        rows: list[JsonObject] | None = None,
        **settings: Any,
    ) -> None:
        self.host = host or EnvironmentHost(*config_paths, **settings)
        with ExitStack() as opened:
            if host is None:
                opened.callback(self.host.close)
            self.rows = self.host.rows() if rows is None else rows
            if not self.rows:
                raise ConfigError("There are no rows to train on: `rows` is empty.")
            params = [
                check_row(row, what=f"Row {number}")["responses_create_params"] for number, row in enumerate(self.rows)
            ]
            listed = [tool for each in params for tool in each.get("tools", self.host.tools) or ()]
            tools = {tool["name"]: tool for tool in listed if tool.get("type") == "function"}
            methods: dict[str, Any] = {name: _method(tool) for name, tool in tools.items()}
            self._kind = type("NeMoGymEnvironment", (_Environment,), methods)
            opened.pop_all()

    def environment_factory(self) -> Any:
        """Create an environment. The trainer creates one per rollout of a batch and resets it for the next batch."""
        return self._kind(self.host)

    def dataset(self) -> list[dict[str, Any]]:
        """Return the rows for TRL: a conversation, and the row itself for `reset`."""
        return [{"prompt": _prompt(row), ROW_COLUMN: json.dumps(row)} for row in self.rows]

    def reward_func(
        self, completions: list[Any], environments: list[Any] | None = None, **_columns: Any
    ) -> list[float | None]:
        """Return the verifier's reward of each rollout; None if it failed, which TRL ignores."""
        if environments is None:
            raise ConfigError("There are no environments: give the trainer `environment_factory`, too.")
        return [_reward(*pair) for pair in zip(completions, environments, strict=True)]

    def close(self) -> None:
        self.host.close()


class _Environment:
    """The environment as TRL uses it: `reset`, and a method for each tool."""

    def __init__(self, host: EnvironmentHost) -> None:
        self._host = host
        self._episode: HostedEpisode | None = None

    def reset(self, **columns: Any) -> None:
        """Start a rollout of the row. If it cannot start, its tools fail, it has no reward, and training continues."""
        if ROW_COLUMN not in columns:
            found = ", ".join(columns) or "none"
            raise ConfigError(f"The dataset has no column '{ROW_COLUMN}', only: {found}. Create it from `dataset()`.")
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.close()
        try:
            self._episode = HostedEpisode(self._host, json.loads(columns[ROW_COLUMN]))
        except RolloutError as error:
            logger.warning("a rollout cannot start (%s): %s", error.cause, error)


def _reward(completion: Any, environment: Any) -> float | None:
    episode, environment._episode = environment._episode, None
    if episode is None:
        logger.warning("a rollout has no result: it was not started")
        return None
    try:
        return float(episode.score(output_items(completion))["reward"])
    except RolloutError as error:
        logger.warning("a rollout has no result (%s): %s", error.cause, error)
        return None


def output_items(completion: str | list[JsonObject]) -> list[JsonObject]:
    """Convert a completion of TRL, a text or a list of chat messages, to items of a response."""
    if isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]
    items: list[JsonObject] = []
    waiting: list[str] = []
    for message in completion:
        if message["role"] == "tool":
            call_id = waiting.pop(0) if waiting else f"call_{uuid4().hex}"
            items.append(
                {"type": "function_call_output", "call_id": call_id, "output": content_text(message["content"])}
            )
            continue
        if message.get("content"):
            content = [{"type": "output_text", "text": content_text(message["content"]), "annotations": []}]
            about = {"type": "message", "id": f"msg_{uuid4().hex}", "role": message["role"]}
            items.append({**about, "content": content})
        for call in message.get("tool_calls") or []:
            waiting.append(f"call_{uuid4().hex}")
            items.append({"type": "function_call", "call_id": waiting[-1], **_called(call)})
    return items


def _called(call: JsonObject) -> JsonObject:
    function = call.get("function", call)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"name": function["name"], "arguments": text}


def _prompt(row: JsonObject) -> list[JsonObject]:
    given = row["responses_create_params"]["input"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not messages or messages[-1].get("role") != "user" or any("role" not in message for message in messages):
        raise ConfigError("TRL needs rows that are messages and end with a user message.")
    return [{"role": message["role"], "content": content_text(message["content"])} for message in messages]


def _method(tool: JsonObject) -> Callable[..., str]:
    """Create a method that calls the tool, with the signature and docstring that TRL builds the tool's schema from."""
    name = str(tool["name"])
    if name in NOT_TOOLS or name.startswith("_") or not name.isidentifier():
        raise ConfigError(
            f"TRL cannot use a tool named {name!r}: tools are public methods, and {NOT_TOOLS} are reserved."
        )
    schema = tool.get("parameters") or {}
    described, required = schema.get("properties") or {}, schema.get("required") or []

    def call(self: Any, **arguments: Any) -> str:
        if self._episode is None:
            raise RolloutError("environment", f"{name} was called, but no rollout is running.")
        given = {key: value for key, value in arguments.items() if value is not None or key in required}
        return str(self._episode.call_tool(name, given).text)

    parameters = [
        _parameter(key, described[key], is_required=key in required)
        for key in sorted(described, key=lambda key: key not in required)
    ]
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call.__name__ = call.__qualname__ = name
    call.__doc__ = _docstring(tool, described)
    call.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": str}
    call.__signature__ = inspect.Signature([receiver, *parameters], return_annotation=str)  # type: ignore[attr-defined]
    return call


def _parameter(name: str, described: JsonObject, *, is_required: bool) -> inspect.Parameter:
    kind: Any = PYTHON_TYPES.get(str(described.get("type")), str)
    if is_required:
        return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind | None)


def _docstring(tool: JsonObject, described: JsonObject) -> str:
    about = " ".join(str(tool.get("description") or tool["name"]).split())
    lines = [
        f"    {name}: {' '.join(str(each.get('description') or name).split())}" for name, each in described.items()
    ]
    arguments = ["", "Args:", *lines] if lines else []
    return "\n".join([about, *arguments, "", "Returns:", "    What the tool answers."])
