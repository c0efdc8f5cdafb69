"""A reply as it came over HTTP."""

from typing import Any, NamedTuple

import orjson
from multidict import CIMultiDict

from nemo_gym.common.cookies import parse_set_cookies
from nemo_gym.common.retry import parse_retry_after


class HttpReply(NamedTuple):
    """A complete reply, decompressed."""

    status: int
    headers: CIMultiDict[str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that the reply sets."""
        return parse_set_cookies(self.headers.getall("Set-Cookie", ()))

    @property
    def retry_after_s(self) -> float | None:
        """The pause that the server asks for, if it does."""
        return parse_retry_after(self.headers.get("Retry-After"))
