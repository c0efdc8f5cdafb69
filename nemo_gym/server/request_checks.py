"""Checks of a request before a handler sees it.

A server that listens on loopback trusts the programs of this machine, but not the web pages in its browsers. A page
can send requests here (CSRF), or point its own domain name at 127.0.0.1 and read the replies (DNS rebinding). So the
Host and the Origin of a request must be this machine, and a body must be declared as JSON, which a page of another
origin cannot do without a preflight request.
"""

import hmac
import ipaddress
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from pydantic import Field

from nemo_gym.client.server_client import END_SESSION_HEADER, TOKEN_HEADER
from nemo_gym.common.deadline import TIME_LEFT_HEADER, Deadline
from nemo_gym.common.descriptors import connection_budget
from nemo_gym.config.types import GlobalKeys
from nemo_gym.server.asgi import RefusedError, Scope, body_too_large

Headers = Mapping[bytes, bytes]
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"(\s*+:)?', re.DOTALL)
"""A text in JSON, with the colon behind it if it is a key."""

END_SESSION, TIME_LEFT, TOKEN = (name.encode() for name in (END_SESSION_HEADER, TIME_LEFT_HEADER, TOKEN_HEADER))


def check_token(headers: Headers, token: str, server: str) -> None:
    """Refuse a caller who does not show the run's token."""
    bearer = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
    found = headers.get(TOKEN) or headers.get(b"x-api-key") or bearer
    if not hmac.compare_digest(found, token.encode()):
        raise RefusedError(
            401,
            f"'{server}' requires the run's token, in the header '{TOKEN_HEADER}', in 'x-api-key', or as "
            f"'Authorization: Bearer'. Found {'another token' if found else 'none'}.",
        )


def check_origin(scope: Scope, headers: Headers, allowed_hosts: frozenset[str], *, checks_host: bool = True) -> None:
    """Refuse requests to loopback that were not addressed to loopback, or that come from a web page of elsewhere.

    A caller who showed the run's token may use any name of this machine, but a web page may still not call.
    """
    address = scope.get("server")
    if address is None or not is_loopback(address[0]):
        return
    host, origin = headers.get(b"host"), headers.get(b"origin")
    if checks_host and host is not None and not _is_local(b"//" + host, allowed_hosts):
        raise RefusedError(
            421, f"The Host header is '{_text(host)}'; expected this machine's loopback name (allowed_hosts)."
        )
    if origin is not None and not _is_local(origin, allowed_hosts):
        raise RefusedError(403, f"Requests from pages of the origin '{_text(origin)}' are refused (allowed_hosts).")


def check_json(headers: Headers) -> None:
    """Refuse a body that is not declared as JSON."""
    content_type = headers.get(b"content-type")
    if content_type is None and headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
        return
    if content_type is None or not _is_json(content_type):
        found = "missing" if content_type is None else f"'{_text(content_type)}'"
        raise RefusedError(415, f"The Content-Type is {found}; expected application/json.")


def check_length(headers: Headers, max_bytes: int) -> None:
    """Refuse a body that is declared too large."""
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > max_bytes:
        raise body_too_large(max_bytes, length.decode("latin-1")[:40])


def check_keys(body: bytes, max_keys: int) -> None:
    """Refuse a body with too many keys before it is decoded. Colons are counted first, which is fast."""
    if body.count(b":") <= max_keys:
        return
    count = 0
    for found in _STRING.finditer(body):
        count += found[1] is not None
        if count > max_keys:
            raise RefusedError(413, f"The body has more than {max_keys} keys (max_body_keys).")


def read_deadline(headers: Headers) -> Deadline | None:
    """The deadline that the caller sent, if it sent one."""
    text = headers.get(TIME_LEFT)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise RefusedError(400, f"The header '{TIME_LEFT_HEADER}' is '{_text(text)}'; expected a number of seconds.")
    return Deadline.after(seconds)


def _text(value: bytes) -> str:
    return value[:100].decode("latin-1")


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """True for a name or an address of this machine that others cannot reach."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@lru_cache(maxsize=256)
def _is_local(url: bytes, allowed_hosts: frozenset[str]) -> bool:
    try:
        host = urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return False
    return host is not None and (is_loopback(host) or host in allowed_hosts)


@lru_cache(maxsize=64)
def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


MAX_CONNECTIONS = 65_536
GRACE_S = 3
"""Time limit for requests in flight when the server stops."""


class ServerLimits(GlobalKeys):
    """Global config keys. A request over a limit gets an error response that names the key."""

    max_body_bytes: int = Field(default=256 * 2**20, ge=1)
    """The largest request body. A rollout of many turns with token ids and log-probs is tens of megabytes."""

    max_body_keys: int = Field(default=250_000, ge=1)
    """The most keys of all JSON objects in a request body. Each one may become a validation error."""

    max_unread_bytes: int = Field(default=2**30, ge=1)
    """The most bytes of all request bodies that a server is receiving. More are refused as overload."""

    max_header_bytes: int = Field(default=64 * 2**10, ge=1024)
    """The largest request line plus headers; also bounds trailers and the framing of a chunked body."""

    header_timeout_s: float = Field(default=60.0, gt=0)
    """How long a connection may take until the headers of a request are complete."""

    max_connections: int | None = Field(default=None, ge=1)
    """The most connections that all servers of a process accept. By default half of its open-file limit."""

    max_sessions: int = Field(default=100_000, ge=1)
    """The most sessions of one server."""

    max_blocked_s: float = Field(default=120.0, gt=0)
    """How long code of a server may block the event loop, if its deadline is not sooner. Then it is interrupted."""

    allowed_hosts: frozenset[str] = frozenset()
    """Names, besides those of loopback, under which a server that listens on loopback may be addressed."""

    def connections(self) -> int:
        """Return the number of connections that this process accepts."""
        if self.max_connections is not None:
            return self.max_connections
        return max(1, min(MAX_CONNECTIONS, connection_budget() // 2))
