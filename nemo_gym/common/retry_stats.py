"""Retries of one rollout, counted in every server it passes and reported back to its caller."""

from contextvars import ContextVar

import msgspec

RETRY_STATS_HEADER = "nemo-gym-retries"


class RetryStats(msgspec.Struct):
    """How many requests were retried, and how many of them because a server was overloaded."""

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
