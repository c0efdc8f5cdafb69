"""The reply of a server: as it came, decoded into a type, as an error, or in the shape of an aiohttp response."""

from collections.abc import Hashable, Mapping
from functools import lru_cache
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import orjson
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import ValidationError

from nemo_gym.common.redaction import redact
from nemo_gym.errors import (
    CAUSES,
    SETUP_CODE_FIELD,
    SETUP_CODES,
    Cause,
    OverloadedError,
    ProcessLostError,
    RolloutError,
    SessionError,
    SessionLostError,
    message_in,
)
from nemo_gym.llm_api.json_codec import Decoder, encode

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

TRANSIENT_STATUSES = frozenset((408, 429, 431, 502, 503, 504))
"""An overloaded server, or a proxy without one: the handler itself did not fail."""
REFUSAL_STATUSES = frozenset((401, 410, 503))
"""With these a server refuses a request before any handler sees it."""
REFUSALS = {kind.CODE: kind for kind in (SessionError, SessionLostError, ProcessLostError, OverloadedError)}


class ServerReply(msgspec.Struct):
    """A server's reply: the live object if the server is in this worker, otherwise the bytes it sent."""

    server: str
    status: int
    value: Any = None
    cookies: dict[str, str] = {}
    headers: Mapping[str, str] = {}

    def content(self) -> bytes:
        """The body as bytes. A live object is encoded once."""
        if not isinstance(self.value, bytes):
            self.value = b"" if self.value is None else encode(self.value)
        return self.value

    def text(self) -> str:
        return self.content().decode(errors="replace")


def content_type_of(body: Any) -> str:
    """Of a reply whose handler names none: text that is not JSON is a tool's output."""
    is_text = isinstance(body, bytes) and body[:1] not in (b"{", b"[", b'"')
    return "text/plain; charset=utf-8" if is_text else "application/json"


def bounded(got: ServerReply, max_bytes: int, cause: Cause) -> ServerReply:
    """The reply, unless its body is larger than one may be that comes over HTTP."""
    if len(got.content()) > max_bytes:
        raise too_large(got.server, cause, f"the reply exceeded max_response_bytes, {max_bytes}")
    return got


def too_large(server: str, cause: Cause, message: str) -> RolloutError:
    """It would be as large the next time."""
    return RolloutError(cause, f"{server}: {message}.", server=server, retryable=False, status=502)


class PeerResponse:
    """A ServerReply in the shape of an aiohttp response. Its body has been read, so nothing here waits."""

    def __init__(self, reply: ServerReply, path: str) -> None:
        self.status, self.ok, self.url = reply.status, reply.status < 400, f"{reply.server}{path}"
        self._reply, self._body = reply, reply.content()

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        found = CIMultiDict(self._reply.headers)
        found.setdefault("Content-Type", content_type_of(self._body))  # a peer in this worker sends none
        return CIMultiDictProxy(found)

    @property
    def content_type(self) -> str:
        return self.headers["Content-Type"].partition(";")[0]

    @property
    def cookies(self) -> SimpleCookie:
        return SimpleCookie(dict(self._reply.cookies))

    @property
    def content(self) -> Self:
        """aiohttp has the stream of the body here; this object has the one method of it that is used, `read`."""
        return self

    async def read(self) -> bytes:
        return self._body

    async def text(self) -> str:
        return self._reply.text()

    async def json(self, **_options: Any) -> Any:
        return orjson.loads(self._body)

    def raise_for_status(self) -> None:
        """Raise aiohttp's own error, with the body as `response_content`."""
        if self.ok:
            return
        import aiohttp
        from yarl import URL

        info = aiohttp.RequestInfo(URL("http://peer"), "POST", CIMultiDictProxy(CIMultiDict()), URL("http://peer"))
        message = f"{self.url}: {redact(self._body.decode(errors='replace'))[:500]}"
        error = aiohttp.ClientResponseError(info, (), status=self.status, message=message)
        error.response_content = self._body  # type: ignore[attr-defined]
        raise error

    def release(self) -> None:
        """Nothing to release."""

    close = release

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Nothing to release."""


@lru_cache(maxsize=512)
def _decoder(kind: Hashable) -> Decoder:
    return Decoder(kind)


def read_reply(got: ServerReply, path: str, kind: type[T], cause: Cause) -> T:
    if type(got.value) is kind and kind is not dict:
        return got.value
    decode = _decoder(kind)  # type: ignore[arg-type]
    try:
        value: T = decode(got.content() if decode.takes_anything else got.value)
    except ValidationError as error:
        found = f"{error.error_count()} errors, first {error.errors(include_url=False, include_input=False)[0]}"
        raise RolloutError(
            cause,
            f"{got.server}{path} replied with no valid {kind.__name__} ({found}): {redact(got.text())[:500]}",
            server=got.server,
        ) from error
    return value


def failure_in(got: ServerReply, path: str, cause: Cause) -> RolloutError:
    """The error that an error response stands for. The cause it names takes precedence over the caller's."""
    error = parse_error(got.content(), got.server)
    if error is None:
        message = f"{got.server}{path} answered {got.status}: {message_in(redact(got.text()))[:500]}"
        retryable = True if got.status in TRANSIENT_STATUSES else None
        kind: Cause = "input" if got.status == 422 else cause
        error = RolloutError(kind, message, server=got.server, retryable=retryable, status=got.status)
    error.response_content = got.content()
    return error


def raise_refusal(got: ServerReply) -> None:
    """Raise if the server refused the request: no agent may take that for the answer of a tool or a model."""
    error = parse_error(got.content(), got.server)
    if isinstance(error, SessionError | OverloadedError):
        raise error


def raise_environment_failure(got: ServerReply) -> None:
    """Raise if the environment says that it has failed itself: that is no result of a tool for the model to read."""
    error = parse_error(got.content(), got.server) if got.status >= 500 else None
    if error is not None and error.cause == "environment":
        raise error


def raise_timeout(got: ServerReply) -> None:
    """Raise if the reply says that the time for it was over."""
    error = parse_error(got.content(), got.server)
    if error is not None and error.cause == "timeout":
        raise error


def parse_error(content: bytes, sender: str | None = None) -> RolloutError | None:
    """The error that the body of an error response describes, if it does. It is the sender's if it names no server."""
    try:
        fields = orjson.loads(content)["error"]
        cause, message, code = fields["cause"], fields["message"], fields.get("code")
        server = fields.get("server") or sender
        if fields.get(SETUP_CODE_FIELD) in SETUP_CODES:
            code = fields[SETUP_CODE_FIELD]
        refusal = REFUSALS.get(code)
        is_failure = cause in CAUSES
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):  # such as a list for a code
        return None
    if refusal is not None:
        error: RolloutError = refusal(message, server=server)
    elif is_failure:
        status = fields.get("status")
        error = RolloutError(
            cause,
            message,
            server=server,
            retryable=fields.get("retryable"),
            code=code,
            status=status if isinstance(status, int) else None,
        )
    else:
        return None
    error.response = fields.get("response")
    return error


async def raise_for_status(response: "PeerResponse | aiohttp.ClientResponse") -> None:
    """Raise aiohttp's error for a bad status, with the body as `response_content`."""
    if isinstance(response, PeerResponse):
        response.raise_for_status()
    elif not response.ok:
        content = await response.read()
        try:
            response.raise_for_status()
        except Exception as error:
            error.response_content = content  # type: ignore[attr-defined]
            raise


async def get_response_json(response: "PeerResponse | aiohttp.ClientResponse") -> Any:
    """The body, decoded."""
    return orjson.loads(await response.read())
