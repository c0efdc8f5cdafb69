"""An HTTP request (its head in bytes, and what a redirect makes of it) and an HTTP reply."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import orjson
from msgspec.structs import replace
from multidict import CIMultiDict

from nemo_gym.client.url import Proxy, host_header, is_loopback, origin_of, request_target, user_info_of
from nemo_gym.common import tracing
from nemo_gym.common.cookies import parse_set_cookies
from nemo_gym.common.deadline import TIME_LEFT_HEADER, Deadline
from nemo_gym.common.retry import parse_retry_after
from nemo_gym.llm_api.json_codec import Body

REDIRECTS = frozenset((307, 308))
"""Those that repeat the request as it is. What other redirects lead to is not the reply to this request."""
MAX_REDIRECTS = 5
_SENT_TO_ANY_ORIGIN = frozenset(("accept", "content-type"))

REPLY_TIME_S = 1.0
"""What a server gets less than there is left, so that its reply, which knows more than a timeout here, is in time. Of
little time it is a tenth."""


class Request(msgspec.Struct, frozen=True):
    method: str
    url: str
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    body: Body | None
    deadline: Deadline | None = None
    """Of the caller, who tells the server how much time is left."""

    def head(self, proxy: Proxy | None) -> bytes:
        """All that precedes the body. Raises ValueError for what cannot be sent."""
        fixed = _fixed_lines(self.method, self.url, tuple(self.headers.items()), self.body is not None, proxy)
        body, varying = self.body, ""
        if body is not None:
            length = len(body) if isinstance(body, bytes) else sum(map(len, body))
            varying = f"content-length: {length}\r\n"
        if self.deadline is not None:
            left_s = self.deadline.left_s()
            varying += f"{TIME_LEFT_HEADER}: {left_s - min(REPLY_TIME_S, left_s / 10):.3f}\r\n"
        if tracing.active is not None:
            varying += tracing.header_lines()
        if self.cookies:
            cookies = "; ".join([f"{name}={value}" for name, value in self.cookies.items()])
            return b"".join((fixed, varying.encode(), _lines({"cookie": cookies}), b"\r\n"))
        return fixed + varying.encode() + b"\r\n"

    def redirected(self, location: str) -> "Request":
        """The request to make instead. Another origin gets no credentials. Raises ValueError for one not to make."""
        url = urljoin(self.url, location)
        before, after = origin_of(self.url), origin_of(url)
        if urlsplit(url).username is not None:
            raise ValueError("it names a user")
        if before == after:
            return replace(self, url=_with_user_info_of(self.url, url))
        if before.is_tls and not after.is_tls:
            raise ValueError("it leaves TLS")
        if is_loopback(after.host) and not is_loopback(before.host):
            raise ValueError("it leads to this machine")
        headers = {name: value for name, value in self.headers.items() if name.lower() in _SENT_TO_ANY_ORIGIN}
        return replace(self, url=url, headers=headers, cookies={})


def _with_user_info_of(before: str, url: str) -> str:
    user_info, at, _ = urlsplit(before).netloc.rpartition("@")
    return url.replace("://", f"://{user_info}{at}", 1)


@lru_cache(maxsize=4096)
def _fixed_lines(
    method: str, url: str, headers: tuple[tuple[str, str], ...], has_body: bool, proxy: Proxy | None
) -> bytes:
    """The request line and the headers that are the same every time. A header given replaces a default."""
    lines = {"host": host_header(url), "accept-encoding": "gzip, deflate", "user-agent": "nemo-gym"}
    if has_body:
        lines["content-type"] = "application/json"
    user_info = user_info_of(url)
    if user_info is not None:
        lines["authorization"] = user_info
    is_forwarded = proxy is not None and not origin_of(url).is_tls
    if is_forwarded and proxy is not None and proxy.authorization is not None:
        lines["proxy-authorization"] = proxy.authorization
    spelled = {name.lower(): name for name, _ in headers}
    lines |= {name.lower(): value for name, value in headers}
    start = f"http://{host_header(url)}" if is_forwarded else ""
    named = {spelled.get(name, name): value for name, value in lines.items() if name != "content-length"}
    return f"{method} {start}{request_target(url)} HTTP/1.1\r\n".encode() + _lines(named)


def _lines(headers: Mapping[str, str]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        raise ValueError("a header may not contain a line break")
    return text.encode()


_PLAIN_HEAD = re.compile(
    rb"HTTP/1\.1 ([2-5]\d\d)(?: [^\r\n\0]*)?\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n)*)\r\n"
)
_FRAMING = re.compile(
    rb"\n(?:content-length:(?:[ \t]*(\d{1,12})[ \t]*\r)?|(?:transfer-encoding|content-encoding|upgrade|trailer):"
    rb"|connection(?!: *keep-alive *\r):)"
)
"""What says how the body is sent. Of a valid Content-Length the number is found, of anything else nothing."""
_NO_BODY = frozenset((b"204", b"205", b"304"))


class HttpReply(msgspec.Struct):
    """A complete reply, decompressed. Its headers are decoded when somebody reads them."""

    status: int
    raw_headers: list[tuple[bytes, bytes]] | bytes
    """Name and value of each, or the lines as they came."""
    body: bytes

    def header_items(self) -> list[tuple[bytes, bytes]]:
        """Name and value of each header."""
        if isinstance(self.raw_headers, bytes):
            lines = self.raw_headers.split(b"\r\n")[:-1]
            self.raw_headers = [
                (name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)
            ]
        return self.raw_headers

    @property
    def headers(self) -> CIMultiDict[str]:
        return CIMultiDict([(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.header_items()])

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that the reply sets."""
        if isinstance(self.raw_headers, bytes) and b"set-cookie" not in self.raw_headers.lower():
            return {}
        values = [value for name, value in self.header_items() if name.lower() == b"set-cookie"]
        return parse_set_cookies([value.decode("latin-1") for value in values]) if values else {}

    @property
    def retry_after_s(self) -> float | None:
        """The pause that the server asks for, if it does."""
        return parse_retry_after(self.headers.get("Retry-After"))


def parse_plain_reply(data: bytes, *, max_headers: int) -> HttpReply | None:
    """The reply if `data` is all of it and it is a plain one: one valid Content-Length, no other framing, no
    compression, and the connection stays open. None for any other data, which only a real parser can tell."""
    head = _PLAIN_HEAD.match(data)
    if head is None or head[1] in _NO_BODY:
        return None
    lines, end = head[2], head.end()
    lengths = _FRAMING.findall(data[:end].lower())
    if len(lengths) != 1 or not lengths[0] or end + int(lengths[0]) != len(data) or lines.count(b"\n") > max_headers:
        return None
    return HttpReply(int(head[1]), lines, data[end:])
