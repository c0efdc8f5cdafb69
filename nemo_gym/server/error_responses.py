"""Error responses: a status and a JSON body, the same over HTTP and in a direct call."""

import asyncio
import logging
import sys
import traceback
from typing import Any

import orjson

from nemo_gym.client.reply import ServerReply, parse_error
from nemo_gym.common.exceptions import exception_repr, exception_str, leaf_errors
from nemo_gym.common.logging import RateLimitedLog
from nemo_gym.common.redaction import process_redactor, redact
from nemo_gym.common.retry import RETRIED_STATUSES
from nemo_gym.compute.pool import ComputeError
from nemo_gym.errors import (
    BLOCKED_CODE,
    SETUP_CODE_FIELD,
    SETUP_CODES,
    UNREACHABLE,
    BlockedError,
    Cause,
    ConfigError,
    GymError,
    OverloadedError,
    ProcessLostError,
    RolloutError,
    SessionError,
    SessionLostError,
    ToolError,
    UpstreamError,
    default_status,
)
from nemo_gym.llm_api.endpoint_errors import setup_code
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.server.asgi import RefusedError
from nemo_gym.server.endpoint import BadBodyError

logger = logging.getLogger(__name__)
rate_limited = RateLimitedLog(logger)

MAX_INPUT = 300
MAX_ERRORS = 10_000
MAX_DETAILS = 20
"""Maximum number of validation errors in a response. The first ones are enough to see what is wrong."""
MAX_LOGGED_KINDS = 1000
_logged: set[tuple[str, str, str]] = set()
"""Server, type and line of the unexpected exceptions that were logged."""
_STATUS_OF_CODE = {
    SessionLostError.CODE: 410,
    ProcessLostError.CODE: 410,
    SessionError.CODE: 401,
    OverloadedError.CODE: 503,
}
_STATUS_OF_CAUSE: dict[Cause, int] = {"timeout": 504, "input": 422, "internal": 500}


def failure_of(error: BaseException, *, server: str, key: str, cause: Cause) -> ServerReply:
    """The response for `error`, without secrets. An unexpected exception is logged with its traceback."""
    status, body = _failure_of(error, server=server, key=key, cause=cause)
    redacted = redact_body(body) if isinstance(body, bytes) else _with_response(process_redactor().value(body), body)
    headers = getattr(error, "headers", None)  # of an HTTPException
    return ServerReply(server, status, redacted, headers=headers if isinstance(headers, dict) else {})


def is_expected(error: BaseException) -> bool:
    """True for an error that says what its response is."""
    return isinstance(error, GymError | BadBodyError | RefusedError) or _is_a(
        error, "starlette.exceptions", "HTTPException"
    )


def cause_of(reply: ServerReply, default: Cause) -> str:
    """The cause of a failure, for metrics. A refused request is an error of its input."""
    error = reply.value.get("error") if isinstance(reply.value, dict) else None
    if isinstance(error, dict):
        return str(error.get("cause", default))
    return "input" if reply.status < 500 else default


def redact_body(body: bytes) -> bytes:
    """Mask secrets in the body of an error response, JSON or text."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return redact(body.decode(errors="replace")).encode()
    redacted = _with_response(process_redactor().value(value), value)
    return body if redacted == value else encode(redacted)


def _with_response(redacted: Any, body: Any) -> Any:
    """Keep the model's response in an error as the model gave it: `ng_reverify` scores it."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and error.get("response") is not None:
        return {**redacted, "error": {**redacted["error"], "response": error["response"]}}
    return redacted


def _failure_of(error: BaseException, *, server: str, key: str, cause: Cause) -> tuple[int, Any]:
    raised: Any = error
    found: RolloutError | None
    if isinstance(error, ToolError):
        return 400, exception_str(error).encode(errors="backslashreplace")
    if isinstance(error, BadBodyError):
        return 422, {"detail": _details(error)}
    if isinstance(error, RefusedError):
        return error.status, {"detail": error.detail}
    if _is_a(error, "starlette.exceptions", "HTTPException"):
        return raised.status_code, {"detail": raised.detail}
    if isinstance(error, RolloutError):
        found = error
    elif isinstance(error, UpstreamError):
        found = _upstream_failure(error, cause)
    elif isinstance(error, ComputeError):
        found = RolloutError(
            getattr(error, "cause", None) or cause, exception_str(error), retryable=error.is_retryable
        )
    elif isinstance(error, ConfigError):
        found = RolloutError(cause, exception_str(error), retryable=False)
    elif _is_a(error, "aiohttp", "ClientResponseError"):  # a handler called another server and let its error pass
        content = getattr(raised, "response_content", b"")
        found = parse_error(content)
        if found is None:
            text = content.decode(errors="replace")
            return 500, f"Hit an exception in {key} calling an inner server: {text}"
    elif (blocked := next((each for each in leaf_errors(error) if isinstance(each, BlockedError)), None)) is not None:
        found = _blocked_failure(blocked, error, cause)
        rate_limited.warning(server, "%s", blocked)
    elif isinstance(error, asyncio.CancelledError):
        found = _cancellation_failure(error, cause)
        _log_unexpected(error, server, found.cause)
    elif cause == "tool" and not isinstance(error, Exception):  # such as SystemExit: no result for the model to read
        found = RolloutError("environment", f"A tool raised {exception_repr(error)}.", retryable=False)
        _log_unexpected(error, server, found.cause)
    else:
        _log_unexpected(error, server, cause)
        return 500, exception_repr(error)
    return _response_to(found, server)


