"""Run functions that are CPU-heavy or read hostile input outside the event loop, in warm processes that can be killed.

A function that exceeds its limits is killed and costs nothing but its own task. This is not a sandbox: the functions
are trusted, only their arguments are not."""

import asyncio
import os
import pickle
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeVar, TypeVarTuple, overload

from nemo_gym.common.deadline import timeout, wall_limit_s
from nemo_gym.common.outside_work import report_cpu_time
from nemo_gym.common.paths import folder_of
from nemo_gym.compute.protocol import (
    ForkRequest,
    Frame,
    Kind,
    Module,
    Task,
    TimeLimits,
    WorkerDiedError,
    WorkerLostError,
)
from nemo_gym.errors import GymError

if TYPE_CHECKING:
    from nemo_gym.compute.worker import ForkServerProcess, Worker

T = TypeVar("T")
Default = TypeVar("Default")
Arguments = TypeVarTuple("Arguments")

MIN_WORKERS = 2
"""The default on a machine with one core, so that one endless task does not block all others."""
MEMORY_MB = 2048
"""The default memory limit of a worker. Symbolic math needs about a hundred."""
MAX_ARGUMENT_BYTES = 32 * 2**20


LONG_TEXT = 32_768
"""Characters. `run_if_long` runs the function for a longer text in a worker."""
_RAISE: Any = object()


class TimedOut(Enum):
    TIMED_OUT = "timed out"


TIMED_OUT: Final = TimedOut.TIMED_OUT
"""A value for `on_limit` that a function cannot return itself."""


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LimitExceededError(GymError):
    """A function exceeded its limit on CPU time or memory and was killed."""

    def __init__(self, message: str, *, limit: Literal["time", "memory"]) -> None:
        super().__init__(message)
        self.limit: Literal["time", "memory"] = limit


class ComputeError(GymError):
    """The pool failed: a worker died or did not start, or an argument or result cannot be pickled."""

    def __init__(self, message: str, *, is_retryable: bool = True) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable
        """False if the same call would fail again: the function cannot be imported, or a value not pickled."""


class ComputeUsage(NamedTuple):
    """Counts of processes that run a function or are idle, and of functions that wait for one."""

    busy: int
    idle: int
    waiting: int


