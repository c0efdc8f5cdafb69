"""The endpoints of a model server. Its handlers return complete answers in two dialects; streams and `/v1/messages`
are derived from them here, so every model server has them. Errors have the form of the LLM API that the path belongs
to, with the status and the message of the endpoint; our own fields stay beside them for callers in this package."""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar
from urllib.parse import unquote
from uuid import uuid4

import orjson
from pydantic import ValidationError

from nemo_gym.client.reply import REFUSALS
from nemo_gym.client.server_client import ServerReply
from nemo_gym.errors import RolloutError, UpstreamError
from nemo_gym.llm_api.base import TOKEN_NAMES, JsonObject, WireModel, drop_token_fields
from nemo_gym.llm_api.chat import NeMoGymChatCompletion
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.llm_api.responses_anthropic import MessagesParams, message_of, responses_params
from nemo_gym.llm_api.stream_events import EventStream, chat_events, completion_events, message_events, response_events
from nemo_gym.server.endpoint import BadBodyError, Call, Endpoint, is_from_this_run, plain_result

logger = logging.getLogger(__name__)

T = TypeVar("T")
AsEvents = Callable[[JsonObject, JsonObject], Iterable[bytes]]
"""Makes the events of an answer, given the answer and the request."""
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


class StreamableEndpoint(Endpoint):
    """An endpoint that supports `stream: true`. The handler returns a complete answer, which is then sent as events.

    An error still has its status: nothing has been sent before the answer is complete.
    """

    def __init__(self, path: str, function: Callable[..., Any], answer: type[WireModel], events: AsEvents) -> None:
        super().__init__(path, function, cause="model", finish=_shape_failure)
        self._answer, self._events = answer, events

    def __call__(self, call: Call) -> Awaitable[Any]:
        _drop_tokens_of_strangers(call)
        request = _take_stream(call)
        result = super().__call__(call)
        return result if request is None else self._streamed(result, request, call)

    async def _streamed(self, reply: Awaitable[Any], request: JsonObject, call: Call) -> Any:
        result = await plain_result(reply, call)
        if _is_failure(result):
            return result
        _read(result, self.path, self._answer)
        whole = orjson.loads(result.content() if isinstance(result, ServerReply) else encode(result))
        return EventStream.of(self._events(whole, request))

    def shape_error(self, reply: ServerReply, error: BaseException) -> ServerReply:
        return in_dialect(reply, error, "openai")


def _shape_failure(_body: Any, result: Any) -> Any:
    return in_dialect(result, None, "openai") if _is_failure(result) else result


class MessagesEndpoint(Endpoint):
    """`/v1/messages`, answered by the handler of `/v1/responses`."""

    def __init__(self, responses: Endpoint) -> None:
        super().__init__("/v1/messages", _as_responses_params, cause="model")
        self._responses, self.needs_session = responses, responses.needs_session

    def __call__(self, call: Call) -> Awaitable[Any]:
        _drop_tokens_of_strangers(call)
        return self._converted(super().__call__(call), call)

    async def _converted(self, converted: Awaitable[Any], call: Call) -> Any:
        params = await converted
        streams, call.body = call.body.stream, params
        result = await plain_result(self._responses(call), call)
        if _is_failure(result):
            return in_dialect(result, None, "anthropic")
        message = message_of(_read(result, self.path, NeMoGymResponse), message_id=f"msg_{uuid4().hex}")
        return EventStream.of(message_events(message)) if streams else message

    def shape_error(self, reply: ServerReply, error: BaseException) -> ServerReply:
        return in_dialect(reply, error, "anthropic")


class CountTokensEndpoint(MessagesEndpoint):
    """`/v1/messages/count_tokens`. An estimate, unless the server can count."""

    def __init__(self, count: Callable[..., Any]) -> None:
        Endpoint.__init__(self, "/v1/messages/count_tokens", _as_counted_params, cause="model")
        self._count = count

    async def _converted(self, converted: Awaitable[Any], call: Call) -> Any:
        return {"input_tokens": await self._count(await converted)}


