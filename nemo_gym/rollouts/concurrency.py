"""How many rollouts may be in flight: a fixed number, or as many as the endpoint turns out to take."""

import asyncio
from collections import deque

START = 64
"""A cautious first guess; it doubles with every round trip until the endpoint objects."""
DECREASE = 0.7


class AimdWindow:
    """Grows by one with each success until the first objection, then by one a round trip; an objection shrinks it.

    Of the objections to what was started under one size of the window, only the first counts."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.size = float(max(low, min(high, START)))
        self.generation = 0
        self._doubling = True

    def succeeded(self) -> None:
        self.size = min(self.high, self.size + (1.0 if self._doubling else 1.0 / self.size))

    def objected(self, generation: int) -> None:
        """The endpoint throttled a rollout that was started in `generation`."""
        if generation < self.generation or self.low == self.high:
            return
        self.generation += 1
        self._doubling = False
        self.size = max(self.low, self.size * DECREASE)


class AdaptiveLimiter:
    """Lets as many through as the window is wide."""

    def __init__(self, window: AimdWindow) -> None:
        self.window = window
        self.inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> int:
        """Wait for a place. Gives the era to be told when leaving."""
        while self.inside >= int(self.window.size):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self.inside += 1
        return self.window.generation

    def leave(self, generation: int, *, throttled: bool, scored: bool) -> None:
        """Give the place back, and say how it went. That a rollout failed is no reason to start more of them."""
        self.inside -= 1
        if throttled:
            self.window.objected(generation)
        elif scored:
            self.window.succeeded()
        free = int(self.window.size) - self.inside
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
