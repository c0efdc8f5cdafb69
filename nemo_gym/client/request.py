"""One HTTP request: its head in bytes, and what becomes of it when a server redirects it."""

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec.structs import replace

from nemo_gym.client.proxy import Proxy
from nemo_gym.client.url import host_header, is_loopback, origin_of, request_target, user_info_of
from nemo_gym.common import tracing
from nemo_gym.common.deadline import TIME_LEFT_HEADER, Deadline
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
