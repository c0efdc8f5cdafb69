"""Run a program on uvloop, with as many open files as the system allows, and functions that block in threads.

A thread cannot be ended from outside. If nobody waits for a function any more, an exception is raised in it, as in a
task that is cancelled, and another thread takes its place: `PyThreadState_SetAsyncExc` is the only way to end a loop
that would otherwise compete with the event loop for Python's global lock as long as the process lives."""

import asyncio
import gc
import logging
import queue
import resource
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

from nemo_gym.common.interrupts import interrupts

logger = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")

GC_THRESHOLDS = (200_000, 10, 10)
"""A rollout in flight is about two hundred objects that live for seconds. With Python's default thresholds, garbage
collection among thousands of rollouts takes a tenth of all CPU time and finds nothing."""


END_GRACE_S = 5.0
"""Time limit for tasks that still run when a program ends."""
MAX_THREADS = 256
"""Upper bound for threads of handlers that block. They are started as needed."""
MAX_ABANDONED_THREADS = 4096
"""Upper bound for threads whose handler goes on although nobody waits for it."""

stack_name: ContextVar[str] = ContextVar("nemo_gym_stack_name", default="")
"""The name of the frame below functions in threads, so that a stack says for whom they run. Empty: none."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop, for a process that does nothing else."""
    gc.set_threshold(*GC_THRESHOLDS)
    return run_embedded(main)


def run_embedded(main: Coroutine[Any, Any, T]) -> T:
    """As `run`, for a process that also does other work, such as training: leaves the garbage collector alone."""
    import uvloop

    raise_open_file_limit()
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    loop = runner.get_loop()
    loop.set_default_executor(DaemonThreadPool())
    task = loop.create_task(_cancelled_by_interrupts(main))
    try:
        while True:
            try:
                return runner.run(_result_of(task))
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done() or (isinstance(error, KeyboardInterrupt) and interrupts.may_be_keyboard):
                    raise
                # of a task or callback that the code of a server started: asyncio stops the loop for it
                logger.error("the code of a server raised %r in a task, which is ignored", error, exc_info=error)
            except RuntimeError as error:
                if task.done() or loop.is_closed():
                    raise
                logger.error("the code of a server stopped the event loop, which goes on: %s", error)
    except asyncio.CancelledError:
        if interrupts.count:
            raise KeyboardInterrupt from None
        raise
    finally:
        ignoring = loop.run_until_complete(_end_tasks())
        if ignoring:
            _leave_behind(ignoring)
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
        else:
            runner.close()  # which waits for all tasks


async def _result_of(task: "asyncio.Task[T]") -> T:
    return await task


async def _cancelled_by_interrupts(main: Coroutine[Any, Any, T]) -> T:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or not interrupts.is_handled:  # asyncio handles Ctrl+C itself
        return await main
    with interrupts.stopping_with(partial(loop.call_soon_threadsafe, task.cancel)):
        return await main


async def _end_tasks() -> "set[asyncio.Task[Any]]":
    """Cancel the tasks that still run when a program ends. Return those that ignore it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if not left:
        return set()
    _, ignoring = await asyncio.wait(left, timeout=END_GRACE_S)
    return ignoring


def _leave_behind(tasks: "set[asyncio.Task[Any]]") -> None:
    """Keep tasks, and their loop, until the process ends. To free one would run its code once more, which may not end:
    so a thread holds them, since what a daemon thread holds is not freed when Python ends."""
    for task in tasks:
        logger.warning("left behind, since it ignores its cancellation: %r", task.get_coro())

    def hold(_tasks: "set[asyncio.Task[Any]]") -> None:
        threading.Event().wait()

    threading.Thread(target=hold, args=(tasks,), name="nemo-gym-left-behind", daemon=True).start()


class _PoolFuture(Future[T]):
    """Calls `on_abandoned` if it is cancelled while its function runs."""

    def __init__(self, on_abandoned: Callable[[], None]) -> None:
        super().__init__()
        self._on_abandoned = on_abandoned
        self.is_abandoned = False

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        with self._condition:  # which also ends it
            is_first = self.running() and not self.is_abandoned
            self.is_abandoned |= is_first
        if is_first:
            self._on_abandoned()
        return is_cancelled


class DaemonThreadPool(ThreadPoolExecutor):
    """Threads for handlers written as plain `def`. Python's own pool waits for its threads when the loop or the
    process ends; a handler that hangs after its rollout has timed out must delay neither, nor take the place of
    others."""

    def __init__(self) -> None:
        super().__init__(MAX_THREADS)
        self._todo: queue.SimpleQueue[tuple[_PoolFuture[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle, self._counting = threading.Semaphore(0), threading.Lock()
        self._started = self._abandoned = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: _PoolFuture[T] = _PoolFuture(self._abandon_thread)
        if not self._idle.acquire(blocking=False):
            self._start_thread()
        self._todo.put((future, partial(fn, *args, **kwargs)))
        return future

    def _start_thread(self) -> None:
        with self._counting:
            if self._started - min(self._abandoned, MAX_ABANDONED_THREADS) >= MAX_THREADS:
                return
            self._started += 1
        threading.Thread(target=self._work, daemon=True).start()

    def _abandon_thread(self) -> None:
        """Have another thread take the place of one whose function nobody waits for. That one ends when its function
        does."""
        with self._counting:
            self._abandoned += 1
        if not self._todo.empty():
            self._start_thread()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads end, without waiting for them."""
        for _ in range(self._started):
            self._todo.put(None)

    def _work(self) -> None:
        while (given := self._todo.get()) is not None:
            future, work = given
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            is_abandoned = future.is_abandoned
            del given, future, work
            if is_abandoned:
                with self._counting:
                    self._started, self._abandoned = self._started - 1, self._abandoned - 1
                return
            self._idle.release()


def raise_open_file_limit() -> None:
    """Raise the soft limit to the hard one: every rollout in flight has a connection."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def run_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread` for a function of others. If this is cancelled, so is the function. It may raise
    `StopIteration`: a future cannot carry that, so the caller would wait for ever; here it becomes a `RuntimeError`,
    as in a coroutine."""
    call = _ThreadCall(partial(function, *args, **kwargs))
    try:
        return await asyncio.to_thread(call.run)
    except asyncio.CancelledError:
        call.interrupt()
        raise


def with_name(function: Callable[P, T], name: str) -> Callable[P, T]:
    """Copy a function under the name that its frame has on stacks. Takes half a microsecond."""
    named: Callable[P, T] = FunctionType(function.__code__.replace(co_name=name), function.__globals__)
    return named


def _call(function: Callable[[], T]) -> T:
    return function()


class _ThreadCall(Generic[T]):
    """A function in a thread, in which an exception can be raised while it runs, and not in what the thread does
    after it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_interrupted = False

    def run(self) -> T:
        with self._lock:
            self._thread = threading.get_ident()
        name = stack_name.get()
        try:
            return with_name(_call, name)(self._function) if name else self._function()
        except StopIteration as error:
            raised = RuntimeError(f"a function raised {error!r}")
            raise raised.with_traceback(error.__traceback__) from error  # the log names the line of the function
        finally:
            with self._lock:
                self._thread = None
            if self._is_interrupted:
                _raise_in_thread(threading.get_ident(), None)

    def interrupt(self) -> None:
        with self._lock:
            if self._thread is not None:
                self._is_interrupted = True
                _raise_in_thread(self._thread, asyncio.CancelledError)


def _raise_in_thread(thread: int, kind: type[BaseException] | None) -> None:
    """Raise an exception in the Python code that a thread runs, as soon as it does; None: take it back."""
    import ctypes

    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
