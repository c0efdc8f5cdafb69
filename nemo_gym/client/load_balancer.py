"""One model, several endpoints: each request goes where there is least to do, a rollout stays where it began.

Which endpoint is next is decided by `Balancer`, which does no I/O and is told the time.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.client.openai_client import MAX_TRIES, REQUEST_TIMEOUT_S, NeMoGymAsyncOpenAI
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import CookieJar
from nemo_gym.common.deadline import time_left
from nemo_gym.common.retry import is_retryable, retry
from nemo_gym.errors import ConnectError, UnreachableError, UpstreamError

T = TypeVar("T")
Send: TypeAlias = Callable[[NeMoGymAsyncOpenAI], Awaitable[T]]

FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0
"""An endpoint that restarts takes minutes; one request a minute notices soon enough that it is back."""
MAX_SESSIONS = 65_536
"""Rollouts whose endpoint is remembered: several times as many as one worker ever has in flight."""
MAX_SESSION_CHARS = 64

_SICK = frozenset((0, 502, 503, 504, 520, 529))
_CANNOT_TELL = frozenset((200, 408, 429, 500))
"""Failures that say little about an endpoint's health: it has too much to do, or trouble with this one request."""


class EndpointSettings(BaseModel):
    """How a model's endpoints are called, the same for every kind of model server."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    default_headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request."""

    extra_body: dict[str, Any] | None = None
    """Parameters for every request beyond its own, such as `cache: {no-cache: true}`. The request's own win."""

    num_concurrent_requests: int | None = Field(default=None, ge=1)
    """At most so many requests in flight at once from one worker. Others wait, within their own deadline."""

    max_tries: int = Field(default=MAX_TRIES, ge=1)
    """How often a request is made while its failure may pass."""

    request_timeout_s: float = Field(default=REQUEST_TIMEOUT_S, gt=0)
    """How long one try may take, and how long it may wait for its turn."""


class Lease(NamedTuple):
    """An endpoint in use."""

    endpoint: int
    since: float


@dataclass(slots=True)
class _Endpoint:
    in_flight: int = 0
    sessions: int = 0
    failures: int = 0
    """In a row, up to now."""
    failed_at: float = -math.inf
    rests_until: float = -math.inf

    def rank(self, now: float) -> tuple[float, int, int]:
        """The lowest is next: one that is well before one that rests, then the one with the least to do."""
        return max(self.rests_until, now), self.in_flight, self.sessions


class Balancer:
    """Chooses among endpoints by number. A state machine without I/O: it is told what starts, what ends, and when."""

    def __init__(self, count: int, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._endpoints = [_Endpoint() for _ in range(count)]
        self._max_sessions = max_sessions
        self._kept: OrderedDict[str, int] = OrderedDict()

    def start(self, session: str | None, *, now: float) -> Lease:
        """An endpoint for a request that starts now: the session's own while it is well, else the least busy one.

        One that has failed rests for a growing while. Then one request tries it, and it rests on until the answer is
        known. If all rest, the one that is due first is tried.
        """
        index = None if session is None else self._kept.get(session)
        if index is None or self._endpoints[index].rests_until > now:
            index = min(range(len(self._endpoints)), key=lambda number: self._endpoints[number].rank(now))
        if session is not None:
            self._keep(session, index)
        endpoint = self._endpoints[index]
        endpoint.in_flight += 1
        endpoint.rests_until = now + _rest_s(endpoint.failures) if endpoint.failures else -math.inf
        return Lease(index, now)

    def end(self, lease: Lease, *, well: bool | None, now: float) -> None:
        """A request is over; `well` tells how it found the endpoint, None that it cannot tell.

        Requests that were under way together and fail together count as one failure.
        """
        endpoint = self._endpoints[lease.endpoint]
        endpoint.in_flight -= 1
        if well:
            endpoint.failures, endpoint.rests_until = 0, -math.inf
        elif well is False and lease.since > endpoint.failed_at:
            endpoint.failures += 1
            endpoint.failed_at, endpoint.rests_until = now, now + _rest_s(endpoint.failures)

    def _keep(self, session: str, index: int) -> None:
        before = self._kept.pop(session, None)
        if before is not None:
            self._endpoints[before].sessions -= 1
        self._kept[session] = index
        self._endpoints[index].sessions += 1
        if len(self._kept) > self._max_sessions:
            _, oldest = self._kept.popitem(last=False)
            self._endpoints[oldest].sessions -= 1


def _rest_s(failures: int) -> float:
    return min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(failures - 1, 30))


