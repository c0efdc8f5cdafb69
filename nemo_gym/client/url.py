"""URLs of servers and endpoints: which host they name, how a request names them, and what of them may be shown."""

import re
from base64 import b64encode
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from nemo_gym.errors import ConfigError

_SAFE_IN_PATH = "/%:=&~+!$,;'@()*"
_SAFE_IN_QUERY = _SAFE_IN_PATH + "?"
_USER_INFO = re.compile(r"^(\w+://)?.*@")


class Origin(NamedTuple):
    """A server to connect to."""

    host: str
    port: int
    is_tls: bool


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        is_valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port >= 0)
    except ValueError:  # a port that is no number; what it is may be part of a password
        is_valid = False
    if not is_valid:
        raise ValueError("expected an address like http://host:port/path")
    return parts


def check_url(url: str) -> None:
    """Raise a ConfigError if this is not the URL of a server."""
    try:
        _split(url)
    except ValueError as error:
        raise ConfigError(f"'{shown_url(url)}' is not the URL of an endpoint: {error}.") from error


@lru_cache(maxsize=4096)
def origin_of(url: str) -> Origin:
    """The server that a URL names. Raises ValueError if it names none."""
    parts = _split(url)
    is_tls = parts.scheme == "https"
    return Origin(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls)


def host_header(url: str) -> str:
    return _split(url).netloc.rpartition("@")[2]


def request_target(url: str) -> str:
    """Path and query, quoted where needed."""
    parts = _split(url)
    query = f"?{quote(parts.query, safe=_SAFE_IN_QUERY)}" if parts.query else ""
    return quote(parts.path or "/", safe=_SAFE_IN_PATH) + query


def join_url(base_url: str, path: str = "", *, without: str = "") -> str:
    """`path` below a base URL, whose query stays at the end. `without` is removed from the end of its path first."""
    base, mark, query = base_url.partition("?")
    return base.rstrip("/").removesuffix(without) + path + mark + query


def user_info_of(url: str) -> str | None:
    """The value of an `Authorization` header for the user and password in a URL, if there are any."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(pair.encode()).decode()}"


@lru_cache(maxsize=4096)
def shown_url(url: str) -> str:
    """A URL for messages: without user, password, query and fragment, any of which may be a secret."""
    try:
        parts = _split(url)
    except ValueError:
        return re.split(r"[?#]", _USER_INFO.sub(r"\1", url), maxsplit=1)[0]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_loopback(host: str) -> bool:
    """True for this machine's own addresses, which no proxy can reach."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback or (mapped or address).is_unspecified
