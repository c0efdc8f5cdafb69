"""Wait for a condition, for as long as a busy machine may need."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 300.0
"""Far more than anything here takes: reaching it is a failure, on a slow machine too."""
POLL_EVERY_S = 0.01


async def until(condition: Callable[[], object], *, timeout_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - processes and sockets set no event of ours
            await asyncio.sleep(POLL_EVERY_S)


def until_sync(condition: Callable[[], object], *, timeout_s: float = PATIENCE_S) -> None:
    """The same for tests without an event loop."""
    given_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > given_up_at:
            raise TimeoutError
        time.sleep(POLL_EVERY_S)
