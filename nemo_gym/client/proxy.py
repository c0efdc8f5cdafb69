"""Proxies, by the usual environment variables: http_proxy, https_proxy, all_proxy and no_proxy, in either case.

Loopback never goes through a proxy, and a request that carries the run's token asks for none.
"""

import asyncio
import re
import socket
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from nemo_gym.client.url import Origin, is_loopback, user_info_of
from nemo_gym.errors import ConfigError

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
