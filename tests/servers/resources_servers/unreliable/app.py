"""Fails where its row says, and reports what happens to its sessions on a pipe of the process that it is in."""

import asyncio
import os

from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    SessionState,
    SimpleResourcesServer,
    tool,
)
from nemo_gym.errors import RolloutError


class UnreliableSeedRequest(BaseSeedSessionRequest):
    events_fd: int
    fails_in: str = ""


class UnreliableVerifyRequest(BaseVerifyRequest):
    fails_in: str = ""


class UnreliableSession(SessionState):
    events_fd: int = -1
    has_worked: bool = False

    def close(self) -> None:
        os.write(self.events_fd, b"ended\n")


class UnreliableResourcesServer(SimpleResourcesServer):
    async def seed_session(self, body: UnreliableSeedRequest, session: UnreliableSession) -> None:
        session.events_fd = body.events_fd
        if body.fails_in == "seed":
            raise RolloutError("environment", "the seed is gone")

    @tool
    async def work(self, session: UnreliableSession, amount: float = 1) -> str:
        """Work."""
        session.has_worked = True
        return "done"

    @tool
    async def lose(self) -> None:
        """Lose everything."""
        raise RolloutError("environment", "the tool is gone")

    @tool
    async def hang(self, session: UnreliableSession) -> None:
        """Never return."""
        os.write(session.events_fd, b"hangs\n")
        try:
            await asyncio.Event().wait()
        finally:
            os.write(session.events_fd, b"cancelled\n")

    async def verify(self, body: UnreliableVerifyRequest, session: UnreliableSession) -> float:
        if body.fails_in == "verify":
            raise RolloutError("verifier", "the verifier is gone")
        return float(session.has_worked)


if __name__ == "__main__":
    UnreliableResourcesServer.run_webserver()
