"""The steps before a rollout: its row is checked, its session is seeded, and the tool calls that
the row begins with are replayed. A row that can never be scored right ends here, before any model is called."""

import inspect
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, get_args

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from nemo_gym.client.reply import raise_environment_failure
from nemo_gym.common.paths import folder_of, is_ours
from nemo_gym.common.words import shorten
from nemo_gym.compute.pool import Compute, LimitExceededError
from nemo_gym.config.validation import first_error
from nemo_gym.errors import INVALID_ROW, ConfigError, RolloutError
from nemo_gym.llm_api.base import JsonObject, content_text
from nemo_gym.llm_api.json_codec import encode, set_fields
from nemo_gym.llm_api.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server.core import ServerCore
from nemo_gym.server.endpoint import Call, Endpoint, plain_result
from nemo_gym.server.session import Session, SessionState
from nemo_gym.server.tools import any_tools_of, offered_tools, tools_of

logger = logging.getLogger(__name__)

PARAMS, RESPONSE, POLICIES = "responses_create_params", "response", "policies"
MAX_SHOWN = 200
MAX_KNOWN_CHECKS = 100_000
"""Maximum number of outcomes of slow checks that are kept."""

GivenHistory = Literal["replay", "ignore", "refuse"]


Restore = Literal["copy", "replay", "none"]


class Environment(Protocol):
    """The part of an environment that is used here."""

    config: Any

    def core(self) -> ServerCore: ...
    async def _list_tools(self) -> JsonObject: ...


class GivenCall(NamedTuple):
    """A tool call that a row begins with."""

    name: str
    arguments: str
    output: str | None
    """The tool's output in the row; None if the row has none."""


class SlowCheck(NamedTuple):
    """A check of a row that is too slow for the event loop, or may never end."""

    function: Callable[..., str | None]
    """Returns the reason why the row can never be scored right, or None. Importable by its module and name."""
    arguments: tuple[Hashable, ...]
    timeout_s: float
    """CPU time limit. A row whose check exceeds it is refused."""


class SlowChecks:
    """Runs slow checks in other processes, each only once."""

    def __init__(self) -> None:
        self._reasons: dict[SlowCheck, str | None] = {}

    def is_passed(self, check: SlowCheck) -> bool:
        return self._reasons.get(check, "not run yet") is None

    async def reason(self, check: SlowCheck, compute: Compute) -> str | None:
        """The reason why a row with this check can never be scored right, or None."""
        if check not in self._reasons:
            try:
                found = await compute.run(check.function, *check.arguments, timeout_s=check.timeout_s)
            except LimitExceededError as error:
                found = f"its check exceeded a limit: {error}"
            if len(self._reasons) >= MAX_KNOWN_CHECKS:
                self._reasons.clear()
            self._reasons[check] = found
        return self._reasons[check]


_BASE = "nemo_gym.base_resources_server"
"""The module of the checks of an environment that overrides none."""


