"""CPU-heavy functions as Ray tasks, on whichever node has room. In the task's process the function runs as it does
without Ray: in a warm process of its own that can be killed, under the same limits."""

import asyncio
import threading
from typing import Any

from nemo_gym.common.ray_connection import connect_ray, import_ray
from nemo_gym.compute.fork_client import Frame, TimeLimits
from nemo_gym.compute.fork_server import Module
from nemo_gym.compute.pool import Compute, ComputeError
from nemo_gym.errors import GymError


class RayCompute(Compute):
    """As `Compute`, on all nodes of a cluster."""

    def __init__(self, address: str, *, workers: int | None = None, memory_mb: int | None = None) -> None:
        super().__init__(workers=workers or 2**16, memory_mb=memory_mb)
        self._address = address
        self._task: Any = None

    async def _execute(self, task: bytes, what: str, limits: TimeLimits) -> Frame:
        if self._task is None:
            await asyncio.to_thread(connect_ray, self._address)
            self._task = import_ray().remote(num_cpus=1, scheduling_strategy="SPREAD", max_retries=1)(run_on_this_node)
        reference = self._task.remote(task, what, limits, tuple(self._modules.values()), self._memory_mb)
        try:
            outcome = await reference
        except asyncio.CancelledError:
            import_ray().cancel(reference, force=True)
            raise
        except import_ray().exceptions.RayError as error:
            raise ComputeError(f"{what} did not finish on Ray: {error}") from error
        if isinstance(outcome, GymError):
            raise outcome
        kind, payload = outcome
        return Frame(kind, payload)


_local: Compute | None = None
_loop: asyncio.AbstractEventLoop | None = None


def run_on_this_node(
    task: bytes, what: str, limits: TimeLimits, modules: tuple[Module, ...], memory_mb: int
) -> Frame | GymError:
    """The Ray task. Its process is used again for the next one, and with it the warm workers."""

    async def run() -> Frame:
        global _local  # noqa: PLW0603 - one pool for each Ray process, for as long as it lives
        if _local is None:
            _local = Compute(workers=1, memory_mb=memory_mb)
        return await _local.execute_pickled(task, what, limits, modules)

    try:
        return asyncio.run_coroutine_threadsafe(run(), _event_loop()).result()
    except GymError as error:
        return error


def _event_loop() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603
    if _loop is None:
        _loop = asyncio.new_event_loop()
        threading.Thread(target=_loop.run_forever, name="nemo-gym-compute", daemon=True).start()
    return _loop
