"""One handler of a server. Its signature names by type what it needs; the signature is read once, at start."""

import hmac
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from pydantic import BaseModel, ValidationError

from nemo_gym.client.call_log import current_rollout_id
from nemo_gym.client.head import CALLER_HEADER
from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply
from nemo_gym.common.cookies import parse_set_cookies
from nemo_gym.common.deadline import Deadline, current_deadline
from nemo_gym.common.event_loop import run_in_thread
from nemo_gym.common.plugins import plugin
from nemo_gym.common.statistics import RequestStats
from nemo_gym.compute.pool import Compute
from nemo_gym.errors import BlockedError, Cause, ConfigError
from nemo_gym.llm_api.json_codec import Decoder, FrozenBody
from nemo_gym.server.asgi import call_asgi
from nemo_gym.server.session import Session, SessionState
from nemo_gym.server.tools import PARTICIPANT_COOKIE, POLICY, Participant, ToolName, arguments_model

if TYPE_CHECKING:
    from starlette.responses import Response

_OPEN_ENDED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
NO_DEADLINE_S = 10 * 365 * 86400.0

CALLER = CALLER_HEADER.encode()
ANY_TOOL = "/{tool}"
"""The path of an endpoint that answers calls of all tools without an endpoint of their own."""


class Call(msgspec.Struct):
    """One request, by HTTP or direct."""

    path: str
    body: Any
    cookies: Mapping[str, str]
    client: ServerClient
    compute: Compute
    session: Session | None = None
    scope: Mapping[str, Any] | None = None
    jar: CookieJar | None = None
    response: "Response | None" = None
    raises_errors: bool = False
    """True if an error that the handler's code did not expect is raised, not answered: tests call apps so."""
    ends_session: bool = False
    """True for the last call of a session. It gives its body away, so a live one is not copied."""
    sent: Any = None
    """The body as it came, for handlers that read it from the request."""
    interruption: BlockedError | None = None
    """The exception that the watchdog raised in the code of this call, or in a task that it started."""
    server: str = ""
    endpoint: "Endpoint | None" = None
    started: float = 0.0
    """The endpoint that answers the call, and its start time, once it runs."""

    @property
    def stage(self) -> str:
        return "" if self.endpoint is None else self.endpoint.stage


_STAGE_OF_CAUSE: dict[Cause, str] = {"environment": "seed", "verifier": "verify", "tool": "tool", "model": "model"}
STAGE_OF_PATH = {"/seed_session": "seed", "/verify": "verify", "/run": "rollout"}
"""The stages of a rollout that requests belong to, for metrics."""


class BadBodyError(Exception):
    """A request body that is not valid. Distinct from a ValidationError that a handler raises."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__(
            f"{error.error_count()} validation errors for {error.title}"
        )  # not all of them: it may be many
        self.error = error


Provide = Callable[[Call], Any]
Finish = Callable[[Any, Any], Any]


class Endpoint:
    """A bound method and how to call it: with a body of bytes or an object, by HTTP or direct."""

    opens_session: ClassVar[bool] = True
    limits_keys: bool = True
    """False if bodies may have more keys than `max_body_keys`."""

    def __init__(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        cause: Cause,
        finish: Finish | None = None,
        is_tool: bool = False,
        fields_of: type[BaseModel] | None = None,
    ) -> None:
        """A handler that names no body but fields of it, such as `verify(self, response, word: str)`, gets these. The
        body is then `fields_of` with the fields that it lacks."""
        if not is_tool and _names_fastapi(function):
            function = plugin("fastapi").with_parameters(function)
        self.path, self.function, self.cause, self.finish = path, function, cause, finish
        self.fields_of = fields_of
        self.stage = STAGE_OF_PATH.get(path) or _STAGE_OF_CAUSE.get(cause, "agent")
        self.is_async = inspect.iscoroutinefunction(function)
        self.stats = RequestStats()
        self._decode: Decoder | None = None
        self.arguments: type[BaseModel] | None = None
        self.needs_session = self._keeps_sent = False
        self._provide = self._plan(is_tool=is_tool)

    def shape_error(self, reply: ServerReply, _error: BaseException) -> ServerReply:
        """The error response as the callers of this endpoint read it."""
        return reply

    def __call__(self, call: Call) -> Awaitable[Any]:
        """Decode the body, collect what the handler needs, and start it. `finish` takes the result."""
        body = call.body
        if self._keeps_sent:
            call.sent = body
        if self._decode is not None:
            try:
                call.body = self._decode(body, is_given=call.ends_session)
            except ValidationError as error:
                raise BadBodyError(error) from error
        given = {}
        for name, provide in self._provide.items():  # not a comprehension, which is a call of its own
            given[name] = provide(call)
        return self.function(**given) if self.is_async else run_in_thread(self.function, **given)

    def _plan(self, *, is_tool: bool) -> dict[str, Provide]:
        plan: dict[str, Provide] = {}
        arguments: list[inspect.Parameter] = []
        takes_fields = is_tool or self.fields_of is not None
        known = self.fields_of.model_fields if self.fields_of else {}
        for parameter in inspect.signature(self.function, eval_str=True).parameters.values():
            is_field = parameter.name in known
            provide = None if is_field else self._provider_of(parameter, is_tool=is_tool)
            if provide is not None:
                plan[parameter.name] = provide
            elif takes_fields and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                arguments.append(parameter)
                plan[parameter.name] = _argument(parameter.name)
            elif parameter.default is parameter.empty and parameter.kind not in _OPEN_ENDED:
                raise ConfigError(self._unknown(parameter))
        if arguments and self._decode is not None:
            raise ConfigError(self._unknown(arguments[0]))
        names_nothing_of_row = known and self._decode is None and not self._keeps_sent
        if arguments or names_nothing_of_row:
            own = [parameter for parameter in arguments if parameter.name not in known]
            self.arguments = arguments_model(self.path.strip("/"), own, self.fields_of)
            self._decode = Decoder(self.arguments)
        return plan

    def _provider_of(self, parameter: inspect.Parameter, *, is_tool: bool) -> Provide | None:
        kind = parameter.annotation
        if isinstance(kind, type):
            if issubclass(kind, SessionState):
                self.needs_session = True
                return lambda call: _session(call).state(kind)
            if kind is Session:
                self.needs_session = True
                return _session
            if kind.__module__.startswith("starlette."):
                self.needs_session = self._keeps_sent = True
                by_fastapi: Provide = plugin("fastapi").provider_of(kind)
                return by_fastapi
            for known, provide in _PROVIDED.items():
                if issubclass(kind, known):
                    return provide
            if issubclass(kind, BaseModel | FrozenBody) and (not is_tool or parameter.name == "body"):
                return self._body(kind)
        if parameter.name == "body" and not is_tool:
            return self._body(Any if kind is parameter.empty else kind)
        return None

    def _body(self, kind: Any) -> Provide:
        self._decode = Decoder(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            self.arguments = kind
        return attrgetter("body")

    def _unknown(self, parameter: inspect.Parameter) -> str:
        place = f"{self.function.__qualname__}() asks for '{parameter}'"
        return (
            f"{place}, which nothing provides. A handler may name: a body (a pydantic model) or, without one, fields "
            "of the row; its session (a SessionState subclass), a ServerClient, a Compute, a Deadline, a CookieJar, a "
            "ToolName, a Participant, or what FastAPI provides."
        )


def _names_fastapi(function: Callable[..., Any]) -> bool:
    """True if a parameter has a type, a default or a marker of FastAPI or Starlette."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    kinds = (kind for each in parameters for kind in (each.annotation, type(each.default), *_markers(each)))
    modules = (str(getattr(kind, "__module__", "")) for kind in kinds)
    return any(module.partition(".")[0] in ("fastapi", "starlette") for module in modules)