class RowValidator:
    """Finds the rows that an environment can never score right. It needs the class alone, no server, and what the
    configuration says about the server."""

    def __init__(self, kind: type[Any], settings: Mapping[str, Any] | None = None) -> None:
        self._name = kind.__name__
        self._settings = settings or {}
        own_slow_check = None if kind.slow_check.__module__ == _BASE else kind.slow_check
        self._slow_check: Callable[[JsonObject, Mapping[str, Any]], SlowCheck | None] | None = own_slow_check
        own_check = None if kind.check_row.__module__ == _BASE else kind.check_row
        self._check_row: Callable[[JsonObject], None] | None = own_check
        # An environment written for the public package may expect fields that its agent adds later.
        is_public = _is_in_public_folder(kind) and own_check is None
        self._adapters: list[TypeAdapter[Any]] = [] if is_public else list(map(TypeAdapter, _row_models(kind)))
        self.history: GivenHistory | None = kind.given_history
        if self.history not in (None, *get_args(GivenHistory)):
            expected = ", ".join(get_args(GivenHistory))
            raise ConfigError(f"{kind.__name__}.given_history is {self.history!r}, expected one of: {expected}.")
        self._converses = not kind.next_message.__module__.startswith("nemo_gym.base_")
        """The messages of a conversation change its state, as tool calls do."""
        self._has_state, self._has_session = _names(kind, (SessionState, Session)), _names_request(kind)
        self._has_warned = False

    @property
    def accepts_every_row(self) -> bool:
        found = (self._adapters, self._check_row, self._slow_check, self._has_state, self._has_session)
        return not any(found)

    @property
    def has_slow_check(self) -> bool:
        return self._slow_check is not None

    def slow_check(self, row: Mapping[str, Any]) -> SlowCheck | None:
        """Return the slow check that is left for a row that `check` accepts."""
        if self._slow_check is None:
            return None
        return self._slow_check({**row, PARAMS: _as_json(row[PARAMS])}, self._settings)

    def check(self, row: Mapping[str, Any]) -> None:
        """Raise ValueError with the reason if the row cannot be scored. Its parameters may be JSON or validated."""
        if self._adapters:
            self._check_fields(row)
        if self._check_row is not None:
            self._check_by_code(self._check_row, row)
        if (self._has_state or self._has_session) and has_calls(row):
            self._check_history(row)
        if self._converses and self.history == "refuse" and _has_replies(row):
            raise ValueError(f"`input` has earlier replies, which {self._name} does not take (given_history: refuse)")

    def _check_fields(self, row: Mapping[str, Any]) -> None:
        params = row[PARAMS]
        known = _Params.model_construct(**params) if isinstance(params, dict) else params
        fields = {**row, PARAMS: known, RESPONSE: _NO_RESPONSE}
        for adapter in self._adapters:
            try:
                adapter.validator.validate_python(fields)
            except ValidationError as error:
                if reason := first_error(error, ignored=(PARAMS, RESPONSE)):
                    raise ValueError(reason) from None

    def _check_by_code(self, check_row: Callable[[JsonObject], None], row: Mapping[str, Any]) -> None:
        """Call `check_row`. A row in which it does not find what it looks for is not valid either."""
        try:
            check_row({**row, PARAMS: _as_json(row[PARAMS])})
        except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"check_row of {self._name} cannot read it: {error!r}") from error

    def _check_history(self, row: Mapping[str, Any]) -> None:
        found = "`input` has earlier tool calls"
        if self.history == "replay" and _has_calls_of_policies(row):
            raise ValueError(f"{found} in `policies`, whose order is not known, so they cannot be replayed")
        if self.history == "refuse":
            raise ValueError(f"{found}, which {self._name} does not take (given_history: refuse)")
        if self.history is None and self._has_state:
            raise ValueError(f"{found}; {self._name} must say what they mean: given_history: replay, ignore or refuse")
        if self.history is None and not self._has_warned:
            self._has_warned = True
            logger.warning("%s has rows with earlier tool calls; they are ignored (no given_history)", self._name)


