"""Everything raised on purpose. Each error survives pickling, so a trainer in another process can read it."""

import json
from typing import Any, ClassVar, Literal, get_args

Cause = Literal["model", "tool", "verifier", "judge", "environment", "timeout", "input", "internal"]
"""Why a rollout has no result, named for the boundary that failed."""

CAUSES: tuple[Cause, ...] = get_args(Cause)

PERMANENT_CAUSES: frozenset[Cause] = frozenset(("input", "verifier"))
"""Causes for which another attempt fails the same way, unless the error says otherwise."""


UNREACHABLE_CODE = "unreachable"
SETUP_CODES: frozenset[str] = frozenset(("unauthorized", "no_quota", "unknown_model", "not_found", UNREACHABLE_CODE))
"""The `code` of a failure of a model endpoint that every other request would meet too."""
SETUP_CODE_FIELD = "setup_code"

INVALID_ROW = "invalid_row"
"""The `code` of a failure of a row that its environment can never score right."""

GROUP_VERIFICATION = "group_verification"
"""The `code` of a rollout that was played and will be scored together with its group."""

NOT_RESTORED = "not_restored"
"""The `code` of a rollout that was to go on from an earlier step, and did not get back there."""

UNREACHABLE = 503
"""The status of an error about a server that did not answer."""


def default_status(cause: Cause) -> int:
    """The status of an error that no upstream has given one."""
    return {"timeout": 504, "input": 422}.get(cause, 500)


class GymError(Exception):
    """The base of all errors raised on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(kind: type[GymError], args: tuple[Any, ...], state: dict[str, Any]) -> GymError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(GymError, ValueError):
    """The configuration is not valid."""


class MissingPathError(ConfigError, FileNotFoundError):
    """A file or folder that the user named does not exist."""


class InheritPathNotFoundError(ConfigError):
    """A directive of the configuration names a block or a key that is not there."""


class MalformedConfigPathsError(ConfigError):
    """`config_paths` is not a list of files."""


class UnknownServerError(ConfigError, AssertionError):
    """A reference names a server that is not in the configuration."""


class NoServerInstancesError(ConfigError):
    """The configuration has no server to start."""


class ConfigMissingValuesError(ConfigError):
    """A required value is still '???'."""


class ConfigInterpolationError(ConfigError):
    """An interpolation cannot be resolved."""


class AlmostServerError(ConfigError):
    """A block with an entrypoint is not a valid server."""


class PortError(ConfigError, OSError):
    """A port is taken or not allowed."""


class MissingExtraError(GymError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part. Install it with: pip install 'nemo-gym[{extra}]'")


class StartupError(GymError, RuntimeError):
    """A server could not be started, or ended while others depend on it."""


class HeadServerError(GymError, ValueError):
    """No head server answers where one was expected."""


class SetupError(GymError):
    """A model endpoint refuses or misses every request, so that no rollout can succeed."""


class StorageError(GymError):
    """Output cannot be written."""


class AggregationError(GymError):
    """The metrics that an environment computes over all its rollouts are not available."""


class UpstreamError(GymError):
    """Another server or a model endpoint answered badly, or not at all (status 0)."""

    def __init__(
        self, server: str, status: int, body: str, *, cause: Cause | None = None, retry_after_s: float | None = None
    ) -> None:
        answered = f"answered {status}" if status else "did not answer"
        text = " ".join(message_in(body).split())[:500]  # line breaks could forge log lines
        super().__init__(f"{server} {answered}: {text}")
        self.server, self.status, self.body = server, status, body
        self.cause, self.retry_after_s = cause, retry_after_s


class ConnectError(UpstreamError):
    """No connection was made, so the request certainly had no effect."""


class UnreachableError(ConnectError):
    """No connection was made, and none to this endpoint was ever made before."""

    @classmethod
    def of(cls, error: ConnectError) -> "UnreachableError":
        """Return the same error, marked as the first contact with the server."""
        return cls(error.server, error.status, error.body, cause=error.cause or "model")


def message_in(body: str) -> str:
    """The message in the error response of an endpoint, whichever way it wraps it, or else the whole response."""
    try:
        found = json.loads(body)
        error = found.get("error") or found
        message = error if isinstance(error, str) else error.get("message") or error.get("detail")
        if isinstance(message, list):  # FastAPI's validation errors
            message = "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in message)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return body
    return message.removeprefix(": ") if isinstance(message, str) else body


class RolloutError(GymError):
    """A rollout ended without a result. `cause` names the boundary that failed, `server` the server that reported it.

    `retryable` is False if another attempt would fail the same way; without it the cause decides. `code` is a
    machine-readable detail, such as `session_lost`. `response` is the model's response, if there was one before the
    failure. `status` is an HTTP status: the upstream's, else 503 if a server cannot be reached, 504 for a timeout, 422
    for bad input, 500 otherwise. `response_content` is the body that came with it. In a trainer's session, `row` and
    `rollout_id` say which rollout it was, and `partial` what was played of it.
    """

    def __init__(
        self,
        cause: Cause,
        message: str,
        *,
        server: str | None = None,
        retryable: bool | None = None,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status: int = default_status(cause) if status is None else status
        self.response_content: bytes = message.encode()
        self.cause: Cause = cause
        self.server, self.code = server, code
        self.response: Any = None
        self.row: Any = None
        self.rollout_id: int | None = None
        self.partial: Any = None
        self.retryable = cause not in PERMANENT_CAUSES if retryable is None else retryable


BLOCKED_CODE = "blocked"
"""The `code` of a failure of code that blocked the event loop."""


class BlockedError(BaseException):
    """Raised in code that has blocked the event loop for too long. Its rollout fails with the code `blocked`.

    It is no Exception, so that `except Exception` does not catch it.
    """


class ToolError(GymError):
    """An expected failure of a tool, such as `ToolError("no such file")`. The model sees the text as the output of the
    tool, and nothing is logged."""


class SessionError(RolloutError):
    """A request carries a session token that this server did not issue, or that belongs to another worker."""

    CODE: ClassVar[str] = "session_invalid"

    def __init__(self, message: str, *, server: str | None = None) -> None:
        super().__init__("environment", message, server=server, code=self.CODE)


class SessionLostError(SessionError):
    """The session that a request names has ended, has expired, or was lost when its worker died."""

    CODE = "session_lost"


class ProcessLostError(SessionLostError):
    """The process of a server died, and with it the session or the call. No rollout in it is charged an attempt."""

    CODE = "process_lost"


class OverloadedError(RolloutError):
    """A server refused a request before any handler saw it, because it is at one of its limits."""

    CODE: ClassVar[str] = "overloaded"

    def __init__(self, message: str, *, server: str | None = None) -> None:
        super().__init__("environment", message, server=server, code=self.CODE)
