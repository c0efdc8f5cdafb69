"""Which attempt at a rollout the running task belongs to, for a record of its calls."""

import itertools
from collections import defaultdict
from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from nemo_gym.rollouts.types import RowId

T = TypeVar("T")

_attempt_numbers = itertools.count()


@dataclass(slots=True)
class RecordingContext:
    """The attempt that the running task belongs to, and how many calls it has made."""

    row: RowId
    attempt: int
    number: int = field(default_factory=lambda: next(_attempt_numbers))
    """Unique in this process: a hedged rollout has two attempts of the same number at once."""
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))


_context: ContextVar[RecordingContext | None] = ContextVar("nemo_gym_recording", default=None)


async def in_recording_context(running: Awaitable[T], row: RowId, attempt: int) -> T:
    """Await. Calls that are made meanwhile belong to this attempt."""
    token = _context.set(RecordingContext(row, attempt))
    try:
        return await running
    finally:
        _context.reset(token)


def current_attempt() -> RecordingContext | None:
    """The attempt that the running task belongs to, if any."""
    return _context.get()
