"""What a caller is told when a handler fails: a status and a JSON body, the same over HTTP and in a direct call."""

import logging
import sys
from typing import Any, NamedTuple

from nemo_gym.client.reply import error_told_in
from nemo_gym.compute.pool import ComputeError
from nemo_gym.errors import Cause, ConfigError, RolloutError, SessionError, SessionLostError, UpstreamError
from nemo_gym.server.endpoint import BadBodyError

logger = logging.getLogger(__name__)

MAX_FOUND = 300
MAX_DETAILS = 20
"""A body with more mistakes than that is of another kind altogether."""
_STATUS_OF_CAUSE: dict[Cause, int] = {"timeout": 504, "input": 422, "internal": 500}


class Failure(NamedTuple):
    status: int
    body: Any


class RefusedError(Exception):
    """A request turned away before any handler saw it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def failure_of(error: Exception, *, server: str, key: str, cause: Cause) -> Failure:
    """The answer that stands for `error`. What nobody foresaw is logged with its trace."""
    if isinstance(error, BadBodyError):
        return Failure(422, {"detail": _details(error)})
    if isinstance(error, RefusedError):
        return Failure(error.status, {"detail": error.detail})
    if isinstance(error, RolloutError):
        return _response_to(error, server)
    if isinstance(error, UpstreamError | ComputeError):
        return _response_to(RolloutError(getattr(error, "cause", None) or cause, str(error), retryable=True), server)
    if isinstance(error, ConfigError):
        return _response_to(RolloutError(cause, str(error), retryable=False), server)
    raised: Any = error
    if _is_a(error, "aiohttp", "ClientResponseError"):
        return _inner_failure(getattr(raised, "response_content", b""), key)
    if _is_a(error, "starlette.exceptions", "HTTPException"):
        return Failure(raised.status_code, {"detail": raised.detail})
    logger.error("%s failed in a handler: %r", server, error, exc_info=error)
    return Failure(500, repr(error))


def _response_to(error: RolloutError, server: str) -> Failure:
    body = {
        "cause": error.cause,
        "message": str(error),
        "server": error.server or server,
        "retryable": error.retryable,
        **({"code": error.code} if error.code else {}),
        **({"response": error.response} if error.response is not None else {}),
    }
    return Failure(_status_of(error), {"detail": str(error), "error": body})


def _status_of(error: RolloutError) -> int:
    if isinstance(error, SessionError):
        return 410 if isinstance(error, SessionLostError) else 401
    return _STATUS_OF_CAUSE.get(error.cause, 502)


def _details(bad: BadBodyError) -> list[dict[str, Any]]:
    """Each mistake as FastAPI lists it. What was found is told when it is short enough to help."""
    found = bad.error.errors(include_url=False, include_context=False)[:MAX_DETAILS]
    return [
        {"type": item["type"], "loc": ["body", *item["loc"]], "msg": item["msg"], **_found(item["input"])}
        for item in found
    ]


def _found(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"input": value if len(value) <= MAX_FOUND else value[:MAX_FOUND] + "..."}
    return {"input": value} if isinstance(value, int | float | bool | None) else {}


def _inner_failure(content: bytes, key: str) -> Failure:
    """A handler called another server itself and let its failure through."""
    error = error_told_in(content)
    if error is not None:
        return _response_to(error, "")
    return Failure(500, f"Hit an exception in {key} calling an inner server: {content!r}")


def _is_a(error: Exception, module: str, name: str) -> bool:
    """Whether it is an error of a module that, if nobody has imported it, cannot have raised it."""
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))
