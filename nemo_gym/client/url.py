"""URLs: the host they name, how a request names them, what may be shown of them, and the proxy to use for them."""

import asyncio
import re
import socket
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
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


MAX_REPLY_BYTES = 2**16
_CONNECTED = re.compile(rb"HTTP/1\.[01] 2\d\d[ \r]")


class Proxy(NamedTuple):
    """An HTTP proxy."""

    host: str
    port: int
    authorization: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_for(origin: Origin, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy for requests to a server, if the environment names one."""
    if is_loopback(origin.host) or _is_exempt(origin, _value("no_proxy", environment)):
        return None
    names = ("https_proxy" if origin.is_tls else "http_proxy", "all_proxy")
    found = next(((name, value) for name in names if (value := _value(name, environment))), None)
    return None if found is None else _parse(*found)


def _value(name: str, environment: Mapping[str, str]) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""


def _parse(name: str, value: str) -> Proxy:
    url = value if "://" in value else f"http://{value}"
    parts = urlsplit(url)
    try:
        if parts.scheme == "http" and parts.hostname:
            return Proxy(parts.hostname, parts.port or 80, user_info_of(url))
    except ValueError:
        pass  # a port that is no number
    raise ConfigError(
        f"Unsupported proxy in the environment variable {name} (scheme '{parts.scheme}'). "
        f"Expected http://host:port. To use no proxy for some hosts, list them in no_proxy."
    )


def _is_exempt(origin: Origin, no_proxy: str) -> bool:
    return any(_matches(origin, entry) for entry in re.split(r"[,\s]+", no_proxy.lower()) if entry)


def _matches(origin: Origin, entry: str) -> bool:
    """An entry is `*`, a domain (with its subdomains), an address or a network, and may end with a port."""
    if entry == "*":
        return True
    try:
        return ip_address(origin.host) in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass  # not an address on both sides
    name, _, port = entry.rpartition(":")
    if not name or not port.isdigit():
        name, port = entry, str(origin.port)
    domain = name.strip("[]").lstrip("*.")
    return port == str(origin.port) and (origin.host == domain or origin.host.endswith(f".{domain}"))


async def open_tunnel(opened: socket.socket, origin: Origin, proxy: Proxy) -> None:
    """Have the proxy connect a socket to a server. What follows on it, TLS above all, is between the two ends."""
    loop = asyncio.get_running_loop()
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    address = f"{host}:{origin.port}"
    lines = [f"CONNECT {address} HTTP/1.1", f"host: {address}"]
    if proxy.authorization:
        lines.append(f"proxy-authorization: {proxy.authorization}")
    await loop.sock_sendall(opened, ("\r\n".join(lines) + "\r\n\r\n").encode())
    reply = b""
    while b"\r\n\r\n" not in reply:
        part = await loop.sock_recv(opened, 4096)
        reply += part
        if not part or len(reply) > MAX_REPLY_BYTES:
            raise ConnectionError("the proxy sent no valid reply to CONNECT")
    if not _CONNECTED.match(reply) or not reply.endswith(b"\r\n\r\n"):
        status = reply.split(b"\r\n", 1)[0][:100].decode("latin-1")
        raise ConnectionError(f"the proxy refused CONNECT: {status!r}")
