"""uvicorn's server, stopped by an event."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from nemo_gym.server.limits import GRACE_S

logger = logging.getLogger(__name__)

POLL_S = 0.002
"""uvicorn reports its connections by plain attributes only."""


class StoppableServer(uvicorn.Server):
    """uvicorn without its signal handlers and its polling: it stops when `stop` is set and waits no longer than the
    requests in flight need."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(GRACE_S):
                while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn offers no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            if state.tasks:  # else only connections that nobody closed
                logger.warning("%d requests took longer than %g s to finish; cancelling", len(state.tasks), GRACE_S)
            for task in state.tasks:
                task.cancel()