class SeedEndpoint(Endpoint):
    """`/seed_session`: checks the row, seeds the session, and replays the tool calls that the row begins with."""

    def __init__(
        self, server: Environment, seed: Callable[..., Any], *, finish: Any, fields_of: type[BaseModel]
    ) -> None:
        super().__init__("/seed_session", seed, cause="environment", finish=finish, fields_of=fields_of)
        self._server = server
        self._rows, self._slow_checks = RowValidator(type(server), _settings_of(server)), SlowChecks()

    def __call__(self, call: Call) -> Awaitable[Any]:
        try:
            left = self._checked(call.body)
        except ValueError as error:
            raise _invalid_row(error) from error
        return self._seed(call, left) if left.check is None else self._check_and_seed(call, left, left.check)

    def _checked(self, body: Any) -> "_Left":
        """Raise ValueError if the row is not valid, and return what is left to do with it."""
        row = None if self._rows.accepts_every_row else row_in(body)
        if row is None:
            return _NOTHING_LEFT
        self._rows.check(row)
        check = self._rows.slow_check(row)
        return _Left(
            check=None if check is None or self._slow_checks.is_passed(check) else check,
            replay=row if self._rows.history == "replay" and has_calls(row) else None,
        )

    def _seed(self, call: Call, left: "_Left") -> Awaitable[Any]:
        seeding = super().__call__(call)
        return seeding if left.replay is None else self._seed_and_replay(seeding, call, _as_json(left.replay[PARAMS]))

    async def _check_and_seed(self, call: Call, left: "_Left", check: SlowCheck) -> Any:
        if reason := await self._slow_checks.reason(check, self._server.core().compute):
            raise _invalid_row(reason)
        return await self._seed(call, left)

    async def _seed_and_replay(self, seeding: Awaitable[Any], call: Call, params: JsonObject) -> Any:
        result, core = await plain_result(seeding, call), self._server.core()
        if call.session is None or core.direct is None:
            raise AssertionError("an environment with state was called without a session")
        cookies = {core.session_cookie: call.session.token}
        offered = offered_tools(params["tools"] if "tools" in params else (await self._server._list_tools())["tools"])
        for each in given_calls(params):
            if each.name in offered:  # any other call was refused then, too
                reply = await core.direct("POST", f"/{each.name}", each.arguments.encode(), cookies)
                raise_environment_failure(reply)
                _check_output(each, reply.text)
        return result


class _Left(NamedTuple):
    """The checks that are left for a row that is valid so far."""

    check: SlowCheck | None
    replay: Mapping[str, Any] | None
    """The row, if it begins with tool calls to be replayed."""


_NOTHING_LEFT = _Left(None, None)


def _invalid_row(reason: object) -> RolloutError:
    return RolloutError("input", f"The row is not valid: {reason}", code=INVALID_ROW)


def has_calls(row: Mapping[str, Any]) -> bool:
    """True if the row begins with tool calls."""
    return any(_is_call(item) for item in _input_of(row[PARAMS])) or _has_calls_of_policies(row)


def given_calls(params: JsonObject) -> Iterator[GivenCall]:
    """The tool calls in the `input` of a row, in their order."""
    items = _input_of(params)
    outputs = defaultdict[str, deque[Any]](deque)  # endpoints may use an id again
    for item in items:
        if item.get("type") == "function_call_output":
            outputs[item["call_id"]].append(item["output"])
    for item in filter(_is_call, items):
        waiting = outputs[item["call_id"]]
        yield GivenCall(item["name"], item["arguments"], content_text(waiting.popleft()) if waiting else None)


def _check_output(call: GivenCall, output: str) -> None:
    """Raise RolloutError unless the call has answered as it did in the row. JSON may be written another way."""
    if call.output is not None and (call.output == output or _is_same_json(call.output, output)):
        return
    asked = shorten(f"{call.name}({call.arguments})", MAX_SHOWN)
    given = "no output" if call.output is None else shorten(repr(call.output), MAX_SHOWN)
    found = f"{asked} answered {shorten(repr(output), MAX_SHOWN)}; the row has {given}"
    raise RolloutError("input", f"The earlier tool calls of the row cannot be replayed: {found}.", code=INVALID_ROW)


def _is_same_json(one: str, other: str) -> bool:
    try:
        return bool(orjson.loads(one) == orjson.loads(other))
    except orjson.JSONDecodeError:
        return False


def row_in(body: Any) -> Mapping[str, Any] | None:
    """The row that a session is seeded with; None if it is seeded without one."""
    if isinstance(body, bytes):
        try:
            body = orjson.loads(body or b"null")
        except orjson.JSONDecodeError:
            return None  # decoding the body says what is wrong
    row = set_fields(body) if isinstance(body, BaseModel) else body
    return row if isinstance(row, dict) and isinstance(row.get(PARAMS), dict | BaseModel) else None


