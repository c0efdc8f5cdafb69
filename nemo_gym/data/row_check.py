"""Check that a line of a file is a valid row.

`RowCheck.read` accepts the usual shapes with a few lookups and validates everything else with the full Responses
schema. The fast path never accepts a row that the schema refuses.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError

from nemo_gym.common.words import json_type
from nemo_gym.config.validation import first_error
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.responses import NeMoGymResponseCreateParamsNonStreaming

if TYPE_CHECKING:
    from nemo_gym.server.seed import RowValidator, SlowCheck

PARAMS_KEY = "responses_create_params"
AGENT_REF_KEY = "agent_ref"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_ROLES = frozenset(("user", "assistant", "system", "developer"))
_TOOL_KEYS = frozenset(("name", "type", "description", "parameters", "strict"))
_NUMBERS = (float, int)
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")


class _Row(BaseModel):
    """Like `BaseRunRequest`, without the imports of a server."""

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming


class BadRowError(Exception):
    """A line is not a valid row. Rows with the same problem have the same message."""


class CheckedRow(NamedTuple):
    """A valid row."""

    fields: JsonObject
    """All fields except the parameters."""
    params: JsonObject
    compact: bytes
    """The parameters as JSON without spaces, with sorted keys."""
    separators: int
    """Number of commas and colons in that JSON outside of strings."""


class EnvironmentCode(NamedTuple):
    """The environment that scores the rows of a dataset."""

    name: str
    folder: Path
    entrypoint: str
    settings: str = "{}"
    """The configuration of the environment, as JSON."""


@lru_cache(maxsize=64)
def row_validator(environment: EnvironmentCode) -> "RowValidator":
    """Return the row rules of an environment. Raises StartupError if its code cannot be imported here."""
    from nemo_gym.runtime.class_loader import load_server_class
    from nemo_gym.server.seed import RowValidator

    kind = load_server_class("resources_servers", environment.folder, environment.entrypoint)
    return RowValidator(kind, orjson.loads(environment.settings))


class RowCheck:
    """Checks rows by the Responses schema and by the rules of their environment. Caches the tools of the last row,
    since rows of a dataset mostly offer the same tools."""

    def __init__(
        self,
        environment: "EnvironmentCode | None" = None,
        failed_checks: "Mapping[SlowCheck, str] | None" = None,
        *,
        validator: "RowValidator | None" = None,
    ) -> None:
        self._validator = validator if environment is None else row_validator(environment)
        self._failed_checks = failed_checks or {}
        self._valid_tools: Any = None
        self._tool_separators = 0

    def read(self, line: bytes) -> CheckedRow:
        """Return the row on a line. Raises BadRowError with the reason if it is not valid."""
        fields = _json_object(line)
        params = fields.pop(PARAMS_KEY, None)
        try:
            compact, rest = orjson.dumps(params, option=orjson.OPT_SORT_KEYS), orjson.dumps(fields)
        except orjson.JSONEncodeError:
            raise BadRowError("nested too deeply") from None
        # Parsing drops one value, and its colon, of a repeated key. Only an escaped colon could hide that.
        colons = compact.count(b":") + rest.count(b":") + (params is not None)
        if line.count(b":") != colons or (b"\\" in line and _ESCAPED_COLON.search(line)):
            json.loads(line, object_pairs_hook=_unique)
        separators = self._separators_if_surely_valid(params) if type(params) is dict else None
        if separators is None:
            _validate({PARAMS_KEY: params} if params is not None else fields)
            separators = count_separators(params)
        if self._validator is not None:
            self._check_by_environment({**fields, PARAMS_KEY: params}, self._validator)
        return CheckedRow(fields, params, compact, separators)

    def slow_check(self, line: bytes) -> "SlowCheck | None":
        """Return the slow check of the row on a line, if it needs one."""
        try:
            row = self.read(line)
        except BadRowError:
            return None
        if self._validator is None:
            return None
        return self._validator.slow_check({**row.fields, PARAMS_KEY: row.params})

    def _check_by_environment(self, row: JsonObject, validator: "RowValidator") -> None:
        try:
            validator.check(row)
        except ValueError as error:
            raise BadRowError(" ".join(str(error).split())) from None
        check = validator.slow_check(row) if self._failed_checks else None
        if check is not None and check in self._failed_checks:
            raise BadRowError(" ".join(self._failed_checks[check].split()))

    def _separators_if_surely_valid(self, params: JsonObject) -> int | None:
        """Return the number of separators of parameters that the schema certainly accepts; None for all others."""
        count = 2 * len(params) - 1
        asked = params.get("input")
        if type(asked) is list:
            for item in asked:
                if type(item) is not dict or type(item.get("content")) is not str or item.get("role") not in _ROLES:
                    return None
                length = len(item)
                if length != 2 and (length != 3 or item.get("type") != "message"):
                    return None
                count += 2 * length
            count -= bool(asked)
        elif type(asked) is not str:
            return None
        for name, value in params.items():
            if name == "input":
                continue
            if name == "tools":
                if value != self._valid_tools and not self._are_valid_tools(value):
                    return None
                count += self._tool_separators
            elif not (is_valid := _SURE.get(name)) or not is_valid(value):
                return None
        return count

    def _are_valid_tools(self, tools: Any) -> bool:
        if type(tools) is not list or not all(type(tool) is dict and _is_function_tool(tool) for tool in tools):
            return False
        self._valid_tools, self._tool_separators = tools, count_separators(tools)
        return True


def count_separators(value: Any) -> int:
    """Count the commas and colons in the JSON of a value outside of strings."""
    if type(value) is dict:
        count, inside = 2 * len(value) - 1, value.values()
    else:
        count, inside = len(value) - 1, value
    for inner in inside:
        if type(inner) is dict or type(inner) is list:
            count += count_separators(inner)
    return count if value else 0


def _json_object(line: bytes) -> JsonObject:
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadRowError(_why_not_json(line, error)) from None
    if type(values) is not dict:
        raise BadRowError(f"found {json_type(values)}, expected a JSON object")
    return values


def _why_not_json(line: bytes, error: orjson.JSONDecodeError) -> str:
    if line.startswith(BYTE_ORDER_MARK):
        return "starts with a byte order mark, expected plain UTF-8"
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        return f"not valid UTF-8: {wrong.reason}"
    return f"not valid JSON: {error.msg.partition(':')[0]}"


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRowError(f"the key '{twice[:80]}' occurs twice in one object")
    return found


def _validate(values: JsonObject) -> None:
    try:
        _Row.model_validate(values)
    except ValidationError as error:
        raise BadRowError(first_error(error)) from None


# Shapes that the schema certainly accepts


def _is_function_tool(tool: JsonObject) -> bool:
    return (
        tool.get("type") == "function"
        and type(tool.get("name")) is str
        and type(tool.get("description", "")) is str
        and type(tool.get("parameters", {})) is dict
        and type(tool.get("strict", True)) is bool
        and tool.keys() <= _TOOL_KEYS
    )


def _is_number(value: Any) -> bool:
    return type(value) in _NUMBERS


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _is_boolean(value: Any) -> bool:
    return type(value) is bool


def _is_tool_choice(value: Any) -> bool:
    return type(value) is str and value in ("none", "auto", "required")


_SURE = {
    "temperature": _is_number,
    "top_p": _is_number,
    "max_output_tokens": _is_integer,
    "parallel_tool_calls": _is_boolean,
    "instructions": _is_text,
    "model": _is_text,
    "tool_choice": _is_tool_choice,
}
