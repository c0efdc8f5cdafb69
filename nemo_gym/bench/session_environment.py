"""The environment of the session benchmark: a counter per session, and a step that waits."""

import asyncio

from nemo_gym.base_resources_server import BaseVerifyRequest, SessionState, SimpleResourcesServer, tool


class Steps(SessionState):
    count: int = 0


class SessionBenchResourcesServer(SimpleResourcesServer):
    given_history = "replay"

    @tool
    async def step(self, wait_s: float, steps: Steps) -> int:
        """Wait, then return the number of steps of this session."""
        await asyncio.sleep(wait_s)
        steps.count += 1
        return steps.count

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


if __name__ == "__main__":
    SessionBenchResourcesServer.run_webserver()
