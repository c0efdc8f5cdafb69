"""The retry policy: what is retried, after which pause, and what the log says. Every caller uses it.

A caller decides only which errors are retryable. Pauses, limits and log lines are the same everywhere.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import TypeVar, TypeVarTuple

import msgspec

from nemo_gym.common.deadline import time_left
from nemo_gym.common.logging import RateLimitedLog
from nemo_gym.errors import ConnectError, OverloadedError, UpstreamError

RETRY_STATS_HEADER = "nemo-gym-retries"


class RetryStats(msgspec.Struct):
    """Counts of requests that were retried, and of those because a server was overloaded."""

    retries: int = 0
    throttled: int = 0

    def add(self, retries: int, throttled: int) -> None:
        self.retries += retries
        self.throttled += throttled

    def as_header(self) -> str:
        return f"{self.retries} {self.throttled}"


_current: ContextVar[RetryStats | None] = ContextVar("nemo_gym_retries", default=None)


class track_retries:  # noqa: N801 - a context manager
    """Count the retries of the code inside, and of the tasks and servers that it calls."""

    __slots__ = ("_outer", "_stats", "_token")

    def __enter__(self) -> RetryStats:
        self._stats, self._outer = RetryStats(), _current.get()
        self._token = _current.set(self._stats)
        return self._stats

    def __exit__(self, *_error: object) -> None:
        _current.reset(self._token)
        if self._outer is not None:
            self._outer.add(self._stats.retries, self._stats.throttled)


def record_retry(*, retries: int = 0, throttled: int = 0) -> None:
    """Count a retry, or a server that was overloaded."""
    stats = _current.get()
    if stats is not None:
        stats.add(retries, throttled)


def add_retry_header(header: str | None) -> None:
    """Add what a server counted while it answered."""
    stats = _current.get()
    if header and stats is not None:
        retries, _, throttled = header.partition(" ")
        if retries.isdigit() and throttled.isdigit():
            stats.add(int(retries), int(throttled))


T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

RETRIED_STATUSES = frozenset((408, 429, 500, 502, 503, 504, 520, 529))
THROTTLING_STATUSES = frozenset((429, 503, 529))
"""Statuses by which an endpoint asks for fewer requests."""
RATE_LIMIT_ERROR_CODES = [429, 502, 503, 504, 520]
RETRY_ERROR_CODES = [*RATE_LIMIT_ERROR_CODES, 500]
"""Statuses for servers that decide themselves what to retry. Our own code uses the sets above."""
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
MAX_RETRY_AFTER_S = 60.0
"""A server that asks for a longer pause is asked again after this one."""

rate_limited_log = RateLimitedLog(logging.getLogger(__name__))


def is_retryable(error: Exception) -> bool:
    """True if the same request to an endpoint may succeed later. One that timed out has used up its time."""
    return (
        isinstance(error, UpstreamError)
        and error.cause != "timeout"
        and (error.status == 0 or error.status in RETRIED_STATUSES)
    )


def is_unsent(error: Exception) -> bool:
    """True if the request certainly had no effect: nothing was sent, or the server refused it as overloaded."""
    return isinstance(error, ConnectError | OverloadedError)


def backoff_s(attempt: int, *, retry_after_s: float | None = None, chance: float | None = None) -> float:
    """The pause after failed attempt `attempt` (from 1): exponential, jittered, and at least what the server asks."""
    share = random.random() if chance is None else chance
    pause_s: float = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (min(attempt, 30) - 1)) * (0.5 + share / 2)
    return pause_s if retry_after_s is None else max(pause_s, min(retry_after_s, MAX_RETRY_AFTER_S))


def parse_retry_after(value: str | None, *, now: float | None = None) -> float | None:
    """The seconds in a `Retry-After` header, which holds a number or the time at which the pause ends."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass  # not a number
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now))
    except (ValueError, OverflowError):
        return None


def pause_before_retry(
    error: Exception, attempt: int, *, max_tries: int, retryable: Callable[[Exception], bool], left_s: float
) -> float | None:
    """The pause before the next attempt, or None to give up.

    A pause that would outlast the deadline is not made: the error itself says more than a timeout.
    """
    if attempt >= max_tries or not retryable(error):
        return None
    pause_s = backoff_s(attempt, retry_after_s=error.retry_after_s if isinstance(error, UpstreamError) else None)
    return pause_s if pause_s < left_s else None


async def retry(
    attempt: Callable[[*Arguments], Awaitable[T]],
    *arguments: *Arguments,
    max_tries: int,
    retryable: Callable[[Exception], bool] = is_retryable,
) -> T:
    """The result of `attempt(*arguments)`, which is repeated while its error is `retryable` and there is time."""
    number = 1
    while True:
        try:
            return await attempt(*arguments)
        except Exception as error:
            pause_s = pause_before_retry(
                error, number, max_tries=max_tries, retryable=retryable, left_s=time_left(math.inf)
            )
            if pause_s is None:
                raise
            record_retry(retries=1, throttled=int(isinstance(error, OverloadedError)))
            kind = f"{getattr(error, 'server', '')} {getattr(error, 'status', type(error).__name__)}"
            text = "%s; attempt %d of %d, next in %.1f s"
            rate_limited_log.warning(kind, text, error, number, max_tries, pause_s)
        await asyncio.sleep(pause_s)
        number += 1
