"""A reply as it came over HTTP."""

from dataclasses import dataclass
from typing import Any

import orjson
from multidict import CIMultiDict

from nemo_gym.common.cookies import parse_set_cookies
from nemo_gym.common.retry import parse_retry_after


@dataclass(slots=True)
class HttpReply:
    """A complete reply, decompressed. Its headers are decoded when somebody reads them."""

    status: int
    raw_headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def headers(self) -> CIMultiDict[str]:
        return CIMultiDict([(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.raw_headers])

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that the reply sets."""
        values = [value for name, value in self.raw_headers if name.lower() == b"set-cookie"]
        return parse_set_cookies([value.decode("latin-1") for value in values]) if values else {}

    @property
    def retry_after_s(self) -> float | None:
        """The pause that the server asks for, if it does."""
        return parse_retry_after(self.headers.get("Retry-After"))
