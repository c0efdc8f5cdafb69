"""Does what an environment should not: changes its body, gives no number as a reward, blocks, dies."""

import asyncio
import math
import os
import time

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool
from nemo_gym.common.deadline import Deadline


class BreakableResourcesServer(SimpleResourcesServer):
    async def seed_session(self, body: BaseVerifyRequest) -> None:
        body.responses_create_params.input.clear()
        body.response.output[0].content[0].text = "something else"

    @tool
    async def die(self) -> None:
        os._exit(3)

    @tool
    async def hang(self) -> None:
        print("it hangs", flush=True)
        await asyncio.Event().wait()

    @tool
    async def time_left(self, deadline: Deadline) -> float:
        return deadline.left_s()

    @tool
    def block(self, seconds: float) -> str:
        time.sleep(seconds)
        return "done"

    @tool
    async def freeze(self, seconds: float) -> str:
        time.sleep(seconds)  # noqa: ASYNC251 - what an environment should not do
        return "done"

    @tool
    async def stdin_of_program(self) -> str:
        program = await asyncio.create_subprocess_exec("readlink", "/proc/self/fd/0", stdout=asyncio.subprocess.PIPE)
        return (await program.communicate())[0].decode().strip()

    @tool
    async def pid(self) -> int:
        return os.getpid()

    async def verify(self, body: BaseVerifyRequest) -> float:
        return math.nan


if __name__ == "__main__":
    BreakableResourcesServer.run_webserver()
