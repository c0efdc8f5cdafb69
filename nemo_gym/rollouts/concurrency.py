"""How many rollouts may be in flight: a fixed number or as many as the endpoint takes, and never more than there are
file descriptors for."""

import asyncio
import logging
import resource

from nemo_gym.common.descriptors import outbound_limit

logger = logging.getLogger(__name__)

START = 64
"""A cautious first guess; it doubles with every round trip until the endpoint throttles."""
DECREASE = 0.7

DESCRIPTORS_PER_LOCAL_ROLLOUT = 1
"""When this process holds the servers: a connection to the model. One to a judge waits if all are in use."""
DESCRIPTORS_PER_REMOTE_ROLLOUT = 3
"""When the servers run in workers, which usually have the same limit: there a rollout holds the connection from this
process, one to its model and one to a server in another process."""


def limit_to_descriptors(wanted: int, *, per_rollout: int) -> int:
    """As many of the wanted rollouts in flight as there are file descriptors for. A reduction is logged."""
    affordable = max(1, outbound_limit() // per_rollout)
    if affordable < wanted:
        logger.warning(
            "At most %d rollouts in flight instead of %d: this process may open %d files. Raise the limit with "
            "`ulimit -n`.",
            affordable,
            wanted,
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
    return min(wanted, affordable)


class AimdWindow:
    """Additive increase, multiplicative decrease. Before the first throttled rollout the size doubles with every round
    trip; after it the size grows by one a round trip.

    Of the throttled rollouts that were started under one size, only the first shrinks the window."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.size = float(max(low, min(high, START)))
        self.generation = 0
        self._doubling = True

    def succeeded(self) -> None:
        self.size = min(self.high, self.size + (1.0 if self._doubling else 1.0 / self.size))

    def throttled(self, generation: int) -> None:
        """The endpoint throttled a rollout that was started in `generation`."""
        if generation < self.generation or self.low == self.high:
            return
        self.generation += 1
        self._doubling = False
        self.size = max(self.low, self.size * DECREASE)


class AdaptiveLimiter:
    """A semaphore whose size adapts."""

    def __init__(self, window: AimdWindow) -> None:
        self.window = window
        self.in_flight = 0
        self._is_full, self._has_room = False, asyncio.Event()

    async def enter(self) -> int:
        """Wait for a place. Returns the generation to pass to `leave`."""
        while self.in_flight >= int(self.window.size):
            self._is_full = True
            self._has_room.clear()
            await self._has_room.wait()
        self.in_flight += 1
        return self.window.generation

    def leave(self, generation: int, *, throttled: bool, scored: bool) -> None:
        """Give the place back and adapt the size. Failures do not widen the window."""
        self.in_flight -= 1
        if throttled:
            self.window.throttled(generation)
        elif scored:
            self.window.succeeded()
        if self._is_full and self.in_flight < int(self.window.size):
            self._is_full = False
            self._has_room.set()
