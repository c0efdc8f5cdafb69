"""Scores a row and says where: the process and the Ray node of the agent, of a compute function, of a Ray task."""

import asyncio
import os

import ray
from pydantic import BaseModel

from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent
from nemo_gym.compute.pool import Compute


class Row(BaseModel):
    seconds: float = 0.0
    computes: bool = False


def process_of_compute() -> int:
    return os.getppid()


@ray.remote(scheduling_strategy="SPREAD")
def cpu_intensive_task(data: int) -> int:
    return data * data


def process_data_parallel(data_list: list[int]) -> list[int]:
    """As the FAQ shows it."""
    futures = [cpu_intensive_task.remote(data) for data in data_list]
    return ray.get(futures)


class LocatedAgent(SimpleResponsesAPIAgent):
    async def responses(self, body: Row, compute: Compute) -> dict[str, object]:
        await asyncio.sleep(body.seconds)
        found: dict[str, object] = {"reward": 1.0, "pid": os.getpid()}
        found["node"] = ray.get_runtime_context().get_node_id()
        if body.computes:
            found["compute_pid"] = await compute.run(process_of_compute, timeout_s=10)
            found["squares"] = await asyncio.to_thread(process_data_parallel, [1, 2, 3])
        return found

    run = responses
