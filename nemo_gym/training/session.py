"""A trainer's rollouts: rows in, results and complete groups out.

Servers, workers and groups live in a process beside the trainer (`session_process`), so a busy or frozen trainer
stalls nothing. One thread of the trainer sends rows and receives results, and can start that process again."""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import orjson

from nemo_gym.client.call_log import Call, parse_call
from nemo_gym.errors import NOT_RESTORED, ConfigError, RolloutError, StartupError
from nemo_gym.llm_api.stored_tokens import read_record
from nemo_gym.rollouts.dataset import trainer_row
from nemo_gym.rollouts.types import Row
from nemo_gym.rollouts.worker_protocol import FrameConnection
from nemo_gym.training import session_process
from nemo_gym.training.group_stream import GroupStream
from nemo_gym.training.groups import GroupOptions, Source
from nemo_gym.training.session_process import ABORTED, Message

logger = logging.getLogger(__name__)
T = TypeVar("T")

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
MAX_STARTS = 4
"""How often the process is started without a rollout that it has completed in between."""
ENDED = "session_ended"
"""The code of a rollout whose session has ended."""


@dataclass(frozen=True)
class PartialRollout:
    """What was played of a rollout: the replies of its models and tools."""

    row: Mapping[str, Any]
    log: bytes
    """Lines of a call log."""
    group: str = ""
    """Whose worker may have copies of its environment's state."""

    @property
    def calls(self) -> list[Call]:
        """Model calls, tool calls and messages, in their order."""
        return [call for line in self.log.splitlines(keepends=True) if (call := parse_call(line)) is not None]

    @property
    def steps(self) -> int:
        """How many completed calls of models are in it."""
        return sum(map(_is_step, self.calls))

    def at(self, step: int) -> "PartialRollout":
        """What was played before model call number `step`, counted from 0."""
        if not 0 <= step <= self.steps:
            raise ConfigError(f"step is {step}; the rollout has {self.steps} of them.")
        lines, calls, seen = self.log.splitlines(keepends=True), self.calls, 0
        for index, call in enumerate(calls):
            if _is_step(call):
                if seen == step:
                    return replace(self, log=b"".join(lines[:index]))
                seen += 1
        return self


def _is_step(call: Call) -> bool:
    return call.kind == "model" and call.status < 400


