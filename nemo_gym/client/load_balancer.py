"""Load balancing for a model with several endpoints: a request goes to the one with the fewest requests in flight, and
a rollout stays on the endpoint it began with.

`Balancer` decides which endpoint is next. It does no I/O and gets the time as an argument.
"""

import asyncio
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

import orjson
from pydantic import BaseModel, Field, model_validator

from nemo_gym.client.call_log import RoutingKey, current_routing
from nemo_gym.client.pool import HttpClient, shared_client
from nemo_gym.client.server_client import CookieJar
from nemo_gym.client.url import check_url, join_url, shown_url, user_info_of
from nemo_gym.common import tracing
from nemo_gym.common.deadline import lease_time, time_left
from nemo_gym.common.logging import RateLimitedLog
from nemo_gym.common.redaction import Redactor, redact
from nemo_gym.common.retry import THROTTLING_STATUSES, backoff_s, is_retryable, record_retry, retry
from nemo_gym.config.secrets import url_secrets
from nemo_gym.errors import ConnectError, UnreachableError, UpstreamError
from nemo_gym.llm_api.endpoint_errors import setup_code
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
    session_header: dict[str, RoutingKey] = Field(default_factory=dict)
    max_tries: int = MAX_TRIES
    timeout_s: float = REQUEST_TIMEOUT_S
    http: Callable[[], HttpClient] = shared_client

    @model_validator(mode="before")
    @classmethod
    def _read_public_name(cls, given: Any) -> Any:
        if isinstance(given, dict) and "max_http_attempts" in given:
            return {"max_tries": given["max_http_attempts"], **given}
        return given

    @property
    def max_http_attempts(self) -> int:
        """Another name of `max_tries`."""
        return self.max_tries

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

    def _routing_headers(self) -> dict[str, str]:
        """The headers that say which rollout or group a request is of. A group's name may be any text."""
        values = ((name, current_routing(key)) for name, key in self.session_header.items())
        return {name: quote(value) for name, value in values if value is not None}

    async def create_response(self, **params: Any) -> dict[str, Any]:
        return self._object(await self.post("/responses", encode(params)))

    async def create_chat_completion(self, **params: Any) -> dict[str, Any]:
        return self._object(await self.post("/chat/completions", encode(params)))

    async def create_completion(self, **params: Any) -> dict[str, Any]:
        return self._object(await self.post("/completions", encode(params)))

    async def create_tokenize(self, **params: Any) -> dict[str, Any]:
        return await self.post_at_root("/tokenize", params)

    async def create_models(self) -> dict[str, Any]:
        return self._object(await self.fetch("GET", join_url(self.base_url, "/models")))

    async def post_at_root(self, path: str, body: Any) -> dict[str, Any]:
        """Send a request to a path beside `/v1`."""
        return self._object(await self.fetch("POST", self.root_url(path), encode(body)))

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
            headers = {**self._headers, **self._routing_headers()} if self.session_header else self._headers
            answer = await self.http().fetch(method, url, body=body, headers=headers, timeout_s=self.timeout_s)
        except UpstreamError as error:
            record_retry(throttled=int(error.cause == "timeout"))
            raise
        except asyncio.CancelledError:
            # the time ran out while the endpoint had the request
            record_retry(throttled=int(time_left(math.inf) <= 0))
            raise
        content = answer.content()
        if answer.status == 200 or (answer.status < 300 and content.lstrip().startswith(b"{")):
            return content
        record_retry(throttled=int(answer.status in THROTTLING_STATUSES))
        text = self.text_of(content)
        raise UpstreamError(shown_url(url), answer.status, text, cause="model", retry_after_s=answer.retry_after_s)

    @property
    def shown_url(self) -> str:
        """The base URL for messages."""
        return shown_url(self.base_url)

    def authorization(self) -> dict[str, str]:
        """The headers that carry the key."""
        return {"Authorization": f"Bearer {self.api_key}"}

    def text_of(self, body: bytes) -> str:
        """Return the text of an endpoint, without the key and other headers that it may have echoed."""
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