def _input_of(params: Any) -> Any:
    given = params.get("input") if isinstance(params, dict) else params.input
    return given if isinstance(given, list) else ()


def _is_call(item: Any) -> bool:
    return bool((item.get("type") if isinstance(item, dict) else getattr(item, "type", None)) == "function_call")


def _has_replies(row: Mapping[str, Any]) -> bool:
    """True if the row begins with messages of the model."""
    policies = row.get(POLICIES)
    each = policies.values() if isinstance(policies, dict) else ()
    inputs = [_input_of(row[PARAMS]), *(_input_of(one) for one in each if isinstance(one, dict))]
    return any(_role_of(item) == "assistant" for given in inputs for item in given)


def _role_of(item: Any) -> Any:
    return item.get("role") if isinstance(item, dict) else getattr(item, "role", None)


def _has_calls_of_policies(row: Mapping[str, Any]) -> bool:
    policies = row.get(POLICIES)
    each = policies.values() if isinstance(policies, dict) else ()
    return any(_is_call(item) for one in each if isinstance(one, dict) for item in _input_of(one))


def _as_json(params: Any) -> JsonObject:
    if type(params) is dict:
        return params
    try:
        found: JsonObject = orjson.loads(encode(params, exclude_unset=True))
    except PydanticSerializationError:  # lone surrogates
        found = params.model_dump(exclude_unset=True)
    return found


# What a class says


_Params = NeMoGymResponseCreateParamsNonStreaming
_NO_RESPONSE = NeMoGymResponse(id="resp_none", created_at=0.0, model="", output=[])


def _settings_of(server: Environment) -> Mapping[str, Any]:
    config = server.config
    return config.model_dump() if isinstance(config, BaseModel) else {}


def _is_in_public_folder(kind: type[Any]) -> bool:
    """True for the class of a folder that is not one of ours. A class in a script is in no folder."""
    folder = folder_of(kind.__module__)
    return folder is not None and not is_ours(folder)


def _row_models(kind: type[Any]) -> Iterator[type[BaseModel]]:
    """The bodies of `seed_session` and `verify` that declare fields of the row."""
    for name in ("seed_session", "verify"):
        try:
            handler, base = getattr(kind, name).__get__(kind), kind.BODIES[name]
            body = Endpoint(f"/{name}", handler, cause="environment", fields_of=base).arguments
        except (ConfigError, TypeError, NameError):
            continue  # an error when the server starts
        if body is not None and not body.model_fields.keys() <= {PARAMS, RESPONSE}:
            yield body


def _handlers_of(kind: type[Any]) -> list[Callable[..., Any]]:
    named = [getattr(kind, name) for name in ("seed_session", "verify", "next_message")]
    return [*named, *tools_of(kind).values(), *any_tools_of(kind)]


def _annotations_of(kind: type[Any]) -> Iterator[type[Any]]:
    for handler in _handlers_of(kind):
        try:
            parameters = inspect.signature(handler, eval_str=True).parameters.values()
        except (TypeError, NameError):
            continue
        yield from (each.annotation for each in parameters if isinstance(each.annotation, type))


def restore_mode(kind: type[Any]) -> Restore:
    """Return how an environment comes back to an earlier step of a rollout."""
    if kind.restore is not None:
        found: Restore = kind.restore
        return found
    has_state = _names(kind, (SessionState, Session)) or _names_request(kind)
    return "replay" if not has_state or kind.given_history == "replay" else "none"


def _names(kind: type[Any], wanted: tuple[type[Any], ...]) -> bool:
    """True if a handler asks for an object of these types."""
    return any(issubclass(each, wanted) for each in _annotations_of(kind))


def _names_request(kind: type[Any]) -> bool:
    """True if a handler asks for the request, through which public environments reach their sessions."""
    return any(each.__module__ == "starlette.requests" for each in _annotations_of(kind))