class RolloutHandle:
    """A submitted rollout. Await it in an event loop, or call `result`: its record, or RolloutError with `row`,
    `rollout_id` and `partial`."""

    def __init__(self, session: "RolloutSession", rollout_id: int, row: Mapping[str, Any], **order: Any) -> None:
        self._session, self.id, self.row = session, rollout_id, row
        self._future: Future[dict[str, Any]] = Future()
        self._order = order
        self.group = ""
        """Rollouts of one group go to one worker."""
        self.played: PartialRollout | None = None
        """With `keep_calls`: what was played, once the rollout is scored."""

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the record."""
        return self._future.result(timeout_s)

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return asyncio.wrap_future(self._future).__await__()

    def abort(self, *, keep_partial: bool = False) -> None:
        """End the rollout. Its result is a RolloutError with the code `aborted`, unless it has one already. With
        `keep_partial` the error has `partial`, from which `submit(row, resume=...)` goes on."""
        self._session._in_thread(self._session._abort, self, keep_partial)


class RolloutSession:
    """Rollouts with the servers of `config`, as a command line would give it. With `config_paths` they are started,
    else those of the run whose `head_server` it names are used. Use it in a `with` block.

    With a `journal`, a file, every completed model call is stored: whatever dies and is started again, the trainer
    included, no such call is made twice. Pass the policy `version` of your checkpoint, too. Without a journal,
    `keep_partial=False` saves the time to log calls; then errors do not say what was played, and nothing is left of
    an aborted rollout or one whose worker dies.

    With `log_to`, metrics of each policy version go to `tensorboard:DIR`, `wandb:PROJECT` or `mlflow:URI`."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        max_attempts: int = 3,
        rollout_timeout_s: float = 3600.0,
        journal: str | None = None,
        keep_partial: bool = True,
        version: int = 0,
        log_to: str | None = None,
    ) -> None:
        limits = {"max_attempts": max_attempts, "rollout_timeout_s": rollout_timeout_s}
        self._order = {"config": config, "journal": journal, "keep_partial": keep_partial, "log_to": log_to, **limits}
        self._numbers, self._stream_numbers = itertools.count(), itertools.count()
        self._submitted: Counter[bytes] = Counter()
        self._handles: dict[int, RolloutHandle] = {}
        self._streams: dict[int, GroupStream] = {}
        self._loop: asyncio.AbstractEventLoop
        self._connection: FrameConnection | None = None
        """None while the process starts."""
        self._thread: threading.Thread | None = None
        self._first_ready: Future[None] = Future()
        self._is_closing = self._has_ended = self._is_paused = False
        self._pauses: list[Future[None]] = []
        self._starts = 0
        self.version = _checked_version(version)
        """The policy version."""

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise StartupError("The session was opened before. Make another one.")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="nemo-gym-session", daemon=True)
        self._thread.start()
        try:
            self._first_ready.result(READY_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        with contextlib.suppress(RuntimeError):
            self._in_thread(self._close)
        if self._thread is not None:
            self._thread.join(2 * STOP_TIMEOUT_S)

    def submit(
        self,
        row: Mapping[str, Any],
        *,
        group: str = "",
        resume: PartialRollout | None = None,
        keep_calls: bool = False,
    ) -> RolloutHandle:
        """Start a rollout of a row, which names its agent in `agent_ref`. Those of one `group` go to one worker. With
        `resume` it goes on from what was played: models are not asked again for it, and environments are brought back
        there; one that cannot be is a RolloutError with the code `not_restored`. `keep_calls` is for `fork`."""
        if resume is not None and not isinstance(resume, PartialRollout):
            raise ConfigError(f"resume is a {type(resume).__name__}; expected the `partial` of an aborted rollout.")
        order = {"prefix": resume, "keep_calls": keep_calls}
        handle = RolloutHandle(self, next(self._numbers), row, **order)
        handle.group = group or (f"rollout-{handle.id}" if keep_calls else "")
        self._in_thread(self._submit, handle)
        return handle

    def fork(self, rollout: "RolloutHandle | PartialRollout", *, step: int, n: int = 1) -> list[RolloutHandle]:
        """Start `n` rollouts that go on where the model was called for the time number `step`, counted from 0. A
        rollout that is scored must have been submitted with `keep_calls`."""
        played = rollout.played if isinstance(rollout, RolloutHandle) else rollout
        if played is None:
            raise ConfigError("The rollout is not scored, or was submitted without keep_calls=True.")
        prefix = played.at(step)
        return [self.submit(prefix.row, resume=prefix, group=prefix.group) for _ in range(n)]

    def groups(
        self,
        sources: dict[str, Source],
        *,
        keep: Callable[[list[dict[str, Any]]], bool] | None = None,
        state: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "GroupStream":
        """Complete groups, in order of completion. For the options see GroupOptions. A group for whose records `keep`
        is False, such as one without signal, is dropped, and another one takes its place. With the `state` of an
        earlier stream it goes on from there; the sources must have the same rows in the same order."""
        stream = GroupStream(self, next(self._stream_numbers), sources, GroupOptions(**options), keep, state)
        self._in_thread(stream._open)
        return stream

    def set_version(self, version: int) -> None:
        """Say that the policy has changed. Groups that are too old now are dropped."""
        self.version = _checked_version(version)
        self._in_thread(self._send_version)

    def pause(self) -> None:
        """Hold new model calls, for instance while weights change. Returns when no more are made; those that were made
        before go on. The time limits of rollouts go on, too."""
        self._set_pause(True)

    def resume(self, *, version: int | None = None) -> None:
        """Go on after `pause`, with a new policy version if you pass one."""
        if version is not None:
            self.set_version(version)
        self._set_pause(False)

    def _set_pause(self, is_paused: bool) -> None:
        done: Future[None] = Future()

        def change() -> None:
            self._is_paused = is_paused
            self._pauses.append(done)
            if self._has_ended:
                done.set_exception(StartupError("The session has ended."))
            self._send([Message.PAUSE, is_paused])

        self._in_thread(change)
        done.result()

    # In the thread

    def _in_thread(self, function: Any, *args: Any) -> None:
        if self._thread is None:
            raise StartupError("The session is not open. Use it in a `with` block.")
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError as error:
            raise StartupError("The session has ended.") from error

    def _call(self, function: Callable[[], T]) -> T:
        """The result of a function that is called in the thread, or here if that has ended."""
        if self._thread is None or not self._thread.is_alive():
            return function()
        done: Future[T] = Future()
        self._in_thread(lambda: done.set_result(function()))
        return done.result()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        """Keep the process running until the session is closed, or the process cannot be started."""
        self._closing = asyncio.Event()
        while not self._is_closing and self._starts < MAX_STARTS:
            self._starts += 1
            code = await self._serve_once()
            if not self._first_ready.done():
                break
            if not self._is_closing:
                logger.warning("the process of the session ended with code %s and is started again", code)
        self._end()
        await self._takers_end()

    async def _serve_once(self) -> int:
        """Start the process, and wait for its end. Returns its exit code."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.to_thread(_start_process, theirs.fileno(), orjson.dumps(self._order))
        lost = asyncio.Event()
        _, connection = await self._loop.create_connection(
            lambda: FrameConnection(self._on_frame, lambda *_: lost.set()), sock=ours
        )
        closing = asyncio.create_task(self._closing.wait())
        await asyncio.wait({closing, asyncio.create_task(lost.wait())}, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        self._connection = None
        connection.close()
        return await asyncio.to_thread(_exit_code, process)

    def _close(self) -> None:
        self._is_closing = True
        self._closing.set()

    def _end(self) -> None:
        """Let nobody wait any more."""
        self._has_ended = True
        if not self._first_ready.done():
            self._first_ready.set_exception(StartupError("The session's servers did not start; see the lines above."))
        for handle in [*self._handles.values()]:
            self._fail(handle, RolloutError("environment", "The session has ended.", code=ENDED))
        for stream in self._streams.values():
            stream._reply_stats()
            stream._changed.set()
        for waiting in self._pauses:
            if not waiting.done():
                waiting.set_exception(StartupError("The session has ended."))

    async def _takers_end(self) -> None:
        """Let those that wait for a group hear that there will be none, before the event loop ends."""
        if takers := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(takers, timeout=STOP_TIMEOUT_S)

    def _send(self, head: list[Any], body: bytes = b"") -> None:
        """Send a frame. One that is not sent because the process starts is made up for when it is ready."""
        if self._connection is not None:
            self._connection.send(head, body)

    def _on_ready(self, connection: FrameConnection) -> None:
        self._connection = connection
        self._send_version()
        if self._is_paused:
            self._send([Message.PAUSE, True])
        for handle in [*self._handles.values()]:
            self._send_handle(handle)
        for stream in [*self._streams.values()]:
            stream._reply_stats()  # those asked for were lost with the process
            if stream._is_closed:
                del self._streams[stream._number]
            else:
                stream._send_open()
        if not self._first_ready.done():
            self._first_ready.set_result(None)

    def _send_version(self) -> None:
        for stream in self._streams.values():
            stream._send_weights()
        self._send([Message.VERSION, self.version])

    def _submit(self, handle: RolloutHandle) -> None:
        self._handles[handle.id] = handle
        if self._has_ended:
            self._fail(handle, RolloutError("environment", "The session has ended.", code=ENDED))
            return
        order, prefix = handle._order, b""
        try:
            row = trainer_row(handle.row)
            if order["prefix"] is not None:
                prefix = _checked_prefix(order["prefix"], row)
        except RolloutError as error:
            self._fail(handle, error)
            return
        digest = hashlib.sha256(b"%d %b" % (self.version, row.body)).digest()
        place = [handle.group, self._submitted[digest], digest.hex()[:16]]
        self._submitted[digest] += 1
        head = [Message.SUBMIT, handle.id, row.agent, *place, len(row.body), order["keep_calls"]]
        handle._order = {"head": head, "body": row.body + prefix}
        self._send_handle(handle)

    def _send_handle(self, handle: RolloutHandle) -> None:
        self._send(handle._order["head"], handle._order["body"])

    def _abort(self, handle: RolloutHandle, keep_partial: bool) -> None:
        if handle.id not in self._handles:
            return
        self._send([Message.ABORT, handle.id])
        if not keep_partial or self._connection is None:
            self._fail(handle, RolloutError("timeout", "The trainer has aborted the rollout.", code=ABORTED))

    def _fail(self, handle: RolloutHandle, error: RolloutError, log: bytes = b"") -> None:
        self._handles.pop(handle.id, None)
        error.row, error.rollout_id = handle.row, handle.id
        error.partial = PartialRollout(handle.row, log, handle.group)
        if not handle._future.done():
            handle._future.set_exception(error)

    def _on_frame(self, connection: FrameConnection, head: list[Any], body: bytes) -> None:
        kind, *rest = head
        if kind == Message.READY:
            self._on_ready(connection)
        elif kind == Message.PAUSE:
            waiting, self._pauses = self._pauses, []
            for each in waiting:
                each.set_result(None)
        elif kind in (Message.SCORED, Message.FAILED):
            self._on_outcome(kind, *rest, body=body)
        elif (stream := self._streams.get(rest[0])) is not None:
            self._starts = 0 if kind == Message.GROUP else self._starts
            stream._on_frame(kind, rest[1:], body)

    def _on_outcome(self, kind: int, number: int, detail: Any, *, body: bytes) -> None:
        handle = self._handles.pop(number, None)
        if handle is None:
            return  # it was aborted
        self._starts = 0
        if kind == Message.SCORED:
            calls = body[detail:]
            handle.played = PartialRollout(handle.row, calls, handle.group) if calls else None
            if not handle._future.done():
                handle._future.set_result(read_record(body[:detail]))
            return
        response = detail.pop("response", None)
        error = RolloutError(detail.pop("cause"), detail.pop("message"), **detail)
        error.response = response
        self._fail(handle, error, body)


def _checked_version(version: int) -> int:
    if not isinstance(version, int):
        raise ConfigError(f"The policy version is {version!r}; expected an integer.")
    return version


def _checked_prefix(prefix: PartialRollout, row: Row) -> bytes:
    """The calls of a prefix. Raises RolloutError if it is of another row: its environment has another state."""
    if trainer_row(prefix.row).body != row.body:
        message = "The prefix was played for another row. Pass the `row` of the partial rollout."
        raise RolloutError("input", message, code=NOT_RESTORED, retryable=False)
    return prefix.log


def _start_process(fd: int, order: bytes) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", f"from {session_process.__name__} import main; main()", str(fd)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(fd,))
    with process.stdin or contextlib.nullcontext() as order_file, contextlib.suppress(BrokenPipeError):
        if order_file is not None:
            order_file.write(order)
    return process


def _exit_code(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        logger.warning("the process of the session did not end within %g s and is killed", STOP_TIMEOUT_S)
        process.kill()
        return process.wait()
