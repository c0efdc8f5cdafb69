"""A reply in the shape of an aiohttp response, which code of the public NeMo Gym expects of `ServerClient.get`, `post`
and `request`. Core asks for it as the plugin `aiohttp_response`."""

from http.cookies import SimpleCookie
from typing import Any, Self

import aiohttp
import orjson
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.client.reply import ServerReply, content_type_of
from nemo_gym.common.redaction import redact


class PeerResponse:
    """A `ServerReply` in the shape of an aiohttp response. Its body has been read, so nothing here waits."""

    def __init__(self, reply: ServerReply, path: str) -> None:
        self.status, self.ok, self.url = reply.status, reply.status < 400, f"{reply.server}{path}"
        self._reply, self._body = reply, reply.content()

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        found = self._reply.headers.copy()
        found.setdefault("Content-Type", content_type_of(self._body))  # a peer in this worker sends none
        return CIMultiDictProxy(found)

    @property
    def content_type(self) -> str:
        return self.headers["Content-Type"].partition(";")[0]

    @property
    def cookies(self) -> SimpleCookie:
        return SimpleCookie(self._reply.cookies)

    @property
    def content(self) -> Self:
        """aiohttp has the stream of the body here; this object has the one method of it that is used, `read`."""
        return self

    async def read(self) -> bytes:
        return self._body

    async def text(self) -> str:
        return self._reply.text

    async def json(self, **_options: Any) -> Any:
        return orjson.loads(self._body)

    def raise_for_status(self) -> None:
        """Raise aiohttp's own error, with the body as `response_content`."""
        if self.ok:
            return
        info = aiohttp.RequestInfo(URL("http://peer"), "POST", CIMultiDictProxy(CIMultiDict()), URL("http://peer"))
        message = f"{self.url}: {redact(self._body.decode(errors='replace'))[:500]}"
        error = aiohttp.ClientResponseError(info, (), status=self.status, message=message)
        error.response_content = self._body  # type: ignore[attr-defined]
        raise error

    def release(self) -> None:
        """Nothing to release."""

    close = release

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Nothing to release."""