T = TypeVar("T")
Send: TypeAlias = Callable[[NeMoGymAsyncOpenAI], Awaitable[T]]

FIRST_COOLDOWN_S = 1.0
MAX_COOLDOWN_S = 60.0
"""An endpoint takes minutes to restart, so probing it once a minute is often enough."""
MAX_SESSIONS = 65_536
"""Rollouts whose endpoint is remembered: several times as many as a worker has in flight."""
MAX_SESSION_CHARS = 64
MAX_OUTAGE_S = 600.0
"""An endpoint with a large model takes minutes to start again."""
MAX_OUTAGE_BACKOFF = 5
"""Ask an endpoint that is down at least every eight seconds: all rollouts wait for it."""

_UNHEALTHY_STATUSES = frozenset((0, 502, 503, 504, 520, 529))
_INCONCLUSIVE_STATUSES = frozenset((200, 408, 429, 500))
"""Failures that say little about an endpoint's health: it is busy, or has trouble with this one request."""
_GATEWAY_STATUSES = frozenset((502, 503, 504))
"""Statuses with which a proxy answers for an endpoint that is down."""

logger = logging.getLogger(__name__)
rate_limited_log = RateLimitedLog(logger)


class EndpointSettings(BaseModel):
    """Options for calls of a model's endpoints, the same for every kind of model server."""

    default_headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request."""

    session_header: dict[str, RoutingKey] = Field(default_factory=dict)
    """Headers that say which rollout or group a request is of, for routers that send those with the same value to the
    same replica, such as `{x-session-id: group}`."""

    extra_body: dict[str, Any] | None = None
    """Parameters for every request beyond its own, such as `cache: {no-cache: true}`. The request's own win."""

    num_concurrent_requests: int | None = Field(default=None, ge=1)
    """Upper bound for requests in flight from one worker. Others wait, within their own deadline."""

    max_tries: int = Field(default=MAX_TRIES, ge=1)
    """Maximum number of attempts while the error is retryable. Attempts do not count while the endpoint is down."""

    max_outage_s: float = Field(default=MAX_OUTAGE_S, ge=0)
    """Time that requests wait, within their deadline, for an endpoint that has answered before and is down."""

    request_timeout_s: float = Field(default=REQUEST_TIMEOUT_S, gt=0)
    """Timeout of one attempt, and of the wait for a slot."""


class Lease(NamedTuple):
    """A request in flight on an endpoint."""

    endpoint: int
    since: float


@dataclass(slots=True)
class _Endpoint:
    in_flight: int = 0
    sessions: int = 0
    failures: int = 0
    """Consecutive failures."""
    failed_at: float = -math.inf
    cools_down_until: float = -math.inf

    def rank(self, now: float) -> tuple[float, int, int]:
        """The lowest is next: healthy endpoints first, then the fewest requests in flight and sessions."""
        return max(self.cools_down_until, now), self.in_flight, self.sessions