class Compute:
    """Runs functions in worker processes, one task each at a time. Processes start when they are first needed."""

    def __init__(self, *, workers: int | None = None, memory_mb: int | None = None) -> None:
        self._memory_mb = memory_mb or MEMORY_MB
        self._slots = asyncio.Semaphore(workers or max(available_cores(), MIN_WORKERS))
        self._modules: dict[str, Module] = {}
        self._fork_server: ForkServerProcess | None = None
        self._idle: list[Worker] = []
        self._workers: set[Worker] = set()
        self._is_closed = False
        self._tasks = 0
        """Tasks that run or wait."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def warm(self, *modules: str) -> None:
        """Import these modules, and call their `warm_up` if they have one, before a worker runs its first task.

        This does not count against time limits. `run` adds the module of its function.
        """
        for name in modules:
            if name not in self._modules:
                self._modules[name] = _module(name)

    def usage(self) -> ComputeUsage:
        idle = len(self._idle)
        busy = len(self._workers) - idle
        return ComputeUsage(busy, idle, max(0, self._tasks - busy))

    @overload
    async def run(
        self,
        function: Callable[[*Arguments], T],
        *args: *Arguments,
        timeout_s: float,
        wall_timeout_s: float | None = None,
    ) -> T: ...

    @overload
    async def run(
        self,
        function: Callable[[*Arguments], T],
        *args: *Arguments,
        timeout_s: float,
        wall_timeout_s: float | None = None,
        on_limit: Default,
    ) -> T | Default: ...

    async def run(
        self,
        function: Callable[[*Arguments], T],
        *args: *Arguments,
        timeout_s: float,
        wall_timeout_s: float | None = None,
        on_limit: Any = _RAISE,
    ) -> Any:
        """Return what `function(*args)` returns, or raise what it raises, in the main thread of another process.

        `timeout_s` limits its CPU time, however fast the machine is. A function that exceeds it, or the memory limit,
        raises `LimitExceededError`; with `on_limit`, that value is returned instead. `wall_timeout_s` (default: ten
        times as much, at least 60) limits its wall-clock time: a function that exceeds only that is stuck, or the
        machine is overloaded, and raises `ComputeError`.

        The function must be importable by its module and name. Waiting for a free worker counts only against the
        deadline of the rollout. If the calling task is cancelled, the function is killed.
        """
        try:
            return await self._run(function, args, timeout_s, wall_timeout_s)
        except LimitExceededError:
            if on_limit is _RAISE:
                raise
            return on_limit

    async def run_if_long(
        self,
        function: Callable[[str, *Arguments], T],
        text: str,
        *args: *Arguments,
        timeout_s: float,
        on_limit: Default,
    ) -> T | Default:
        """Return `function(text, *args)`. A text longer than `LONG_TEXT` is read in a worker, as `run` does."""
        if len(text) <= LONG_TEXT:
            return function(text, *args)
        return await self.run(function, text, *args, timeout_s=timeout_s, on_limit=on_limit)

    async def _run(
        self, function: Callable[..., T], args: tuple[Any, ...], timeout_s: float, wall_timeout_s: float | None
    ) -> T:
        limits = TimeLimits(timeout_s, wall_timeout_s or wall_limit_s(timeout_s))
        what, task = f"{function.__module__}.{function.__qualname__}()", _pickled(function, args)
        self.warm(function.__module__)
        self._tasks += 1
        try:
            async with timeout(None, what=what), self._slots:
                outcome = await self._execute(task, what, limits)
        finally:
            self._tasks -= 1
        if outcome.kind is Kind.OUT_OF_MEMORY:
            raise LimitExceededError(f"{what} needed more than {self._memory_mb} MB of memory.", limit="memory")
        if outcome.kind is Kind.FAILED:
            raise ComputeError(f"{what} {outcome.payload.decode(errors='replace')}", is_retryable=False)
        result = _unpickled(outcome.payload, what)
        if outcome.kind is Kind.RAISED:
            raise result
        return result  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End all processes. Running functions fail."""
        self._is_closed = True
        for worker in self._workers:
            worker.close()
        if self._fork_server is not None:
            self._fork_server.close()

    async def execute_pickled(self, task: bytes, what: str, limits: TimeLimits, modules: tuple[Module, ...]) -> Frame:
        """Run a function that another process has pickled, and return its outcome as it is."""
        self._modules |= {module.name: module for module in modules}
        async with self._slots:
            return await self._execute(task, what, limits)

    async def _execute(self, task: bytes, what: str, limits: TimeLimits) -> Frame:
        """The outcome of one worker, or of a fresh one if the first is lost before it starts."""
        try:
            return await self._attempt(self._idle.pop() if self._idle else await self._fork(), task, what, limits)
        except WorkerLostError:
            pass  # such as an idle worker that has ended
        try:
            return await self._attempt(await self._fork(), task, what, limits)
        except WorkerLostError as error:
            raise ComputeError(f"{what} could not be run by a worker: {error}.") from error

    async def _attempt(self, worker: "Worker", task: bytes, what: str, limits: TimeLimits) -> Frame:
        is_reusable = False
        try:
            outcome = await worker.run(task, limits)
            if outcome.kind is Kind.INTERPRETER_FAILED:
                raise WorkerLostError(f"it raised {outcome.payload.decode(errors='replace')}")
            is_reusable = outcome.kind is not Kind.OUT_OF_MEMORY
        except TimeoutError as error:
            message = f"{what} did not finish within {limits.cpu_s:g} s of CPU time."
            raise LimitExceededError(message, limit="time") from error
        except WorkerDiedError as error:
            raise ComputeError(f"{what} did not finish: {error}.") from error
        finally:
            report_cpu_time(f"compute {what}", worker.cpu_s)
            if is_reusable:
                self._idle.append(worker)
            else:
                self._discard(worker)
        return outcome

    async def _fork(self) -> "Worker":
        from nemo_gym.compute.worker import ForkServerProcess  # most collections need no process

        if self._is_closed:
            raise ComputeError("The pool is closed.")
        if self._fork_server is not None and self._fork_server.has_ended:
            self._fork_server.close()
            self._fork_server = None
        self._fork_server = self._fork_server or ForkServerProcess()
        request = ForkRequest(tuple(self._modules.values()), self._memory_mb * 2**20)
        worker = await self._fork_server.fork(request)
        self._workers.add(worker)
        return worker

    def _discard(self, worker: "Worker") -> None:
        self._workers.discard(worker)
        worker.close()


def _module(name: str) -> Module:
    folder = folder_of(name)
    return Module(name, None if folder is None else str(folder))


def _pickled(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or "<" in name:
        raise ComputeError(
            f"{module}.{name}() cannot be imported by a worker. Expected a function at the top level of a module that "
            "is not the main program.",
            is_retryable=False,
        )
    try:
        arguments = pickle.dumps(args, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        message = f"The arguments of {module}.{name}() cannot be pickled: {error!r}"
        raise ComputeError(message, is_retryable=False) from error
    if len(arguments) > MAX_ARGUMENT_BYTES:
        message = f"The arguments of {module}.{name}() have {len(arguments)} bytes; the limit is {MAX_ARGUMENT_BYTES}."
        raise ComputeError(message, is_retryable=False)
    return pickle.dumps(Task(_module(module), name, arguments), pickle.HIGHEST_PROTOCOL)


def _unpickled(payload: bytes, what: str) -> Any:
    try:
        return pickle.loads(payload)
    except Exception as error:
        raise ComputeError(f"The result of {what} cannot be unpickled: {error!r}", is_retryable=False) from error
