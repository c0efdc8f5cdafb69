"""Counts of one rollout, kept wherever it passes and carried back to whoever started it."""

from contextvars import ContextVar
from dataclasses import dataclass

RETRY_STATS_HEADER = "nemo-gym-tally"


@dataclass(slots=True)
class RetryStats:
    """How often something had to be tried again, and how often because a peer asked for less."""

    retries: int = 0
    throttled: int = 0

    def add(self, retries: int, throttled: int) -> None:
        self.retries += retries
        self.throttled += throttled

    def as_header(self) -> str:
        return f"{self.retries} {self.throttled}"


_current: ContextVar[RetryStats | None] = ContextVar("nemo_gym_tally", default=None)


class track_retries:  # noqa: N801 - used as a word: `with counting() as tally`
    """Count what the code inside, and the tasks and servers it calls, had to try again."""

    __slots__ = ("_mark", "_outer", "_tally")

    def __enter__(self) -> RetryStats:
        self._tally, self._outer = RetryStats(), _current.get()
        self._mark = _current.set(self._tally)
        return self._tally

    def __exit__(self, *_error: object) -> None:
        _current.reset(self._mark)
        if self._outer is not None:
            self._outer.add(self._tally.retries, self._tally.throttled)


def record_retry(*, retries: int = 0, throttled: int = 0) -> None:
    """Note that something is tried again, or that a peer asked for less."""
    tally = _current.get()
    if tally is not None:
        tally.add(retries, throttled)


def add_retry_header(header: str | None) -> None:
    """Take over what a server counted while it answered."""
    tally = _current.get()
    if header and tally is not None:
        retries, _, throttled = header.partition(" ")
        if retries.isdigit() and throttled.isdigit():
            tally.add(int(retries), int(throttled))
