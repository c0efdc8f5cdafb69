"""The answer of a peer in the shape of an aiohttp response, for servers written against that shape."""

from collections.abc import Mapping
from http.cookies import SimpleCookie
from types import TracebackType
from typing import Any, Self

import orjson
from multidict import CIMultiDict, CIMultiDictProxy


class PeerResponse:
    """Already read, so nothing here waits or fails."""

    def __init__(
        self, *, status: int, body: bytes, cookies: Mapping[str, str], headers: Mapping[str, str], url: str
    ) -> None:
        self.status, self.url = status, url
        self.ok = status < 400
        self.headers = CIMultiDictProxy(CIMultiDict(headers))
        self._body, self._cookies = body, cookies

    @property
    def cookies(self) -> SimpleCookie:
        jar = SimpleCookie()
        for name, value in self._cookies.items():
            jar[name] = value
        return jar

    @property
    def content(self) -> Self:
        """aiohttp has the stream here; the body is small change by now, so this object plays it."""
        return self

    async def read(self) -> bytes:
        return self._body

    async def text(self) -> str:
        return self._body.decode(errors="replace")

    async def json(self, **_options: Any) -> Any:
        return orjson.loads(self._body)

    def raise_for_status(self) -> None:
        """Raise aiohttp's own error, with the body as `response_content`."""
        if self.ok:
            return
        import aiohttp
        from yarl import URL

        info = aiohttp.RequestInfo(URL("http://peer"), "POST", CIMultiDictProxy(CIMultiDict()), URL("http://peer"))
        message = f"{self.url}: {self._body[:500].decode(errors='replace')}"
        error = aiohttp.ClientResponseError(info, (), status=self.status, message=message)
        error.response_content = self._body  # type: ignore[attr-defined]
        raise error

    def release(self) -> None:
        """Nothing is held."""

    close = release

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