def _log_unexpected(error: BaseException, server: str, cause: Cause) -> None:
    """Log the first exception of a kind with the line it came from: a tool may fail in every call of every rollout."""
    frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
    place = f"{frame.f_code.co_filename}:{line}"
    kind = (server, type(error).__name__, place)
    level = logging.DEBUG if kind in _logged else logging.ERROR
    if len(_logged) < MAX_LOGGED_KINDS:
        _logged.add(kind)
    if cause == "tool":
        advice = "The model sees that; raise ToolError(text) for an expected failure. Further ones are not logged"
        logger.log(level, "a tool of %s raised %s at %s. %s", server, exception_repr(error), place, advice)
    else:
        text = "%s failed in a handler: %s. Further ones are not logged"
        logger.log(level, text, server, exception_repr(error), exc_info=error)


def _upstream_failure(error: UpstreamError, cause: Cause) -> RolloutError:
    """Not retryable for a refusal of the request itself (4xx): the next attempt would be refused, too."""
    is_refusal = 400 <= error.status < 500 and error.status not in RETRIED_STATUSES
    kind = error.cause or cause
    status = None if kind == "timeout" else error.status or UNREACHABLE
    return RolloutError(kind, str(error), retryable=not is_refusal, code=setup_code(error), status=status)


def _cancellation_failure(error: asyncio.CancelledError, cause: Cause) -> RolloutError:
    """A handler awaited what another rollout cancelled. That is no result of a tool for the model to read."""
    message = (
        f"{exception_repr(error)}, but nobody cancelled this rollout. Await a task that several rollouts share with "
        "asyncio.shield(task)."
    )
    found = RolloutError("environment" if cause == "tool" else cause, message, retryable=True)
    found.response = getattr(error, "response", None)
    return found


def _blocked_failure(blocked: BlockedError, raised: BaseException, cause: Cause) -> RolloutError:
    """A tool that blocks everybody is no result for the model to read either."""
    found = RolloutError("environment" if cause == "tool" else cause, str(blocked), code=BLOCKED_CODE)
    found.response = getattr(raised, "response", None)
    return found


def _response_to(error: RolloutError, server: str) -> tuple[int, Any]:
    message = exception_str(error)
    body = {
        "cause": error.cause,
        "message": message,
        "server": error.server or server,
        "retryable": error.retryable,
        **({} if error.status == default_status(error.cause) else {"status": error.status}),
        **({"code": error.code} if error.code else {}),
        # `code` may become the endpoint's own for its clients; this one stays
        **({SETUP_CODE_FIELD: error.code} if error.code in SETUP_CODES else {}),
        **({"response": error.response} if error.response is not None else {}),
    }
    status = _STATUS_OF_CODE.get(error.code or "") or _STATUS_OF_CAUSE.get(error.cause, 502)
    return status, {"detail": message, "error": body}


def _details(bad: BadBodyError) -> list[dict[str, Any]]:
    """Validation errors as FastAPI lists them. The input is included if it is short."""
    if bad.error.error_count() > MAX_ERRORS:  # to list them takes memory for all of them
        return [{"type": "too_many_errors", "loc": ["body"], "msg": str(bad)}]
    found = bad.error.errors(include_url=False, include_context=False)[:MAX_DETAILS]
    return [
        {"type": item["type"], "loc": ["body", *item["loc"]], "msg": item["msg"], **_input(item["input"])}
        for item in found
    ]


def _input(value: Any) -> dict[str, Any]:
    if isinstance(value, str) and len(value) > MAX_INPUT:
        value = value[:MAX_INPUT] + "..."
    return {"input": value} if isinstance(value, str | int | float | None) else {}


def _is_a(error: BaseException, module: str, name: str) -> bool:
    """isinstance, without importing the module: if nobody has imported it, it cannot have raised the error."""
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))
