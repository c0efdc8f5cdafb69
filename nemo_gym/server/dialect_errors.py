"""Errors of model servers in the form of the LLM API that the path belongs to, with the status and the message of the
endpoint. Our own fields stay beside them for callers in this package."""

import math
from typing import Any, Literal

import orjson

from nemo_gym.client.reply import REFUSALS, ServerReply
from nemo_gym.errors import RolloutError, UpstreamError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.server.endpoint import BadBodyError

Dialect = Literal["openai", "anthropic"]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_NAMED = ("type", "param", "code")


def in_dialect(reply: ServerReply, error: Exception | None, dialect: Dialect) -> ServerReply:
    """The error response to a client of that API. Without `error` the handler has made the response itself."""
    upstream = _upstream_of(error)
    try:
        found: Any = orjson.loads(reply.content())
    except orjson.JSONDecodeError:  # a handler's own response
        return reply
    body: JsonObject = found if isinstance(found, dict) else {"detail": found}
    error_field = body.get("error")
    ours: JsonObject = error_field if isinstance(error_field, dict) else {"message": _message(body)}
    status, headers = reply.status, dict(reply.headers)
    if upstream is not None and upstream.status >= 400:
        status = upstream.status
    elif isinstance(error, BadBodyError) or (isinstance(error, RolloutError) and error.cause == "input"):
        status = 400
    if upstream is not None and upstream.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(upstream.retry_after_s))
    defaults = {"type": _TYPES.get(status, "api_error"), "param": None, "code": None}
    body["error"] = {**defaults, **ours, **_endpoint_fields(upstream)}
    if dialect == "anthropic":
        body = {"type": "error", **body}
    return ServerReply(reply.server, status, body, headers=headers)


def _upstream_of(error: BaseException | None) -> UpstreamError | None:
    """The endpoint's error, also if a handler has wrapped it."""
    while error is not None and not isinstance(error, UpstreamError):
        error = error.__cause__
    return error


def _message(body: JsonObject) -> str:
    detail = body.get("detail", body)
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in detail)
    return detail if isinstance(detail, str) else orjson.dumps(detail).decode()


def _endpoint_fields(upstream: UpstreamError | None) -> JsonObject:
    """The names that the endpoint gives its error, except codes that have a meaning among our own servers."""
    if upstream is None:
        return {}
    try:
        fields = orjson.loads(upstream.body)["error"]
        found = {name: fields[name] for name in _NAMED if fields.get(name) is not None}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return {}
    return {} if found.get("code") in REFUSALS else found
