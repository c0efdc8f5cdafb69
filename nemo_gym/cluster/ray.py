"""Ray: workers as actors, and CPU-heavy functions as tasks. Core asks for this module as the plugin `ray`.

Each worker is an actor that holds a whole stack and joins the run, wherever Ray puts it. Ray starts actors, and starts
them again elsewhere when their node dies; rows go from the collector to the actors directly, not through Ray. The
package `ray` is imported only here and only if it is asked for."""

import asyncio
import contextlib
import importlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_gym.common import event_loop
from nemo_gym.compute.pool import Compute, ComputeError
from nemo_gym.compute.protocol import Frame, Module, TimeLimits
from nemo_gym.config.keys import RAY_HEAD_NODE_ADDRESS_KEY_NAME
from nemo_gym.errors import ConfigError, GymError, MissingExtraError, StartupError
from nemo_gym.runtime.class_loader import NUM_WORKERS_KEY_NAME, worker_count
from nemo_gym.runtime.launcher import WORKER_MODULE
from nemo_gym.runtime.membership import WorkerPlan, join_and_serve
from nemo_gym.server.request_checks import is_loopback

logger = logging.getLogger(__name__)

CPUS_KEY_NAME = "ray_cpus_per_worker"
READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 10.0
MAX_CONCURRENCY = 4
"""Concurrent calls of an actor's methods, which only start and stop it: rows do not come through Ray."""


_connecting = threading.Lock()


def import_ray() -> Any:
    """The module `ray`, or an error that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Running on Ray", "ray") from error
    return ray


def connect_ray(address: str | None = None) -> str:
    """Connect this process, unless it is connected: to the cluster at `address`, or to a new one on this machine.
    Returns the address by which other processes connect. Blocks for seconds."""
    ray = import_ray()
    with _connecting:
        if not ray.is_initialized():
            new = {} if address else {"include_dashboard": False}
            ray.init(address=address, ignore_reinit_error=True, log_to_driver=True, **new)
    found: str = ray.get_runtime_context().gcs_address
    return address or found


# Workers


class StackActor:
    """The actor: an event loop in a thread that serves one stack. The constructor returns when it is ready."""

    def __init__(self, plan: WorkerPlan, *, program: str, folder: str, on_this_machine: bool) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)
        ray = import_ray()
        host = plan.host if on_this_machine else ray.util.get_node_ip_address()
        self._plan, self._serve_stack = replace(plan, host=host), importlib.import_module(program).serve
        self._ready: Future[int] = Future()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="nemo-gym-worker", daemon=True)
        self._thread.start()
        self._ready.result(READY_TIMEOUT_S)

    def worker(self) -> int:
        """Its index in the run."""
        return self._ready.result(0)

    def stop(self) -> None:
        """Drain, then end."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            event_loop.run_embedded(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                return
            logger.exception("the worker ended")
        if self._stop is None or not self._stop.is_set():
            os._exit(1)  # so that Ray starts it again

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await join_and_serve(self._plan, self._serve_stack, self._stop, self._ready.set_result)


@contextlib.asynccontextmanager
async def connected(config: Mapping[str, Any]) -> AsyncIterator[str]:
    """Connected to the cluster that `config` names, or to a new one. Yields its address."""
    was_connected = import_ray().is_initialized()
    yield await asyncio.to_thread(connect_ray, config.get(RAY_HEAD_NODE_ADDRESS_KEY_NAME))
    if not was_connected:
        await asyncio.to_thread(import_ray().shutdown)


@contextlib.asynccontextmanager
async def ray_workers(plan: WorkerPlan, *, config: Mapping[str, Any]) -> AsyncIterator[None]:
    """Actors that have joined the run while the block runs: `num_workers` of them, or one for each CPU."""
    ray = import_ray()
    _check_reachable(ray, plan)
    cpus = float(config.get(CPUS_KEY_NAME) or 1)
    actor = ray.remote(num_cpus=cpus, scheduling_strategy="SPREAD", max_concurrency=MAX_CONCURRENCY, max_restarts=-1)(
        StackActor
    )
    options = {"program": WORKER_MODULE, "folder": str(Path.cwd()), "on_this_machine": is_loopback(plan.host)}
    actors = [actor.remote(plan, **options) for _ in range(_count(ray, plan, config, cpus))]
    try:
        await _until_ready(ray, actors)
        yield
    finally:
        await _stop(ray, actors)


def _count(ray: Any, plan: WorkerPlan, config: Mapping[str, Any], cpus: float) -> int:
    asked = [server.config.get(NUM_WORKERS_KEY_NAME) for server in plan.stack.servers]
    if {config.get(NUM_WORKERS_KEY_NAME), *asked} <= {None, "auto"}:
        return max(1, int(ray.cluster_resources().get("CPU", 1) / cpus))
    return worker_count(config, plan.stack.servers)


async def _until_ready(ray: Any, actors: list[Any]) -> None:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await asyncio.gather(*(actor.worker.remote() for actor in actors))
    except TimeoutError as error:
        raise StartupError(
            f"Not all of {len(actors)} Ray workers were ready within {READY_TIMEOUT_S:g} s. Does the cluster have "
            f"enough CPUs ({CPUS_KEY_NAME})?"
        ) from error
    except ray.exceptions.RayError as error:
        raise StartupError(f"A Ray worker could not start: {error}") from error


async def _stop(ray: Any, actors: list[Any]) -> None:
    with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await asyncio.gather(*(actor.stop.remote() for actor in actors), return_exceptions=True)
    for actor in actors:
        ray.kill(actor)


def _check_reachable(ray: Any, plan: WorkerPlan) -> None:
    """Actors on other machines cannot reach a run that listens on loopback."""
    others = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]} - {ray.util.get_node_ip_address()}
    if others and is_loopback(plan.host):
        raise ConfigError(
            f"The Ray cluster has nodes on other machines ({', '.join(sorted(others))}), which cannot reach a run "
            "that listens on loopback. Start it with +use_absolute_ip=true."
        )


# CPU-heavy functions


class RayCompute(Compute):
    """As `Compute`, on all nodes of a cluster. In a task's process the function runs as it does without Ray: in a warm
    process of its own that can be killed, under the same limits."""

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
