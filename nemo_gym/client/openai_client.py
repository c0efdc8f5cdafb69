"""A client of one OpenAI-compatible endpoint: pooled connections, a timeout, and retries of what is retryable."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import urlencode

import orjson
from pydantic import BaseModel, Field

from nemo_gym.client.pool import HttpClient, shared_client
from nemo_gym.client.url import join_url, shown_url, user_info_of
from nemo_gym.common import tracing
from nemo_gym.common.deadline import time_left
from nemo_gym.common.redaction import Redactor, redact
from nemo_gym.common.retry import THROTTLING_STATUSES, retry
from nemo_gym.common.retry_stats import record_retry
from nemo_gym.config.secrets import url_secrets
from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.json_codec import Body, encode

MAX_TRIES = 5
REQUEST_TIMEOUT_S = 1800.0
MAX_TEXT_BYTES = 65_536
"""How much of an error response is kept."""
MAX_SECRET_BYTES = 4096
"""How much more is read, so that a key that begins before the cut is masked as a whole."""
_SCHEME = re.compile(r"^(bearer|basic)\s+", re.I)
_SECRET_PARAMETER = re.compile(r"key|token|secret|sig|pass|auth", re.I)


_url_below = lru_cache(maxsize=1024)(join_url)


class NeMoGymAsyncOpenAI(BaseModel):
    """Calls an endpoint by its base URL and key. The key appears in no error."""

    base_url: str
    api_key: str
    internal: bool = False
    default_headers: dict[str, str] = Field(default_factory=dict)
    default_query: dict[str, str] = Field(default_factory=dict)
    max_tries: int = MAX_TRIES
    timeout_s: float = REQUEST_TIMEOUT_S
    http: Callable[[], HttpClient] = shared_client

    # Cached properties, since pydantic finds private attributes in several steps.
    @cached_property
    def _redactor(self) -> Redactor:
        return Redactor(self._secrets())

    def _secrets(self) -> Iterator[str]:
        """All that is sent and must not appear in an error when an endpoint echoes it."""
        yield from (self.api_key, *url_secrets(self.base_url))
        yield from (value for name, value in self.default_query.items() if _SECRET_PARAMETER.search(name))
        yield from (_SCHEME.sub("", value) for value in self._headers.values())

    @cached_property
    def _headers(self) -> dict[str, str]:
        """One value for each header. `default_headers` replace the key, and so do user and password in the URL."""
        given = {name.lower() for name in self.default_headers}
        user_info = user_info_of(self.base_url)
        own = self.authorization() if user_info is None else {"Authorization": user_info}
        return {name: value for name, value in own.items() if name.lower() not in given} | self.default_headers

    async def create_response(self, **params: Any) -> dict[str, Any]:
        return self._object(await self.post("/responses", encode(params)))

    async def create_chat_completion(self, **params: Any) -> dict[str, Any]:
        return self._object(await self.post("/chat/completions", encode(params)))

    async def create_completion(self, **params: Any) -> dict[str, Any]:
        return self._object(await self.post("/completions", encode(params)))

    async def create_tokenize(self, **params: Any) -> dict[str, Any]:
        return self._object(await self.fetch("POST", self.root_url("/tokenize"), encode(params)))

    async def create_models(self) -> dict[str, Any]:
        return self._object(await self.fetch("GET", join_url(self.base_url, "/models")))

    def root_url(self, path: str) -> str:
        """The URL of a path beside `/v1`, not below it."""
        return join_url(self.base_url, path, without="/v1")

    def post(self, path: str, body: Body) -> Awaitable[bytes]:
        """Send encoded JSON, get encoded JSON."""
        url = _url_below(self.base_url, path)
        if self.max_tries == 1 and tracing.active is None:
            return self._fetch_once("POST", url, body)
        return self.fetch("POST", url, body)

    def fetch(self, method: str, url: str, body: Body | None = None) -> Awaitable[bytes]:
        """The body of a successful reply."""
        if self.max_tries == 1:
            return self._traced_fetch(method, url, body)
        return retry(self._traced_fetch, method, url, body, max_tries=self.max_tries)

    def _traced_fetch(self, method: str, url: str, body: Body | None) -> Awaitable[bytes]:
        fetched = self._fetch_once(method, url, body)
        if tracing.active is None:
            return fetched
        return tracing.traced(fetched, "model endpoint", kind="client", attributes={"url.full": shown_url(url)})

    async def _fetch_once(self, method: str, url: str, body: Body | None) -> bytes:
        if self.default_query:
            url += f"{'&' if '?' in url else '?'}{urlencode(self.default_query)}"
        try:
            answer = await self.http().fetch(method, url, body=body, headers=self._headers, timeout_s=self.timeout_s)
        except UpstreamError as error:
            record_retry(throttled=int(error.cause == "timeout"))
            raise
        except asyncio.CancelledError:
            # the time ran out while the endpoint had the request
            record_retry(throttled=int(time_left(math.inf) <= 0))
            raise
        if answer.status == 200 or (answer.status < 300 and answer.body.lstrip().startswith(b"{")):
            return answer.body
        record_retry(throttled=int(answer.status in THROTTLING_STATUSES))
        text = self.text_of(answer.body)
        raise UpstreamError(shown_url(url), answer.status, text, cause="model", retry_after_s=answer.retry_after_s)

    @property
    def shown_url(self) -> str:
        """The base URL for messages."""
        return shown_url(self.base_url)

    def authorization(self) -> dict[str, str]:
        """The headers that carry the key."""
        return {"Authorization": f"Bearer {self.api_key}"}

    def text_of(self, body: bytes) -> str:
        """What an endpoint wrote, without the key and other headers that it may have echoed."""
        text = body[: MAX_TEXT_BYTES + MAX_SECRET_BYTES].decode(errors="replace")
        return self._redactor.text(redact(text))[:MAX_TEXT_BYTES]

    def _object(self, body: bytes) -> dict[str, Any]:
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            found, reason = None, str(error)
        else:
            reason = f"found {type(found).__name__}"
        if not isinstance(found, dict):
            text = f"expected a JSON object ({reason}): {self.text_of(body)}"
            raise UpstreamError(self.shown_url, 200, text, cause="model")
        return found
