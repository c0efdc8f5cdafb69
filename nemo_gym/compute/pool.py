"""CPU-heavy or hostile work, off the event loop: functions run in a pool of warm processes that can be killed.

A function that overruns is killed, not awaited, and costs nothing but its own task. This is no sandbox: the functions
are ours, only what they are given is not."""

import asyncio
import contextlib
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar, TypeVarTuple

from nemo_gym.common.deadline import timeout
from nemo_gym.common.folder_imports import folder_of
from nemo_gym.compute.fork_client import (
    CpuTimeExceededError,
    ForkServer,
    Frame,
    NotStartedError,
    TimeLimits,
    WallTimeExceededError,
    Worker,
    WorkerDiedError,
)
from nemo_gym.compute.fork_server import ForkRequest, Kind, Module, Task
from nemo_gym.errors import GymError

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

MIN_WORKERS = 2
"""Unless told otherwise, so that one endless task never holds up all others."""
MEMORY_MB = 2048
"""What a worker may have if nobody says otherwise. Symbolic mathematics takes about a hundred."""
WALL_TIME_FACTOR, MIN_WALL_TIMEOUT_S = 10, 60.0
"""The default limit on wall-clock time: this many times the CPU time limit, and at least that many seconds. Generous,
since each process is slower on a machine with more processes than cores."""
MAX_ARGUMENT_BYTES = 32 * 2**20


class LimitExceededError(GymError):
    """A function took more than it may and was ended. `limit` says more of what."""

    def __init__(self, message: str, *, limit: Literal["time", "memory"]) -> None:
        super().__init__(message)
        self.limit: Literal["time", "memory"] = limit


class ComputeError(GymError):
    """The pool failed: a worker died or could not be started, or what goes in or comes out cannot travel."""


class Compute:
    """Runs functions in processes of its own, as many at once as it has workers. All start when first needed."""

    def __init__(self, *, workers: int | None = None, memory_mb: int | None = None) -> None:
        self._memory_mb = memory_mb or MEMORY_MB
        self._turns = asyncio.Semaphore(workers or max(os.cpu_count() or 1, MIN_WORKERS))
        self._modules: dict[str, Module] = {}
        self._fork_server: ForkServer | None = None
        self._idle: list[Worker] = []
        self._workers: set[Worker] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def warm(self, *modules: str) -> None:
        """Have workers import these before their first task, so that no time limit includes it.

        The module of a function that is run is among them from then on. If a module has a function `warm_up`, that is
        called, too.
        """
        for name in modules:
            if name not in self._modules:
                self._modules[name] = _module(name)

    async def run(
        self,
        function: Callable[[*Arguments], T],
        *args: *Arguments,
        timeout_s: float,
        wall_timeout_s: float | None = None,
    ) -> T:
        """What `function(*args)` returns or raises, computed in the main thread of another process.

        `timeout_s` limits the CPU time it uses: what exceeds it raises `LimitExceededError`, however fast the machine
        is. `wall_timeout_s` (default: ten times as much, at least a minute) limits the time it takes. What exceeds
        only that is stuck or on an overloaded machine, which says nothing about its arguments: `ComputeError`.

        The function must be importable by its module and name. Waiting for a turn counts against the deadline of the
        running task only. If that task is cancelled, the function is killed.
        """
        limits = TimeLimits(timeout_s, wall_timeout_s or max(WALL_TIME_FACTOR * timeout_s, MIN_WALL_TIMEOUT_S))
        what, task = f"{function.__module__}.{function.__qualname__}()", _pickled(function, args)
        self.warm(function.__module__)
        async with timeout(None, what=what), self._turns:
            answer = await self._answer(task, what, limits)
        if answer.kind is Kind.OUT_OF_MEMORY:
            raise LimitExceededError(f"{what} needed more than {self._memory_mb} MB of memory.", limit="memory")
        if answer.kind is Kind.FAILED:
            raise ComputeError(f"{what} {answer.payload.decode(errors='replace')}")
        result = _unpickled(answer.payload, what)
        if answer.kind is Kind.RAISED:
            raise result
        return result  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End all processes. What still runs fails."""
        self._is_closed = True
        for worker in list(self._workers):
            self._discard(worker)
        if self._fork_server is not None:
            self._fork_server.close()

    async def _answer(self, task: bytes, what: str, limits: TimeLimits) -> Frame:
        """One worker's answer; another's if that one is lost before it begins."""
        with contextlib.suppress(NotStartedError):
            return await self._attempt(task, what, limits)
        try:
            return await self._attempt(task, what, limits)
        except NotStartedError as error:
            raise ComputeError(f"{what} could not be handed to a worker: {error}") from error

    async def _attempt(self, task: bytes, what: str, limits: TimeLimits) -> Frame:
        worker = self._idle_worker() or await self._start()
        is_fit = False
        try:
            answer = await worker.ask(task, limits)
            is_fit = answer.kind is not Kind.OUT_OF_MEMORY
        except CpuTimeExceededError as error:
            message = f"{what} did not finish within {limits.cpu_s:g} s of CPU time."
            raise LimitExceededError(message, limit="time") from error
        except WallTimeExceededError as error:
            raise ComputeError(f"{what} did not finish within {limits.wall_s:g} s of wall-clock time.") from error
        except WorkerDiedError as error:
            code = await self._discard(worker)
            raise ComputeError(f"{what} did not finish: its worker ended with {_named(code)}.") from error
        finally:
            if is_fit:
                self._idle.append(worker)
            else:
                self._discard(worker)
        return answer

    def _idle_worker(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if not worker.has_ended():
                return worker
            self._discard(worker)
        return None

    async def _start(self) -> Worker:
        if self._is_closed:
            raise ComputeError("The pool is closed.")
        if self._fork_server is None or self._fork_server.is_gone:
            self._fork_server = ForkServer()
        worker = await self._fork_server.fork(ForkRequest(tuple(self._modules.values()), self._memory_mb * 2**20))
        self._workers.add(worker)
        return worker

    def _discard(self, worker: Worker) -> "asyncio.Future[int | None]":
        self._workers.discard(worker)
        return worker.kill()


def _module(name: str) -> Module:
    folder = folder_of(name)
    return Module(name, None if folder is None else str(folder))


def _pickled(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or "<" in name:
        raise ComputeError(
            f"{module}.{name}() cannot be imported by a worker. Expected a function at the top level of a module, and "
            "not of the main program."
        )
    try:
        arguments = pickle.dumps(args, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ComputeError(f"The arguments of {module}.{name}() cannot be pickled: {error!r}") from error
    if len(arguments) > MAX_ARGUMENT_BYTES:
        raise ComputeError(
            f"The arguments of {module}.{name}() have {len(arguments)} bytes; at most {MAX_ARGUMENT_BYTES} are taken."
        )
    return pickle.dumps(Task(_module(module), name, arguments), pickle.HIGHEST_PROTOCOL)


def _unpickled(payload: bytes, what: str) -> Any:
    try:
        return pickle.loads(payload)
    except Exception as error:
        raise ComputeError(f"What {what} gave cannot be read here: {error!r}") from error


def _named(code: int | None) -> str:
    if code is None:
        return "the pool"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