def _markers(parameter: inspect.Parameter) -> list[type]:
    return [type(marker) for marker in getattr(parameter.annotation, "__metadata__", ())]


def _argument(name: str) -> Provide:
    return attrgetter(f"body.{name}")


def _session(call: Call) -> Session:
    if call.session is None:
        raise AssertionError("an endpoint that needs a session was called without one")
    return call.session


def _cookie_jar(call: Call) -> CookieJar:
    if call.jar is None:
        call.jar = CookieJar(call.cookies)
    return call.jar


def _deadline(_call: Call) -> Deadline:
    return current_deadline() or Deadline.after(NO_DEADLINE_S)


_PROVIDED: dict[type, Provide] = {
    ServerClient: attrgetter("client"),
    Compute: attrgetter("compute"),
    CookieJar: _cookie_jar,
    Deadline: _deadline,
    ToolName: lambda call: ToolName(call.path.removeprefix("/")),
    Participant: lambda call: Participant(call.cookies.get(PARTICIPANT_COOKIE, POLICY)),
}


def is_from_this_run(call: Call) -> bool:
    """True for a direct call, and for a request that shows the key which only servers of this run have."""
    if call.scope is None:
        return True
    key, shown = call.client.caller_key, dict(call.scope["headers"]).get(CALLER, b"")
    return isinstance(key, str) and bool(key) and hmac.compare_digest(shown, key.encode())


def direct_scope(call: Call, *, method: str = "POST") -> dict[str, Any]:
    """The ASGI scope of a direct call."""
    cookie = "; ".join(f"{name}={value}" for name, value in call.cookies.items())
    rollout_id = current_rollout_id()
    return {
        "type": "http",
        "path_params": {} if rollout_id is None else {"rollout_id": rollout_id},
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": call.path,
        "raw_path": call.path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (CALLER, call.client.caller_key.encode()),
            *([(b"cookie", cookie.encode())] if cookie else []),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }


async def plain_result(running: Awaitable[Any], call: Call) -> Any:
    """Await a handler and return its value; of a Starlette response, our reply."""
    value = await running
    return await read_response(call, value) if callable(value) else value


async def read_response(call: Call, response: Any) -> ServerReply:
    """A Starlette response that a handler has returned, as our reply. It is an ASGI app; its background tasks run."""
    scope = direct_scope(call) if call.scope is None else dict(call.scope)
    call.response = response
    return await call_asgi(response, scope, b"")


def cookies_set_by(call: Call) -> dict[str, str]:
    """The cookies that the reply carries, besides the server's own session cookie: all that the handler has, so that a
    caller who continues with the cookies of this reply keeps every session."""
    found = dict(call.jar) if call.jar else {}
    return found if call.response is None else {**found, **set_cookies(call.response.raw_headers)}


def set_cookies(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The cookies that the headers of a reply set."""
    return parse_set_cookies(value.decode("latin-1") for name, value in headers if name.lower() == b"set-cookie")
