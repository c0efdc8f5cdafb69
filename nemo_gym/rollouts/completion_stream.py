"""Rollouts for a trainer: rows in, futures of finished rollouts out, in the order in which they finish."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

from nemo_gym.client.pool import close_shared_client
from nemo_gym.common import event_loop

Row = TypeVar("Row")
Result = TypeVar("Result")


class CompletionOrderStream(Generic[Row, Result]):
    """For code in an event loop. Iterate to get a future for each row; the first of them to be settled is that of the
    first rollout to finish, whichever row it was of. At most `parallel` run at once; rows are taken as places get
    free."""

    def __init__(self, rows: Iterable[Row], run: Callable[[Row], Awaitable[Result]], *, parallel: int) -> None:
        self._todo, self._run, self._parallel = iter(rows), run, parallel
        self._taken: deque[Row] = deque()
        self._running: set[asyncio.Future[Result]] = set()
        self._finished: deque[asyncio.Future[Result]] = deque()
        self._promised: deque[asyncio.Future[Result]] = deque()
        self._owed = 0
        """Rows taken from the dataset for which no future has been handed out yet."""
        self._error: Exception | None = None
        """What ended the dataset before its end. Raised once all that was taken is handed out."""

    def __iter__(self) -> "Iterator[asyncio.Future[Result]]":
        try:
            self._fill()
            while self._owed or self._take():
                self._owed -= 1
                promise: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
                self._promised.append(promise)
                self._settle()
                self._fill()
                yield promise
        except GeneratorExit:
            self.cancel()
            raise
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """Cancel what runs and what was promised, and take no more rows."""
        self._todo = iter(())
        self._taken.clear()
        for future in (*self._running, *self._promised):
            future.cancel()

    def _take(self) -> bool:
        """Take one more row out of the dataset, to be started when there is a place."""
        try:
            self._taken.append(next(self._todo))
        except StopIteration:
            return False
        except Exception as error:
            self._error, self._todo = error, iter(())
            return False
        self._owed += 1
        return True

    def _fill(self) -> None:
        """What has finished but is not asked for yet takes a place, so that a slow reader slows us down."""
        while len(self._running) + len(self._finished) < self._parallel and (self._taken or self._take()):
            task = asyncio.ensure_future(self._run(self._taken.popleft()))
            self._running.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Future[Result]") -> None:
        self._running.discard(task)
        self._finished.append(task)
        self._settle()
        self._fill()

    def _settle(self) -> None:
        while self._finished and self._promised:
            task, promise = self._finished.popleft(), self._promised.popleft()
            if promise.cancelled():
                continue
            if task.cancelled():
                promise.cancel()
            elif (error := task.exception()) is not None:
                promise.set_exception(error)
            else:
                promise.set_result(task.result())


def iter_completed_sync(
    rows: Iterable[Row], run: Callable[[Row], Awaitable[Result]], *, parallel: int
) -> "Iterator[Future[Result]]":
    """For plain code: the same, in a thread of its own. Each future is settled already; closing the iterator cancels
    what still runs."""
    stream = CompletionOrderStream(rows, run, parallel=parallel)
    promises = iter(stream)
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def stay() -> None:
        leaving = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), leaving))
        await leaving.wait()
        stream.cancel()
        await close_shared_client()

    def hold() -> None:
        try:
            event_loop.run_embedded(stay())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def following() -> Future[Result] | None:
        promise = next(promises, None)
        return None if promise is None else await _settled(promise)

    thread = threading.Thread(target=hold, name="nemo-gym-rollouts", daemon=True)
    thread.start()
    loop, leaving = ready.result()
    try:
        while (settled := asyncio.run_coroutine_threadsafe(following(), loop).result()) is not None:
            yield settled
    finally:
        loop.call_soon_threadsafe(leaving.set)
        thread.join()


async def _settled(promise: "asyncio.Future[Result]") -> "Future[Result]":
    future: Future[Result] = Future()
    try:
        future.set_result(await promise)
    except Exception as error:
        future.set_exception(error)
    return future