class Balancer:
    """Chooses among endpoints by index. A state machine without I/O."""

    def __init__(self, count: int, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._endpoints = [_Endpoint() for _ in range(count)]
        self._max_sessions = max_sessions
        self._index_of_session: OrderedDict[str, int] = OrderedDict()

    def start(self, session: str | None, *, now: float) -> Lease:
        """Choose the endpoint for a request: the session's own while it is healthy, otherwise the least busy one.

        After a failure an endpoint gets no requests for a cooldown that grows. Then one request probes it, and the
        others wait for its result. If all endpoints cool down, the one whose cooldown ends first is used.
        """
        index = None if session is None else self._index_of_session.get(session)
        if index is None or self._endpoints[index].cools_down_until > now:
            index = min(range(len(self._endpoints)), key=lambda number: self._endpoints[number].rank(now))
        if session is not None:
            self._assign(session, index)
        endpoint = self._endpoints[index]
        endpoint.in_flight += 1
        endpoint.cools_down_until = now + _cooldown_s(endpoint.failures) if endpoint.failures else -math.inf
        return Lease(index, now)

    def end(self, lease: Lease, *, is_healthy: bool | None, now: float) -> None:
        """End a request. `is_healthy` is what it says about the endpoint, None if it says nothing.

        Requests that were in flight together and fail together count as one failure.
        """
        endpoint = self._endpoints[lease.endpoint]
        endpoint.in_flight -= 1
        if is_healthy:
            endpoint.failures, endpoint.cools_down_until = 0, -math.inf
        elif is_healthy is False and lease.since > endpoint.failed_at:
            endpoint.failures += 1
            endpoint.failed_at, endpoint.cools_down_until = now, now + _cooldown_s(endpoint.failures)

    @property
    def is_down(self) -> bool:
        """True if the last requests to all endpoints failed."""
        return all(endpoint.failures for endpoint in self._endpoints)

    def _assign(self, session: str, index: int) -> None:
        before = self._index_of_session.pop(session, None)
        if before is not None:
            self._endpoints[before].sessions -= 1
        self._index_of_session[session] = index
        self._endpoints[index].sessions += 1
        if len(self._index_of_session) > self._max_sessions:
            _, oldest = self._index_of_session.popitem(last=False)
            self._endpoints[oldest].sessions -= 1


def _cooldown_s(failures: int) -> float:
    return min(MAX_COOLDOWN_S, FIRST_COOLDOWN_S * 2.0 ** min(failures - 1, 30))


def _health_by(error: UpstreamError) -> bool | None:
    if error.cause == "timeout" or error.status in _INCONCLUSIVE_STATUSES:
        return None
    return error.status not in _UNHEALTHY_STATUSES


class EndpointPool:
    """The endpoints of one model, as one worker uses them."""

    def __init__(self, clients: Sequence[NeMoGymAsyncOpenAI], settings: EndpointSettings) -> None:
        self.clients = list(clients)
        self._settings = settings
        self._balancer = Balancer(len(self.clients))
        limit = settings.num_concurrent_requests
        self._slots = None if limit is None else asyncio.Semaphore(limit)
        self._was_reached = False
        self._num_answered = 0
        """The number of requests with a good reply."""
        self._down_since: float | None = None
        """By the lease clock: since when no request had a good reply, if the last one met an outage."""

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
        """A pool of clients of `kind`, one for each URL. They do not retry: the pool does."""
        options |= {"default_headers": settings.default_headers, "session_header": settings.session_header}
        options["timeout_s"] = settings.request_timeout_s
        listed = [urls] if isinstance(urls, str) else urls
        for url in listed:
            check_url(url)
        return cls(
            [kind(base_url=url, api_key=api_key, max_tries=1, http=http, **options) for url in listed], settings
        )

    def call(self, send: Send[T], *, session: str | None = None) -> Coroutine[Any, Any, T]:
        """The result of `send` with one of the endpoints. Each attempt may use another one."""
        return retry(
            self._call_when_up, send, session, max_tries=self._settings.max_tries, retryable=self._is_retryable
        )

    async def _call_when_up(self, send: Send[T], session: str | None) -> T:
        """Call an endpoint. While it is down, wait for it, so that a rollout does not end for that."""
        tries = 0
        while True:
            answered = self._num_answered
            try:
                result = await self._call_once(send, session)
            except UpstreamError as error:
                if not self._is_outage(error, answered):
                    raise
                tries += 1
                await self._wait_for_endpoint(error, tries)
            else:
                self._num_answered += 1
                if self._down_since is not None:
                    down_s, self._down_since = lease_time() - self._down_since, None
                    urls = ", ".join(client.shown_url for client in self.clients)
                    logger.warning("%s answers again after %.0f s, and requests go on", urls, down_s)
                return result

    def _is_outage(self, error: UpstreamError, answered: int) -> bool:
        """True if the error is not about the request: nobody listens, or a proxy answers every request like this. An
        endpoint that never answered well may be configured wrong."""
        if (
            not self._num_answered
            or error.cause == "timeout"
            or (len(self.clients) > 1 and not self._balancer.is_down)
        ):
            return False
        is_gateway = error.status in _GATEWAY_STATUSES and self._num_answered == answered
        return isinstance(error, ConnectError) or is_gateway

    async def _wait_for_endpoint(self, error: UpstreamError, tries: int) -> None:
        """Pause before the next try. Raises if the endpoint is down for too long."""
        now = lease_time()
        if self._down_since is None:
            self._down_since = now
        pause_s = backoff_s(min(tries, MAX_OUTAGE_BACKOFF), retry_after_s=error.retry_after_s)
        if now + pause_s - self._down_since > self._settings.max_outage_s:
            raise UnreachableError.of(error) if isinstance(error, ConnectError) else error
        if pause_s >= time_left(math.inf):
            raise error
        text = "%s; requests are paused and it is asked again every few seconds, for at most %g s (%.0f s so far)"
        rate_limited_log.warning(error.server, text, error, self._settings.max_outage_s, now - self._down_since)
        await asyncio.sleep(pause_s)

    def _is_retryable(self, error: Exception) -> bool:
        """An only endpoint that was never reached is more likely configured wrong than restarting."""
        if not is_retryable(error) or (isinstance(error, UnreachableError) and len(self.clients) == 1):
            return False
        return not (isinstance(error, UpstreamError) and setup_code(error) == "no_quota")

    def session(self, jar: CookieJar, server: str) -> str | None:
        """The id that keeps the rollouts of a group on one endpoint, or a rollout whose group is not known: then it is
        in its cookies. With one endpoint there is none."""
        if len(self.clients) < 2:
            return None
        if (group := current_routing("group")) is not None:
            return group[-MAX_SESSION_CHARS:]
        cookie = f"Endpoint___{server}"
        if cookie not in jar:
            jar.merge({cookie: uuid4().hex})
        return jar[cookie][:MAX_SESSION_CHARS]

    def _call_once(self, send: Send[T], session: str | None) -> Awaitable[T]:
        if self._slots is not None:
            return self._call_in_slot(self._slots, send, session)
        is_known = self._was_reached and len(self.clients) == 1
        return send(self.clients[0]) if is_known else self._call_balanced(send, session)

    async def _call_in_slot(self, slots: asyncio.Semaphore, send: Send[T], session: str | None) -> T:
        allowed_s = time_left(self._settings.request_timeout_s)
        try:
            async with asyncio.timeout(allowed_s):
                await slots.acquire()
        except TimeoutError as error:
            urls = ", ".join(client.shown_url for client in self.clients)
            text = f"none of {self._settings.num_concurrent_requests} slots came free within {allowed_s:.3g} s"
            raise UpstreamError(urls, 0, text, cause="timeout") from error
        try:
            return await self._call_balanced(send, session)
        finally:
            slots.release()

    async def _call_balanced(self, send: Send[T], session: str | None) -> T:
        lease = self._balancer.start(session, now=time.monotonic())
        is_healthy: bool | None = None
        try:
            result = await send(self.clients[lease.endpoint])
            is_healthy = self._was_reached = True
        except ConnectError as error:
            is_healthy, client = False, self.clients[lease.endpoint]
            if self._was_reached or client.http().was_reached(client.base_url):
                raise
            raise UnreachableError.of(error) from error
        except UpstreamError as error:
            is_healthy, self._was_reached = _health_by(error), True
            raise
        finally:
            self._balancer.end(lease, is_healthy=is_healthy, now=time.monotonic())
        return result
