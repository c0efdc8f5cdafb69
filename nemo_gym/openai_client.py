"""A client of one OpenAI-shaped endpoint: pooled, with a time limit, and trying again only what can pass."""

import asyncio
import logging
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from nemo_gym.codec import encode
from nemo_gym.errors import UpstreamError
from nemo_gym.http import RETRIED_STATUSES, THROTTLING_STATUSES, HttpClient, pause_s, shared_client
from nemo_gym.log import Seldom
from nemo_gym.tally import count

seldom = Seldom(logging.getLogger(__name__))

MAX_TRIES = 5
REQUEST_TIMEOUT_S = 1800.0


class NeMoGymAsyncOpenAI(BaseModel):
    """Calls an endpoint by its base URL and key. The key appears in no error."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    base_url: str
    api_key: str
    internal: bool = False
    max_tries: int = MAX_TRIES
    timeout_s: float = REQUEST_TIMEOUT_S
    http: HttpClient | None = None

    async def create_response(self, **params: Any) -> dict[str, Any]:
        return _object(await self.post("/responses", encode(params)))

    async def create_chat_completion(self, **params: Any) -> dict[str, Any]:
        return _object(await self.post("/chat/completions", encode(params)))

    async def create_tokenize(self, **params: Any) -> dict[str, Any]:
        root = self.base_url.rstrip("/").removesuffix("/v1")
        return _object(await self.fetch("POST", f"{root}/tokenize", encode(params)))

    async def create_models(self) -> dict[str, Any]:
        return _object(await self.fetch("GET", f"{self.base_url.rstrip('/')}/models"))

    async def post(self, path: str, body: bytes) -> bytes:
        """Send encoded JSON, get encoded JSON."""
        return await self.fetch("POST", self.base_url.rstrip("/") + path, body)

    async def fetch(self, method: str, url: str, body: bytes | None = None) -> bytes:
        """One request, tried again a few times while the cause may pass, with growing pauses."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        http = self.http or shared_client()
        for attempt in range(1, self.max_tries + 1):
            try:
                answer = await http.fetch(method, url, body=body, headers=headers, timeout_s=self.timeout_s)
            except UpstreamError as error:
                if error.cause == "timeout":
                    count(throttled=1)
                    raise
                failure, retry_after_s = error, None
            else:
                if answer.status < 400:
                    return answer.body
                text = self.without_key(answer.body.decode(errors="replace"))
                retry_after_s = answer.retry_after_s
                failure = UpstreamError(url, answer.status, text, cause="model", retry_after_s=retry_after_s)
                if answer.status not in RETRIED_STATUSES:
                    raise failure
            count(throttled=int(failure.status in THROTTLING_STATUSES))
            if attempt == self.max_tries:
                raise failure
            count(retries=1)
            pause = pause_s(attempt, retry_after_s=retry_after_s)
            kind = f"{self.base_url} {failure.status}"
            seldom.warning(kind, "%s; attempt %d of %d, again in %.1f s", failure, attempt, self.max_tries, pause)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def without_key(self, text: str) -> str:
        """What an endpoint wrote, fit for an error or a log."""
        return text.replace(self.api_key, "****") if self.api_key else text


def _object(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(body)
    return found
