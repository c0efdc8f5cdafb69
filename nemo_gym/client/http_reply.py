"""A reply as it came over HTTP."""

import re
from typing import Any

import msgspec
import orjson
from multidict import CIMultiDict

from nemo_gym.common.cookies import parse_set_cookies
from nemo_gym.common.retry import parse_retry_after

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
