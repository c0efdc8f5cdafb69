"""Rollouts for a trainer: rows in, futures of finished rollouts out, in the order in which they finish."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from nemo_gym.client.pool import close_shared_client
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common import event_loop
from nemo_gym.common.exceptions import exception_repr, is_meant_for_task
from nemo_gym.errors import ConfigError, HeadServerError, RolloutError
from nemo_gym.llm_api.stored_tokens import read_record
from nemo_gym.rollouts.attempts import as_json, call_agent, no_such_agent, scored_fields
from nemo_gym.rollouts.dispatch import WorkerPool, open_dispatch
from nemo_gym.rollouts.process_losses import LOST_CODES, LostRows, RowLosses
from nemo_gym.rollouts.types import Row

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


class AwaitedFuture(asyncio.Future[Result]):
    """A future that says what to do with it if its result is asked for too early, as in a notebook."""

    def result(self) -> Result:
        if not self.done():
            raise asyncio.InvalidStateError(
                "The rollout is not finished. In an event loop, as in a notebook, write `await future` in place of "
                "`future.result()`."
            )
        return super().result()


class CompletionOrderStream(Generic[Item, Result]):
    """For code in an event loop. Iterate to get one future per row; the first future gets the result of the rollout
    that finishes first, whichever row it is of. At most `parallel` run at once, and rows are read as needed."""

    def __init__(self, rows: Iterable[Item], run: Callable[[Item], Awaitable[Result]], *, parallel: int) -> None:
        self._rows, self._run, self._parallel = iter(rows), run, parallel
        self._queued: deque[Item] = deque()
        self._running: set[asyncio.Future[Result]] = set()
        self._unsettled: deque[asyncio.Future[Result]] = deque()
        """One future for each row that was read, the first to be settled first."""
        self._unclaimed: deque[asyncio.Future[Result]] = deque()
        """Futures that the iterator has not yielded yet."""
        self._error: Exception | None = None
        """The error of the iterator of rows. It is raised again once there is a future for every row before it."""

    def __iter__(self) -> "Iterator[asyncio.Future[Result]]":
        try:
            self._start_rows()
            while self._unclaimed or self._read_row():
                future = self._unclaimed.popleft()
                self._start_rows()
                yield future
        except GeneratorExit:
            self.cancel()
            raise
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """Cancel the running rollouts and all futures, and read no more rows."""
        self._rows = iter(())
        self._queued.clear()
        for future in (*self._running, *self._unsettled):
            future.cancel()

    def _read_row(self) -> bool:
        try:
            self._queued.append(next(self._rows))
        except StopIteration:
            return False
        except Exception as error:
            self._error, self._rows = error, iter(())
            return False
        future: asyncio.Future[Result] = AwaitedFuture(loop=asyncio.get_running_loop())
        self._unsettled.append(future)
        self._unclaimed.append(future)
        return True

    def _start_rows(self) -> None:
        """A finished rollout that nobody has asked for takes a place too, so that a slow reader slows the run down."""
        while len(self._running) + self._settled_unclaimed() < self._parallel and (self._queued or self._read_row()):
            task = asyncio.ensure_future(self._run_row(self._queued.popleft()))
            self._running.add(task)
            task.add_done_callback(self._on_done)

    async def _run_row(self, row: Item) -> Result:
        try:
            return await self._run(row)
        except BaseException as error:
            if isinstance(error, Exception) or is_meant_for_task(error):
                raise
            raise RolloutError("internal", exception_repr(error)) from error

    def _settled_unclaimed(self) -> int:
        return max(0, len(self._unclaimed) - len(self._unsettled))

    def _on_done(self, task: "asyncio.Future[Result]") -> None:
        self._running.discard(task)
        future = self._unsettled.popleft()
        if not future.cancelled():
            _copy_outcome(task, future)
        self._start_rows()


def _copy_outcome(task: "asyncio.Future[Result]", future: "asyncio.Future[Result] | Future[Result]") -> None:
    if task.cancelled():
        future.cancel()
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


def iter_completed_sync(
    rows: Iterable[Item], run: Callable[[Item], Awaitable[Result]], *, parallel: int
) -> "Iterator[Future[Result]]":
    """For plain code: the same, in a thread with an event loop. Each future is done; closing the iterator cancels the
    rollouts that still run."""
    stream = CompletionOrderStream(rows, run, parallel=parallel)
    futures = iter(stream)
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve_until_closed() -> None:
        closed = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), closed))
        await closed.wait()
        stream.cancel()
        await close_shared_client()

    def run_loop() -> None:
        try:
            event_loop.run_embedded(serve_until_closed())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def next_done() -> Future[Result] | None:
        future = next(futures, None)
        if future is None:
            return None
        await asyncio.wait({future})
        done: Future[Result] = Future()
        _copy_outcome(future, done)
        return done

    thread = threading.Thread(target=run_loop, name="nemo-gym-rollouts", daemon=True)
    thread.start()
    loop, closed = ready.result()
    try:
        while (done := asyncio.run_coroutine_threadsafe(next_done(), loop).result()) is not None:
            yield done
    finally:
        loop.call_soon_threadsafe(closed.set)
        thread.join()


IDLE_S = 2.0
"""Seconds for which a trainer's connections to the workers stay open after its last rollout."""


class TrainerDispatch:
    """Makes the rollouts of a trainer's rows: by the workers of its run, if it has any, else by the agent's address.
    Connections to the workers are opened for the first row, and closed when no more rows come."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._workers: asyncio.Future[WorkerPool | None] | None = None
        self._holding: asyncio.Task[None] | None = None
        self._in_flight = self._made = 0
        self._lost_rows = LostRows()

    async def run(self, row: Row) -> dict[str, Any]:
        """The result of an agent for a row. Raises RolloutError if there is none."""
        self._in_flight += 1
        try:
            workers = await self._connect()
            if workers is not None:
                return await self._run_in_worker(workers, row)
            try:
                return scored_fields(await call_agent(self._client, row, row.body), row)
            except ConfigError as error:
                raise no_such_agent(row.agent, error) from error
            except RolloutError as error:
                error.response = as_json(error.response)
                raise
        finally:
            self._in_flight -= 1
            self._made += 1

    async def _run_in_worker(self, workers: WorkerPool, row: Row) -> dict[str, Any]:
        losses = RowLosses(row.row_hash)
        while True:
            attempt = partial(workers.attempt, replace(row, attempt=losses.lost + 1))
            outcome = await self._lost_rows.dispatch(attempt, losses)
            if outcome.error is None:
                result: dict[str, Any] = read_record(outcome.record)
                return result
            if outcome.error.code not in LOST_CODES or not self._lost_rows.may_retry(losses, outcome.error):
                raise outcome.error

    async def _connect(self) -> WorkerPool | None:
        if self._workers is None:
            self._workers = asyncio.get_running_loop().create_future()
            self._holding = asyncio.create_task(self._hold(self._workers))
        return await asyncio.shield(self._workers)

    async def _hold(self, opened: "asyncio.Future[WorkerPool | None]") -> None:
        """Stay connected while rows come."""
        try:
            async with open_dispatch(self._client) as workers:
                opened.set_result(workers)
                made = -1
                while self._in_flight or made != self._made:
                    made = self._made
                    await asyncio.sleep(IDLE_S)
        except HeadServerError as error:
            logger.debug("rows go to the agents directly: %s", error)
            opened.set_result(None)
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            self._workers = None
            opened.cancel()
