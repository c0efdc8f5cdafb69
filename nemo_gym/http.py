"""One pooled HTTP client for each event loop, with a time limit on everything, and the rules for trying again.

aiohttp is imported by the first request: it takes longer than all else a command or worker imports to start."""

import asyncio
import contextlib
import io
import random
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self
from weakref import WeakKeyDictionary

from multidict import CIMultiDict, CIMultiDictProxy

from nemo_gym.deadline import HEADER, current_deadline, time_for
from nemo_gym.errors import UpstreamError

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_S = 10.0
CONNECTION_LIMIT = 102_400
CONNECTION_LIMIT_PER_HOST = 16_384
"""As many as rollouts in flight: fewer would queue them behind each other."""

KEEP_ALIVE_S = 30.0
"""Shorter than the 75 s our servers keep an idle connection, so a client never reuses one that is being closed."""

LARGE_BODY_BYTES = 2**20
RETRIED_STATUSES = frozenset((408, 429, 500, 502, 503, 504, 520, 529))
THROTTLING_STATUSES = frozenset((429, 503, 529))
"""By these an endpoint asks for fewer requests."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class HttpAnswer(NamedTuple):
    """A whole answer, already read."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def cookies(self) -> dict[str, str]:
        """What the answer asked to be sent back."""
        pairs = (line.split(";", 1)[0].partition("=") for line in self.headers.getall("Set-Cookie", ()))
        return {name.strip(): value.strip() for name, _, value in pairs}

    @property
    def retry_after_s(self) -> float | None:
        """The pause the server asked for, if it named one: in seconds, or by the time of day when it ends."""
        asked = self.headers.get("Retry-After", "")
        with contextlib.suppress(ValueError):
            return max(0.0, float(asked))
        with contextlib.suppress(ValueError):
            return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time())
        return None


class NotSentError(UpstreamError):
    """No connection was made, so the request certainly had no effect."""


class HttpClient:
    """A pool of connections. Whoever makes one closes it."""

    def __init__(
        self,
        *,
        limit: int = CONNECTION_LIMIT,
        limit_per_host: int = CONNECTION_LIMIT_PER_HOST,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._limit, self._limit_per_host, self._connect_timeout_s = limit, limit_per_host, connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def session(self) -> "aiohttp.ClientSession":
        """The pool beneath, opened at first use because it belongs to the running loop."""
        if self._session is None:
            import aiohttp

            connector = aiohttp.TCPConnector(
                keepalive_timeout=KEEP_ALIVE_S, limit=self._limit, limit_per_host=self._limit_per_host
            )
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
        timeout_s: float,
        server: str | None = None,
    ) -> HttpAnswer:
        """Send one request and read all of the answer, in `timeout_s` and within the deadline of the running task."""
        import aiohttp

        allowed_s = time_for(timeout_s)
        sent = _headers(headers, cookies, has_body=body is not None)
        limit = aiohttp.ClientTimeout(total=allowed_s, sock_connect=min(self._connect_timeout_s, allowed_s))
        name = server or url
        if allowed_s <= 0:  # which aiohttp would take for no limit at all
            raise UpstreamError(name, 0, f"no time left to ask {url}", cause="timeout")
        try:
            async with self.session.request(
                method, url, data=_sendable(body), headers=sent, timeout=limit, allow_redirects=False
            ) as answer:
                return HttpAnswer(answer.status, answer.headers, await answer.read())
        except aiohttp.ConnectionTimeoutError as error:
            raise NotSentError(name, 0, f"no connection to {url} within {limit.sock_connect:.3g} s") from error
        except TimeoutError as error:
            waited = f"no answer from {url} within {round(allowed_s, 2):g} s"
            raise UpstreamError(name, 0, waited, cause="timeout") from error
        except aiohttp.ClientConnectorError as error:
            raise NotSentError(name, 0, f"no connection to {url}: {error.os_error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamError(name, 0, f"{url} broke off: {error or type(error).__name__}") from error


def _sendable(body: bytes | None) -> bytes | io.BytesIO | None:
    """aiohttp wants a large body as a file, which it sends piece by piece without holding up the loop."""
    return io.BytesIO(body) if body is not None and len(body) >= LARGE_BODY_BYTES else body


def _headers(
    headers: Mapping[str, str] | None, cookies: Mapping[str, str] | None, *, has_body: bool
) -> CIMultiDict[str]:
    sent: CIMultiDict[str] = CIMultiDict(headers or {})
    if has_body and "Content-Type" not in sent:
        sent["Content-Type"] = "application/json"
    if cookies:
        sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
    deadline = current_deadline()
    if deadline is not None:
        sent[HEADER] = f"{deadline.left_s():.3f}"
    return sent


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[HttpClient, AsyncIterator[None]]] = WeakKeyDictionary()


def shared_client() -> HttpClient:
    """The client of the running loop, for code that is handed none."""
    loop = asyncio.get_running_loop()
    if loop not in _shared:
        client = HttpClient()
        closing = _closed_with_the_loop(client)
        loop.create_task(anext(closing))  # type: ignore[arg-type]  # noqa: RUF006 - ends at once
        _shared[loop] = client, closing
    return _shared[loop][0]


async def _closed_with_the_loop(client: HttpClient) -> AsyncIterator[None]:
    """A loop that ends closes the generators that it has begun, and this one closes the client."""
    try:
        yield
    finally:
        await client.close()


async def close_shared_client() -> None:
    """Close the running loop's client, if it ever had one."""
    client, _closing = _shared.pop(asyncio.get_running_loop(), (None, None))
    if client is not None:
        await client.close()


def pause_s(attempt: int, *, retry_after_s: float | None = None, chance: float | None = None) -> float:
    """How long to wait after failed attempt `attempt` (from 1): at least what the server asks, growing, jittered."""
    share = random.random() if chance is None else chance
    grown_s: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1))
    jittered_s = grown_s * (0.5 + share / 2)
    return jittered_s if retry_after_s is None else max(jittered_s, min(retry_after_s, 2 * LONGEST_PAUSE_S))
