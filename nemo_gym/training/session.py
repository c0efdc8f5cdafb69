"""A trainer's rollouts: rows in, results and complete groups out.

Servers and dispatch live in a process beside the trainer, so rollouts in flight go on while the trainer is busy or
frozen. One thread of the trainer sends rows and receives results. Closing their socket ends the other process."""

import asyncio
import contextlib
import itertools
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

import orjson

from nemo_gym.common import event_loop
from nemo_gym.common.logging import configure_logging
from nemo_gym.config.loading import load_config
from nemo_gym.errors import GymError, RolloutError, SetupError, StartupError
from nemo_gym.rollouts.attempts import observed_attempt, retrying_run
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.dataset import trainer_row
from nemo_gym.rollouts.dispatch import open_dispatch
from nemo_gym.rollouts.types import NO_DATASET, NoResult, Outcome, Row, rollout_error
from nemo_gym.rollouts.worker_protocol import FrameConnection, Kind, RowRequest, outcome_frame, read_outcome
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.training.groups import CompleteGroup, GroupOptions, GroupScheduler, Source, Start

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0


class RolloutHandle:
    """A submitted rollout. Await it in an event loop, or call `result`: its record, or RolloutError with `row` and
    `rollout_id`."""

    def __init__(self, session: "RolloutSession", rollout_id: int, row: Mapping[str, Any]) -> None:
        self._session, self.id, self.row = session, rollout_id, row
        self._future: Future[dict[str, Any]] = Future()

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the record."""
        return self._future.result(timeout_s)

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return asyncio.wrap_future(self._future).__await__()

    def abort(self) -> None:
        """End the rollout. Its result is a RolloutError with the code `aborted`, unless it has one already."""
        self._session._in_thread(self._session._abort, self.id)


class RolloutSession:
    """Rollouts with the servers of `config`, as a command line would give it. With `config_paths` they are started,
    else those of the run whose `head_server` it names are used. Use it in a `with` block."""

    def __init__(self, config: Mapping[str, Any], *, max_attempts: int = 3, rollout_timeout_s: float = 3600.0) -> None:
        self._order = {"config": config, "max_attempts": max_attempts, "rollout_timeout_s": rollout_timeout_s}
        self._numbers = itertools.count()
        self._handles: dict[int, RolloutHandle] = {}
        self._streams: list[GroupStream] = []
        self._ready: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self.version = 0
        """The policy version that `set_version` gave last."""

    def __enter__(self) -> Self:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", f"from {__name__} import main; main()", str(theirs.fileno())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(theirs.fileno(),))
        theirs.close()
        if self._process.stdin is not None:
            self._process.stdin.write(orjson.dumps(self._order))
            self._process.stdin.close()
        self._thread = threading.Thread(target=self._run, args=(ours,), name="nemo-gym-session", daemon=True)
        self._thread.start()
        try:
            self._ready.result(READY_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        with contextlib.suppress(RuntimeError):
            self._in_thread(self._close)
        self._thread.join(STOP_TIMEOUT_S)
        self._process.wait(STOP_TIMEOUT_S)

    def submit(self, row: Mapping[str, Any], *, group: str = "") -> RolloutHandle:
        """Start a rollout of a row, which names its agent in `agent_ref`. Those of one `group` go to one worker."""
        handle = RolloutHandle(self, next(self._numbers), row)
        self._in_thread(self._submit, handle, group)
        return handle

    def groups(self, sources: dict[str, Source], **options: Any) -> "GroupStream":
        """Complete groups, in order of completion. For the options see GroupOptions."""
        scheduler = GroupScheduler(sources, GroupOptions(**options), version=self.version)
        return GroupStream(self, scheduler)

    def set_version(self, version: int) -> None:
        """Say that the policy has changed. Groups that are too old now are dropped before this returns."""
        done: Future[None] = Future()

        def change() -> None:
            self.version = version
            for stream in self._streams:
                stream._scheduler.set_version(version)
                stream._poll()
            done.set_result(None)

        self._in_thread(change)
        done.result()

    # In the thread

    def _in_thread(self, function: Any, *args: Any) -> None:
        self._loop.call_soon_threadsafe(function, *args)

    def _run(self, ours: socket.socket) -> None:
        with contextlib.closing(self._loop):
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._serve(ours))

    async def _serve(self, ours: socket.socket) -> None:
        self._ended = asyncio.Event()
        connect = self._loop.create_connection(lambda: FrameConnection(self._on_frame, self._on_lost), sock=ours)
        _, self._connection = await connect
        await self._ended.wait()

    def _close(self) -> None:
        self._connection.close()

    def _on_lost(self, _connection: FrameConnection, _error: Exception | None) -> None:
        message = "The session has ended."
        if not self._ready.done():
            self._ready.set_exception(StartupError("The session's servers did not start; see the lines above."))
        for number in [*self._handles]:
            self._fail(number, RolloutError("environment", message, code="session_ended"))
        for stream in self._streams:
            stream._changed.set()
        self._ended.set()

    def _submit(self, handle: RolloutHandle, group: str) -> None:
        self._handles[handle.id] = handle
        try:
            row = trainer_row(handle.row)
        except RolloutError as error:
            self._fail(handle.id, error)
            return
        self._connection.send([Kind.ROW, handle.id, row.agent, group], row.body)

    def _abort(self, number: int) -> None:
        if number in self._handles:
            self._connection.send([Kind.CANCEL, number])
            self._fail(number, RolloutError("timeout", "The trainer has aborted the rollout.", code="aborted"))

    def _fail(self, number: int, error: RolloutError) -> None:
        handle = self._handles.pop(number)
        error.row, error.rollout_id = handle.row, number
        if not handle._future.done():
            handle._future.set_exception(error)

    def _on_frame(self, _connection: FrameConnection, head: list[Any], body: bytes) -> None:
        if head[0] == Kind.HELLO:
            self._ready.set_result(None)
            return
        number = head[1]
        if number not in self._handles:
            return  # it was aborted
        outcome = read_outcome(head, body, RowRequest(number, Row(NO_DATASET, "", b"{}"), 0.0, 1))
        if isinstance(outcome, NoResult):
            self._fail(number, rollout_error(outcome))
            return
        handle = self._handles.pop(number)
        if not handle._future.done():
            handle._future.set_result(orjson.loads(outcome.record))


class GroupStream:
    """Complete groups, for a plain loop or an event loop. Rollouts are started as places get free, also between two
    groups that you take."""

    def __init__(self, session: RolloutSession, scheduler: GroupScheduler) -> None:
        self._session, self._scheduler = session, scheduler
        self._running: dict[int, RolloutHandle] = {}
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        session._streams.append(self)
        session._in_thread(self._poll)

    def stats(self) -> dict[str, Any]:
        """What was begun, completed and dropped, and why."""
        return self._scheduler.stats()

    def __iter__(self) -> Iterator[CompleteGroup]:
        while (group := asyncio.run_coroutine_threadsafe(self._take(), self._session._loop).result()) is not None:
            yield group

    async def __aiter__(self) -> AsyncIterator[CompleteGroup]:
        loop = self._session._loop
        while (group := await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._take(), loop))) is not None:
            yield group

    async def _take(self) -> CompleteGroup | None:
        while True:
            group = self._scheduler.take()
            self._poll()
            if group is not None or self._scheduler.is_done:
                return group
            if self._session._ended.is_set():
                raise StartupError("The session has ended.")
            self._changed.clear()
            await self._changed.wait()

    def _poll(self) -> None:
        loop = self._session._loop
        actions = self._scheduler.poll(loop.time())
        for rollout in actions.abort:
            self._session._abort(self._running.pop(rollout).id)
        for start in actions.start:
            self._start(start)
        if self._timer is not None:
            self._timer.cancel()
        at = self._scheduler.next_time()
        self._timer = None if at is None else loop.call_at(at, self._poll)
        self._changed.set()

    def _start(self, start: Start) -> None:
        session = self._session
        handle = self._running[start.id] = RolloutHandle(session, next(session._numbers), start.row)
        handle._future.add_done_callback(partial(self._on_done, start.id))
        session._submit(handle, f"{id(self)}-{start.group}")

    def _on_done(self, rollout: int, future: "Future[dict[str, Any]]") -> None:
        if self._running.pop(rollout, None) is None or self._session._ended.is_set():
            return  # it was aborted
        if (error := future.exception()) is None:
            self._scheduler.finish(rollout, future.result())
        else:
            logger.debug("rollout %d has no result: %s", rollout, error)
            self._scheduler.lose(rollout)
        self._session._loop.call_soon(self._poll)


# The process beside the trainer


async def _serve_trainer(fd: int, order: Mapping[str, Any]) -> None:
    config = load_config([], initial=order["config"], use_dotenv=False, fill_ports=False)
    limits = {name: order[name] for name in ("max_attempts", "rollout_timeout_s")}
    job = RolloutCollectionConfig(input_jsonl_fpath="-", output_jsonl_fpath="-", **limits)
    async with connect_servers(config) as client, open_dispatch(client) as workers:
        make_attempt = workers.attempt if workers else partial(observed_attempt, client)
        run, running, ended = (
            retrying_run(make_attempt, job, _ignore),
            dict[int, asyncio.Task[None]](),
            asyncio.Event(),
        )

        async def play(connection: FrameConnection, number: int, row: Row) -> None:
            try:
                outcome = await run(row)
            except SetupError as error:
                outcome = NoResult.of(row, "model", str(error), seconds=0.0)
            finally:
                running.pop(number, None)
            connection.send(*outcome_frame(number, outcome))

        def on_frame(connection: FrameConnection, head: list[Any], body: bytes) -> None:
            if head[0] == Kind.ROW:
                _, number, agent, group = head
                row = Row(NO_DATASET, agent, body, group)
                running[number] = asyncio.create_task(play(connection, number, row))
            elif (task := running.get(head[1])) is not None:
                task.cancel()

        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: FrameConnection(on_frame, lambda *_: ended.set()), sock=socket.socket(fileno=fd)
        )
        connection.send([Kind.HELLO])
        await ended.wait()
        for task in [*running.values()]:
            task.cancel()


async def _ignore(_outcome: Outcome) -> None:
    """Failed attempts before the last one are not kept."""


def main() -> None:
    """Entry point of the process: the descriptor of the socket is its argument, the order its standard input."""
    configure_logging()
    try:
        event_loop.run(_serve_trainer(int(sys.argv[1]), orjson.loads(sys.stdin.buffer.read())))
    except GymError as error:
        sys.exit(str(error))