def _found_well(error: UpstreamError) -> bool | None:
    if error.cause == "timeout" or error.status in _CANNOT_TELL:
        return None
    return error.status not in _SICK


class EndpointPool:
    """The endpoints of one model, in use by one worker."""

    def __init__(self, clients: Sequence[NeMoGymAsyncOpenAI], settings: EndpointSettings) -> None:
        self.clients = list(clients)
        self._settings = settings
        self._balancer = Balancer(len(self.clients))
        limit = settings.num_concurrent_requests
        self._places = None if limit is None else asyncio.Semaphore(limit)
        self._was_reached = False

    @classmethod
    def of(
        cls,
        urls: str | Sequence[str],
        *,
        api_key: str,
        settings: EndpointSettings,
        http: Callable[[], HttpClient],
        kind: type[NeMoGymAsyncOpenAI] = NeMoGymAsyncOpenAI,
        **options: Any,
    ) -> Self:
        """A pool of clients of `kind`, one for each URL. They try once: trying again is the pool's decision."""
        options |= {"default_headers": settings.default_headers, "timeout_s": settings.request_timeout_s}
        listed = [urls] if isinstance(urls, str) else urls
        return cls(
            [kind(base_url=url, api_key=api_key, max_tries=1, http=http, **options) for url in listed], settings
        )

    def call(self, send: Send[T], *, session: str | None = None) -> Coroutine[Any, Any, T]:
        """What `send` gets from one of the endpoints; each try may be another one's."""
        return retry(
            lambda: self._call_once(send, session), max_tries=self._settings.max_tries, retryable=self._is_retryable
        )

    def _is_retryable(self, error: Exception) -> bool:
        """An only endpoint that was never reached is more likely configured wrong than restarting."""
        return is_retryable(error) and not (isinstance(error, UnreachableError) and len(self.clients) == 1)

    def session(self, jar: CookieJar, server: str) -> str | None:
        """What the rollout with these cookies is known by; a mark is left with it if it has none. One endpoint needs
        no mark."""
        if len(self.clients) < 2:
            return None
        cookie = f"Endpoint___{server}"
        if cookie not in jar:
            jar.merge({cookie: uuid4().hex})
        return jar[cookie][:MAX_SESSION_CHARS]

    def _call_once(self, send: Send[T], session: str | None) -> Awaitable[T]:
        places = self._places
        return self._call_now(send, session) if places is None else self._call_in_place(places, send, session)

    async def _call_in_place(self, places: asyncio.Semaphore, send: Send[T], session: str | None) -> T:
        allowed_s = time_left(self._settings.request_timeout_s)
        try:
            async with asyncio.timeout(allowed_s):
                await places.acquire()
        except TimeoutError as error:
            text = f"none of {self._settings.num_concurrent_requests} places came free within {allowed_s:.3g} s"
            raise UpstreamError(
                ", ".join(client.shown_url for client in self.clients), 0, text, cause="timeout"
            ) from error
        try:
            return await self._call_now(send, session)
        finally:
            places.release()

    async def _call_now(self, send: Send[T], session: str | None) -> T:
        lease = self._balancer.start(session, now=time.monotonic())
        well: bool | None = None
        try:
            result = await send(self.clients[lease.endpoint])
            well = self._was_reached = True
        except ConnectError as error:
            well = False
            if self._was_reached:
                raise
            raise UnreachableError.of(error) from error
        except UpstreamError as error:
            well, self._was_reached = _found_well(error), True
            raise
        finally:
            self._balancer.end(lease, well=well, now=time.monotonic())
        return result
