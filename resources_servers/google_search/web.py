"""Requests to the search API and to pages. Addresses of pages come from a model, so only public ones are visited,
unless configured otherwise: a page must not be a way into the network that the server is in."""

import ipaddress
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver
from yarl import URL

from nemo_gym.errors import GymError

MAX_CONNECTIONS = 64
MAX_REDIRECTS = 5
MAX_QUERY_CHARS = 8_000
MAX_REPLY_BYTES = 10 * 2**20
CHUNK_BYTES = 2**16
REDIRECTS = frozenset((301, 302, 303, 307, 308))
ISATAP = 0x5EFE
"""What the third quarter of an address that is tunnelled over IPv4 says, but for the bit of uniqueness."""
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("64:ff9b:1::/48", "168.63.129.16/32", "192.0.0.0/24")))
"""Not all versions of Python know these: NAT64 of one network, and addresses at which clouds serve credentials."""
_EMBED_IPV4 = tuple(map(ipaddress.ip_network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
MASK = "***"
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; nemo-gym)", "Accept": "text/html,*/*;q=0.5"}


class WebError(GymError):
    """A request that was refused or failed, in words that a model may see."""


class PublicResolver(AbstractResolver):
    """Finds the addresses of a host, but only public ones."""

    def __init__(self) -> None:
        self._resolver = DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        public = [result for result in found if is_public(result["host"])]
        if found and not public:
            raise WebError(f"{host} is not on the public internet")
        return public

    async def close(self) -> None:
        await self._resolver.close()


def is_public(address: str) -> bool:
    """True for an address that everybody on the internet can reach."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.is_site_local:
            return False
        ip = ip.ipv4_mapped or ip.sixtofour or _embedded_ipv4(ip) or ip
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


def _embedded_ipv4(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The address that a NAT64, SIIT, IPv4-compatible or ISATAP address leads to."""
    if any(ip in network for network in _EMBED_IPV4) or int(ip) >> 32 & 0xFDFFFFFF == ISATAP:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return None


class Web:
    """Connections to the search API and to pages."""

    def __init__(
        self, api: aiohttp.ClientSession, pages: aiohttp.ClientSession, *, allow_private_addresses: bool
    ) -> None:
        self._api, self._pages, self._allow_private = api, pages, allow_private_addresses

    async def search(self, url: str, *, key: str, cx: str, query: str) -> str:
        """Return the reply of the search API as JSON text. The key is in no result and no error."""
        if len(query) > MAX_QUERY_CHARS:
            raise WebError(f"the query has more than {MAX_QUERY_CHARS} characters")
        try:
            parameters = {"key": key, "cx": cx, "q": query}
            async with self._api.get(url, params=parameters, allow_redirects=False) as reply:
                if reply.status != 200:
                    raise WebError(f"the search API answered {reply.status} {reply.reason or ''}".rstrip())
                found: Any = json.loads(await _limited_body(reply))
            return masked(json.dumps(found), key)
        except (aiohttp.ClientError, OSError, ValueError, RecursionError, TimeoutError) as error:
            raise WebError(masked(_described(error), key)) from None

    async def page(self, url: str) -> bytes | None:
        """Fetch a page; None if it cannot be fetched."""
        if len(url) > MAX_QUERY_CHARS:
            raise WebError(f"the URL has more than {MAX_QUERY_CHARS} characters")
        target = self._checked(url)
        for _ in range(MAX_REDIRECTS):
            try:
                async with self._pages.get(target, allow_redirects=False) as reply:
                    if reply.status not in REDIRECTS:
                        return await _limited_body(reply) if reply.status == 200 else None
                    location = reply.headers.get("Location", "")
            except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
                return None
            target = self._checked(location, base=target)
        return None

    def _checked(self, url: str, *, base: URL | None = None) -> URL:
        try:
            target = URL(url) if base is None else base.join(URL(url))
            host = target.host
        except ValueError as error:
            raise WebError(f"this is no URL: {error}") from None
        if target.scheme not in ("http", "https") or not host:
            raise WebError("expected a URL that starts with http:// or https://")
        if not self._allow_private and _is_literal(host) and not is_public(host):
            raise WebError(f"{host} is not on the public internet")
        return target


@asynccontextmanager
async def connected(*, timeout_s: float, allow_private_addresses: bool) -> AsyncIterator[Web]:
    """Connections that are closed at the end."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    resolver = None if allow_private_addresses else PublicResolver()
    guarded = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, resolver=resolver)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS)) as api,
        aiohttp.ClientSession(
            timeout=timeout, connector=guarded, headers=HEADERS, cookie_jar=aiohttp.DummyCookieJar()
        ) as pages,
    ):
        yield Web(api, pages, allow_private_addresses=allow_private_addresses)


def masked(text: str, secret: str) -> str:
    """The text without the secret, however each of its characters is written: as it is, as in a URL, as in JSON."""
    return _pattern(secret).sub(MASK, text)


@lru_cache(maxsize=16)
def _pattern(secret: str) -> re.Pattern[str]:
    def forms(character: str) -> str:
        encoded = "".join(f"%{byte:02X}" for byte in character.encode())
        written = {character, encoded, encoded.lower(), quote_plus(character), json.dumps(character)[1:-1]}
        return f"(?:{'|'.join(map(re.escape, sorted(written, key=len, reverse=True)))})"

    return re.compile("".join(map(forms, secret)))


async def _limited_body(reply: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in reply.content.iter_chunked(CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > MAX_REPLY_BYTES:
            raise ValueError(f"the reply has more than {MAX_REPLY_BYTES} bytes")
    return b"".join(parts)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _described(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the search API did not answer in time"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "the search API did not answer with JSON"
    return str(error) or type(error).__name__