def model_endpoints(
    chat_completions: Callable[..., Any],
    responses: Callable[..., Any],
    *,
    count_tokens: Callable[..., Any] | None = None,
    completions: Callable[..., Any] | None = None,
) -> list[Endpoint]:
    """Return the endpoints of a model server with these handlers."""
    in_responses = StreamableEndpoint("/v1/responses", responses, NeMoGymResponse, response_events)
    in_chat = StreamableEndpoint("/v1/chat/completions", chat_completions, NeMoGymChatCompletion, chat_events)
    counting = CountTokensEndpoint(count_tokens or estimate_tokens)
    endpoints = [in_chat, in_responses, MessagesEndpoint(in_responses), counting]
    if completions is not None:
        endpoints.append(StreamableEndpoint("/v1/completions", completions, WireModel, completion_events))
    return endpoints


def model_card(model: str) -> JsonObject:
    """A model as both APIs list it."""
    return {
        "id": model,
        "object": "model",
        "type": "model",
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "owned_by": "nemo-gym",
        "display_name": model,
    }


def answer_about_models(path: str, model: str, *, server: str) -> Any:
    """The reply to `GET /v1/models` and `/v1/models/<id>`; None for any other path."""
    if path == "/v1/models":
        page = {"has_more": False, "first_id": model, "last_id": model}
        return {"object": "list", "data": [model_card(model)], **page}
    if not path.startswith("/v1/models/"):
        return None
    wanted = unquote(path.removeprefix("/v1/models/"))
    if wanted == model:
        return model_card(model)
    detail = f"There is no model '{wanted}'. '{server}' serves '{model}'."
    return in_dialect(ServerReply(server, 404, {"detail": detail}), None, "openai")


def refused_path(reply: ServerReply, path: str, served: Iterable[str]) -> ServerReply:
    """A reply of 404 or 405 in the form of the API that the path belongs to."""
    detail = orjson.loads(reply.content())["detail"]
    if reply.status == 404:
        detail = f"{detail}: '{reply.server}' has no {path}. It serves {', '.join(sorted(served))}."
    dialect: Dialect = "anthropic" if path.startswith("/v1/messages") else "openai"
    return in_dialect(ServerReply(reply.server, reply.status, {"detail": detail}), None, dialect)


async def estimate_tokens(params: NeMoGymResponseCreateParamsNonStreaming) -> int:
    """An estimate of the tokens in a request: one for every four bytes of its texts and schemas."""
    given = {"instructions": params.instructions, "input": params.input, "tools": params.tools}
    return max(1, len(encode(given, exclude_unset=True)) // 4)


async def _as_responses_params(body: MessagesParams) -> NeMoGymResponseCreateParamsNonStreaming:
    return responses_params(body)


async def _as_counted_params(body: JsonObject) -> NeMoGymResponseCreateParamsNonStreaming:
    """A request to count has no limit for the reply."""
    try:
        return responses_params(MessagesParams.model_validate({"max_tokens": 1, **body}))
    except ValidationError as error:
        raise BadBodyError(error) from error


def _drop_tokens_of_strangers(call: Call) -> None:
    """Remove token fields from a request that no server of this run has sent: a harness could forge them, and what
    they say would be trained on. Requests without any are not decoded."""
    if call.scope is None or is_from_this_run(call):
        return
    body = call.body
    if isinstance(body, bytes) and (b"token_ids" in body or b"log_probs" in body or b"\\u" in body):
        try:
            body = orjson.loads(body)
        except orjson.JSONDecodeError:
            return
    if isinstance(body, dict):
        if surplus := TOKEN_NAMES.intersection(body):
            logger.warning("A caller from outside of this run sent %s: ignored.", ", ".join(sorted(surplus)))
        drop_token_fields(body)
        call.body = body


def _take_stream(call: Call) -> JsonObject | None:
    """The request, if it asks for a stream, which is removed from `call`. Other requests are not decoded."""
    body = call.body
    if isinstance(body, bytes) and b'"stream"' in body:
        try:
            body = orjson.loads(body)
        except orjson.JSONDecodeError:
            return None
    if not isinstance(body, dict) or body.get("stream") is not True:
        return None
    call.body = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    return body


def _is_failure(result: Any) -> bool:
    return isinstance(result, ServerReply) and result.status >= 400


def _read(result: Any, path: str, kind: type[T]) -> T:
    """A handler's answer in its type. Anything else cannot be converted."""
    reply = result if isinstance(result, ServerReply) else ServerReply("", 200, result)
    return reply.decode(kind, path, "model")


def in_dialect(reply: ServerReply, error: BaseException | None, dialect: Dialect) -> ServerReply:
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
        found = {name: fields[name] for name in _NAMED if isinstance(fields.get(name), str | int)}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return {}
    return {} if found.get("code") in REFUSALS else found
