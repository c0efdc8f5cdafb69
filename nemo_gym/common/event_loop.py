"""Run a program on uvloop, with as many open files as the system allows."""

import asyncio
import gc
import logging
import queue
import resource
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from nemo_gym.common.interrupts import interrupts

logger = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")

GC_THRESHOLDS = (200_000, 10, 10)
"""A rollout in flight is about two hundred objects that live for seconds. With Python's default thresholds, garbage
collection among thousands of rollouts takes a tenth of all CPU time and finds nothing."""


END_GRACE_S = 5.0
"""How long tasks that are left when a program ends may take to end, too."""
MAX_THREADS = 256
"""Upper bound for threads of handlers that block. They are started as needed."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop, for a process that does nothing else."""
    gc.set_threshold(*GC_THRESHOLDS)
    return run_embedded(main)


def run_embedded(main: Coroutine[Any, Any, T]) -> T:
    """The same for a process that also does other work, such as training: the garbage collector stays as it is."""
    import uvloop

    raise_open_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
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
        except asyncio.CancelledError:
            if interrupts.count:
                raise KeyboardInterrupt from None
            raise
        finally:
            loop.run_until_complete(_end_tasks())


async def _result_of(task: "asyncio.Task[T]") -> T:
    return await task


async def _cancelled_by_interrupts(main: Coroutine[Any, Any, T]) -> T:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or not interrupts.is_handled:  # asyncio handles Ctrl+C itself
        return await main
    with interrupts.stopping_with(partial(loop.call_soon_threadsafe, task.cancel)):
        return await main


async def _end_tasks() -> None:
    """Cancel what is left of a program. A task that ignores it is left behind: asyncio would wait for it for ever."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if not left:
        return
    _, ignoring = await asyncio.wait(left, timeout=END_GRACE_S)
    for task in ignoring:
        logger.warning("left behind, since it ignores its cancellation: %r", task.get_coro())
        _leave_behind(task)


def _leave_behind(task: "asyncio.Task[Any]") -> None:
    """Let the loop end without the task. It is never freed: that would run its code once more, which may not end."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
    asyncio.tasks._unregister_task(task)


class DaemonThreadPool(ThreadPoolExecutor):
    """Threads for handlers written as plain `def`. Python's own pool waits for its threads when the loop or the
    process ends; a handler that hangs after its rollout has timed out must delay neither."""

    def __init__(self) -> None:
        super().__init__(MAX_THREADS)
        self._todo: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle, self._started = threading.Semaphore(0), 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        if not self._idle.acquire(blocking=False) and self._started < MAX_THREADS:
            self._started += 1
            threading.Thread(target=self._work, daemon=True).start()
        self._todo.put((future, partial(fn, *args, **kwargs)))
        return future

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
            del given, future, work
            self._idle.release()


def raise_open_file_limit() -> None:
    """Raise the soft limit to the hard one: every rollout in flight has a connection."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
    """`asyncio.to_thread` for a function that may raise `StopIteration`. A future cannot carry it, so the caller would
    wait for ever; here it becomes a `RuntimeError`, as in a coroutine."""
    return asyncio.to_thread(_without_stop_iteration, function, *args, **kwargs)


def _without_stop_iteration(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raised = RuntimeError(f"a function raised {error!r}")
        raise raised.with_traceback(error.__traceback__) from error  # the log names the line of the function
