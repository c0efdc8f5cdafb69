"""Uses CPU time, and waits without using any."""

import asyncio
import time

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool
from nemo_gym.compute import Compute


def use_cpu(seconds: float) -> None:
    started = time.thread_time()
    while time.thread_time() < started + seconds:
        pass


class BusyResourcesServer(SimpleResourcesServer):
    @tool
    async def compute(self, seconds: float) -> str:
        for _ in range(4):
            use_cpu(seconds / 4)
            await asyncio.sleep(0)
        return "done"

    @tool
    async def compute_elsewhere(self, seconds: float, compute: Compute) -> str:
        await compute.run(use_cpu, seconds, timeout_s=60)
        return "done"

    @tool
    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @tool
    def compute_in_a_thread(self, seconds: float) -> str:
        use_cpu(seconds)
        return "done"

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0


if __name__ == "__main__":
    BusyResourcesServer.run_webserver()
