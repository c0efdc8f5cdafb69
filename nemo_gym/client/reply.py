"""The reply of a server: as it came, decoded into a type, or as the error that it stands for."""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

import orjson
from multidict import CIMultiDict
from pydantic import ValidationError

from nemo_gym.common.cookies import parse_set_cookies
from nemo_gym.common.redaction import redact
from nemo_gym.common.retry import parse_retry_after
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

T = TypeVar("T")
RawHeaders: TypeAlias = Mapping[str, str] | Sequence[tuple[bytes, bytes]] | bytes
"""Headers by name, as pairs, or as the lines that were received."""

TRANSIENT_STATUSES = frozenset((408, 429, 431, 502, 503, 504))
"""Statuses of an overloaded server, or of a proxy without one: the handler itself did not fail."""
REFUSAL_STATUSES = frozenset((401, 410, 503))
"""Statuses with which a server refuses a request before any handler sees it."""
REFUSALS = {kind.CODE: kind for kind in (SessionError, SessionLostError, ProcessLostError, OverloadedError)}


class ServerReply:
    """A reply, the same for every way to call: the live object if the server is in this worker, otherwise the bytes
    that it sent. Headers and cookies are parsed, and a live object is encoded, when somebody reads them."""

    __slots__ = ("_cookies", "_headers", "server", "status", "value")

    def __init__(
        self,
        server: str,
        status: int,
        value: Any = None,
        cookies: dict[str, str] | None = None,
        headers: RawHeaders = b"",
    ) -> None:
        self.server, self.status, self.value = server, status, value
        self._cookies, self._headers = cookies, headers

    def __repr__(self) -> str:
        return f"ServerReply({self.server!r}, {self.status}, {self.value!r:.300})"

    @property
    def headers(self) -> CIMultiDict[str]:
        if not isinstance(self._headers, CIMultiDict):
            self._headers = CIMultiDict(_header_items(self._headers))
        return self._headers

    def headers_named(self, names: Container[str]) -> dict[str, str]:
        """The headers with these names, which are in lower case."""
        if not self._headers:
            return {}
        return {name: value for name, value in self.headers.items() if name.lower() in names}

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that the reply sets."""
        if self._cookies is None:
            raw = self._headers
            has_none = not raw or (isinstance(raw, bytes) and b"set-cookie" not in raw.lower())
            self._cookies = {} if has_none else parse_set_cookies(self.headers.getall("set-cookie", ()))
        return self._cookies

    @property
    def retry_after_s(self) -> float | None:
        """The pause that the server asks for, if it does."""
        return parse_retry_after(self.headers.get("Retry-After"))

    def content(self) -> bytes:
        """The body as bytes. A live object is encoded once."""
        if not isinstance(self.value, bytes):
            self.value = b"" if self.value is None else encode(self.value)
        return self.value

    @property
    def text(self) -> str:
        return self.content().decode(errors="replace")

    def json(self) -> Any:
        return orjson.loads(self.content())

    def decode(self, kind: type[T], path: str, cause: Cause) -> T:
        """The body as `kind`. Anything else is a failure with `cause` of the server at `path`."""
        if type(self.value) is kind and kind is not dict:
            return self.value
        try:
            value: T = _decoder(kind)(self.content())  # type: ignore[arg-type]
        except ValidationError as error:
            found = f"{error.error_count()} errors, first {error.errors(include_url=False, include_input=False)[0]}"
            raise RolloutError(
                cause,
                f"{self.server}{path} replied with no valid {kind.__name__} ({found}): {redact(self.text)[:500]}",
                server=self.server,
            ) from error
        return value

    def error(self) -> RolloutError | None:
        """The error that the body of an error response describes, if it does."""
        return parse_error(self.content(), self.server)

    def failure(self, path: str, cause: Cause) -> RolloutError:
        """The error that an error response stands for. The cause it names takes precedence over the caller's."""
        error = self.error()
        if error is None:
            message = f"{self.server}{path} answered {self.status}: {message_in(redact(self.text))[:500]}"
            retryable = True if self.status in TRANSIENT_STATUSES else None
            kind: Cause = "input" if self.status == 422 else cause
            error = RolloutError(kind, message, server=self.server, retryable=retryable, status=self.status)
        error.response_content = self.content()
        return error


def _header_items(headers: RawHeaders) -> Iterable[tuple[str, str]]:
    if isinstance(headers, Mapping):
        return headers.items()
    if isinstance(headers, bytes):
        lines = (line.partition(b":") for line in headers.split(b"\r\n")[:-1])
        headers = [(name, value.strip(b" \t")) for name, _, value in lines]
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def content_type_of(body: Any) -> str:
    """Return the content type of a reply whose handler names none: text that is not JSON is a tool's output."""
    is_text = isinstance(body, bytes) and body[:1] not in (b"{", b"[", b'"')
    return "text/plain; charset=utf-8" if is_text else "application/json"


def bounded(got: ServerReply, max_bytes: int, cause: Cause) -> ServerReply:
    """The reply, unless its body is larger than one may be that comes over HTTP."""
    if len(got.content()) > max_bytes:
        raise too_large(got.server, cause, f"the reply exceeded max_response_bytes, {max_bytes}")
    return got


def too_large(server: str, cause: Cause, message: str) -> RolloutError:
    """Return the error for a reply over the limit. It is not retryable: the next one would be as large."""
    return RolloutError(cause, f"{server}: {message}.", server=server, retryable=False, status=502)


@lru_cache(maxsize=512)
def _decoder(kind: Hashable) -> Decoder:
    return Decoder(kind)


def raise_refusal(got: ServerReply) -> None:
    """Raise if the server refused the request: no agent may take that for the answer of a tool or a model."""
    error = got.error()
    if isinstance(error, SessionError | OverloadedError):
        raise error


def raise_environment_failure(got: ServerReply) -> None:
    """Raise if the environment says that it has failed itself: that is no result of a tool for the model to read."""
    error = got.error() if got.status >= 500 else None
    if error is not None and error.cause == "environment":
        raise error


def raise_timeout(got: ServerReply) -> None:
    """Raise if the reply says that the time for it was over."""
    error = got.error()
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


class AiohttpShaped(Protocol):
    """The part of an aiohttp response that is used here."""

    @property
    def ok(self) -> bool: ...
    @property
    def content(self) -> Any: ...
    async def read(self) -> bytes: ...
    def raise_for_status(self) -> None: ...


async def raise_for_status(response: AiohttpShaped, content: bytes | None = None) -> None:
    """Raise aiohttp's error for a bad status, with the body as `response_content`."""
    if response.ok:
        return
    if content is None:
        content = await response.content.read() or await response.read()
    try:
        response.raise_for_status()
    except Exception as error:
        error.response_content = content  # type: ignore[attr-defined]
        raise


async def get_response_json(response: AiohttpShaped) -> Any:
    """The body of a response, decoded."""
    return orjson.loads(await response.read())
