"""What a caller is told when a handler fails: a status and a JSON body, the same over HTTP and in a direct call."""

import logging
import sys
from typing import Any, NamedTuple

import aiohttp
import orjson

from nemo_gym.codec import encode
from nemo_gym.endpoints import BadBodyError
from nemo_gym.errors import CAUSES, Cause, RolloutError, SessionError, UpstreamError

logger = logging.getLogger(__name__)

_STATUS_OF_CAUSE: dict[Cause, int] = {"timeout": 504, "input": 422, "internal": 500}


LONGEST_INPUT_SHOWN = 300


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
    if isinstance(error, SessionError):
        return Failure(401, {"detail": str(error)})
    if isinstance(error, RolloutError):
        return _told(str(error), error.cause, error.server or server)
    if isinstance(error, UpstreamError):
        return _told(str(error), error.cause or cause, server)
    if isinstance(error, aiohttp.ClientResponseError):
        return _inner_failure(error, key)
    if _is_http_exception(error):
        return Failure(error.status_code, {"detail": error.detail})  # type: ignore[attr-defined]
    logger.error("%s failed in a handler: %r", server, error, exc_info=error)
    return Failure(500, repr(error))


def _told(message: str, cause: Cause, server: str) -> Failure:
    told = {"cause": cause, "message": message, "server": server}
    return Failure(_STATUS_OF_CAUSE.get(cause, 502), {"detail": message, "error": told})


def _details(bad: BadBodyError) -> list[dict[str, Any]]:
    found = bad.error.errors(include_url=False, include_context=False)
    return [{**item, "loc": ["body", *item["loc"]], "input": _shown(item["input"])} for item in found]


def _shown(value: Any) -> Any:
    """What was found, if it is short and JSON can hold it; else the start of its text."""
    try:
        text = encode(value).decode()
    except (TypeError, ValueError):
        text = repr(value)
    if isinstance(value, bytes) or len(text) > LONGEST_INPUT_SHOWN:
        return text if len(text) <= LONGEST_INPUT_SHOWN else f"{text[:LONGEST_INPUT_SHOWN]}..."
    return value


def _inner_failure(error: aiohttp.ClientResponseError, key: str) -> Failure:
    """A handler called another server itself and let its failure through."""
    content: bytes = getattr(error, "response_content", b"")
    try:
        told = orjson.loads(content)["error"]
        if told["cause"] in CAUSES:
            return _told(told["message"], told["cause"], told.get("server", ""))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        pass
    return Failure(500, f"Hit an exception in {key} calling an inner server: {content!r}")


def _is_http_exception(error: Exception) -> bool:
    module = sys.modules.get("starlette.exceptions")
    return module is not None and isinstance(error, module.HTTPException)
