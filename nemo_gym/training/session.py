"""A trainer's rollouts: rows in, results and complete groups out.

Servers, workers and groups live in a process beside the trainer (`session_process`), so a busy or frozen trainer
stalls nothing. One thread of the trainer sends rows and receives results, and can start that process again."""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import operator
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import orjson
from omegaconf import DictConfig, ListConfig, OmegaConf

from nemo_gym.client.call_log import Call, parse_call
from nemo_gym.common.exceptions import exception_repr
from nemo_gym.errors import NOT_RESTORED, ConfigError, RolloutError, StartupError
from nemo_gym.llm_api.stored_tokens import read_record
from nemo_gym.rollouts.dataset import trainer_row
from nemo_gym.rollouts.types import Row
from nemo_gym.rollouts.worker_protocol import FrameConnection
from nemo_gym.training import session_process
from nemo_gym.training.group_stream import GroupStream, Keep
from nemo_gym.training.groups import GroupOptions, Source
from nemo_gym.training.session_process import ABORTED, Message

logger = logging.getLogger(__name__)
T = TypeVar("T")

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
LAST_STATS_TIMEOUT_S = 2.0
"""How long the end of a session waits for the statistics of its groups."""
CLOCK_TOLERANCE_S = 0.001
MAX_STARTS = 4
"""How often the process is started without a rollout that it has completed in between."""
ENDED = "session_ended"
"""The code of a rollout whose session has ended."""


Place = tuple[int, str]
"""Names a rollout in the journal: its number among submissions of an equal row, and the hash of row and version."""


@dataclass(frozen=True)
class PartialRollout:
    """What was played of a rollout: the replies of its models and tools."""

    row: Mapping[str, Any]
    log: bytes
    """Lines of a call log."""
    group: str = ""
    """Whose worker may have copies of its environment's state."""
    place: "Place | None" = None
    """Where the journal has it. A rollout that goes on keeps its place."""

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

    def with_request(self, changes: Mapping[str, Any]) -> "PartialRollout":
        """Go on with another prompt: `changes` replace fields of the row's `responses_create_params`, such as
        `instructions`. The replies of models so far stay. Raises ConfigError if a model was called several times at
        once, since then it is not known which reply belongs where."""
        if not changes:
            return self
        ends: dict[str, float] = {}
        calls = [msgspec.structs.replace(call, by_order=call.kind != "tool") for call in self.calls]
        for call in calls:
            if call.by_order:
                route = call.name.partition(" ")[0]
                if call.started_at + CLOCK_TOLERANCE_S < ends.get(route, 0.0):
                    raise ConfigError(f"The rollout called {route} several times at once. Keep its prompt.")
                ends[route] = call.started_at + call.seconds
        request = self.row["responses_create_params"]
        changed = {**request, **changes}
        if _tool_calls_in(changed) != _tool_calls_in(request):
            raise ConfigError("The new `input` has other tool calls than that of the row. Expected the same ones.")
        row = {**self.row, "responses_create_params": changed}
        return replace(self, row=row, log=b"".join(call.line() for call in calls))


def _tool_calls_in(request: Mapping[str, Any]) -> list[Any]:
    """The earlier tool calls that a row gives its environment, with their outputs."""
    items = request.get("input")
    kinds = ("function_call", "function_call_output")
    return [item for item in items if item.get("type") in kinds] if isinstance(items, list) else []


def _is_step(call: Call) -> bool:
    return call.kind == "model" and call.status < 400


class RolloutHandle:
    """A submitted rollout. Await it in an event loop, or call `result`: its record, or RolloutError with `row`,
    `rollout_id` and `partial`. A wait that is cancelled or times out does not end the rollout: `abort` does."""

    def __init__(self, session: "RolloutSession", rollout_id: int, row: Mapping[str, Any], group: str) -> None:
        self._session, self.id, self.row, self.group = session, rollout_id, row, group
        self._future: Future[dict[str, Any]] = Future()
        self._future.set_running_or_notify_cancel()  # so that whoever waits cannot cancel it
        self._frame: tuple[list[Any], bytes] | None = None
        """What orders the rollout."""
        self._place: Place | None = None
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
    else those of the run whose `head_server` it names are used. Use it in a `with` or `async with` block, or call
    `open` and `close`.

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
        journal: str | Path | None = None,
        keep_partial: bool = True,
        version: int = 0,
        log_to: str | None = None,
    ) -> None:
        limits = {"max_attempts": max_attempts, "rollout_timeout_s": rollout_timeout_s}
        order = {"config": config, "journal": journal, "keep_partial": keep_partial, "log_to": log_to, **limits}
        self._order = _as_json(order)
        self._numbers, self._stream_numbers = itertools.count(), itertools.count()
        self._submitted: Counter[str] = Counter()
        self._unfinished: set[Place] = set()
        """Places of rollouts without a result that have not gone on."""
        self._handles: dict[int, RolloutHandle] = {}
        self._streams: dict[int, GroupStream] = {}
        self._loop: asyncio.AbstractEventLoop
        self._connection: FrameConnection | None = None
        """None while the process starts."""
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self._lock = threading.RLock()
        """Held while something is handed to the thread whose order matters. Taken again by a garbage collection."""
        self._first_ready: Future[None] = Future()
        self._is_closing = self._has_ended = self._is_thread_over = self._is_paused = False
        self._why_ended = "The session was closed."
        self._start_error = ""
        """Why the process could not be started the last time."""
        self._pauses: list[Future[None]] = []
        self._starts = 0
        self.version = self._sent_version = _checked_version(version)
        """The policy version."""

    def open(self) -> Self:
        """Start or find the servers."""
        if self._thread is not None:
            raise StartupError("The session was opened before. Make another one.")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="nemo-gym-session", daemon=True)
        self._thread.start()
        try:
            self._first_ready.result(READY_TIMEOUT_S)
        except TimeoutError as error:
            self.close()
            raise StartupError(f"The session's servers were not ready within {READY_TIMEOUT_S:g} s.") from error
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all rollouts, and the servers that the session has started."""
        if self._thread is not None and self._owner == os.getpid():
            with contextlib.suppress(StartupError):  # it has ended
                self._in_thread(self._close)
            self._thread.join(2 * STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.open)

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.to_thread(self.close)

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
        number = next(self._numbers)
        handle = RolloutHandle(self, number, row, group or (f"rollout-{number}" if keep_calls else ""))
        try:
            sent = trainer_row(row)
            prefix = b"" if resume is None else _checked_prefix(resume, sent)
        except RolloutError as error:
            self._in_thread(self._fail, handle, error)
        else:
            place = None if resume is None else resume.place
            self._in_thread(self._submit, handle, sent, prefix, keep_calls, self.version, place)
        return handle

    def fork(
        self,
        rollout: "RolloutHandle | PartialRollout",
        *,
        step: int,
        n: int = 1,
        responses_create_params: Mapping[str, Any] | None = None,
    ) -> list[RolloutHandle]:
        """Start `n` rollouts that go on where the model was called for the time number `step`, counted from 0. A
        rollout that is scored must have been submitted with `keep_calls`. `responses_create_params` replace those of
        the row, such as `{"instructions": "Think first."}`; the replies before the step stay."""
        played = rollout.played if isinstance(rollout, RolloutHandle) else rollout
        if played is None:
            raise ConfigError("The rollout is not scored, or was submitted without keep_calls=True.")
        prefix = played.at(step).with_request(responses_create_params or {})
        return [self.submit(prefix.row, resume=prefix, group=prefix.group) for _ in range(n)]

    def groups(
        self,
        sources: dict[str, Source],
        *,
        keep: Keep | None = None,
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
        version = _checked_version(version)
        for stream in [*self._streams.values()]:
            stream._update_weights()
        with self._lock:
            if version < self.version:
                raise ConfigError(f"The policy version is {version}; it was {self.version}, and may only grow.")
            self.version = version
            self._in_thread(self._send_version, version)

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
                self._end_pauses()
            self._send([Message.PAUSE, is_paused])

        self._in_thread(change)
        done.result()

    def _in_thread(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the thread. Raises StartupError if it would not be called any more."""
        if self._thread is None:
            raise StartupError("The session is not open. Use it in a `with` block.")
        if self._owner != os.getpid():
            raise StartupError(f"The session is that of process {self._owner}, from which this one was forked.")
        with self._lock:
            if self._is_thread_over:
                raise StartupError(self._why_ended)
            self._loop.call_soon_threadsafe(function, *args)

    def _call(self, function: Callable[[], T]) -> T:
        """The result of a function that is called in the thread, or here if that has ended."""
        done: Future[T] = Future()
        try:
            self._in_thread(lambda: done.set_result(function()))
        except StartupError:
            return function()
        return done.result()

    def _raise_if_ended(self) -> None:
        if self._has_ended or self._is_closing:
            raise StartupError(self._why_ended)

    # In the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with contextlib.closing(self._loop):
            try:
                self._loop.run_until_complete(self._serve())
            except BaseException as error:
                logger.exception("the session has failed")
                self._end(f"The session has failed: {exception_repr(error)}")
            with self._lock:
                self._is_thread_over = True
            self._loop.run_until_complete(asyncio.sleep(0))  # for calls that were ordered before

    async def _serve(self) -> None:
        """Keep the process running until the session is closed, or the process cannot be started."""
        self._closing, self._streams_ended = asyncio.Event(), asyncio.Event()
        while True:
            self._starts += 1
            code = await self._serve_once()
            if self._is_closing:
                self._end(self._why_ended)
                return
            why = self._start_error or f"The process of the session ended with code {code}."
            if not self._first_ready.done():
                self._end(f"The session's servers did not start: {why}")
                return
            if self._starts == MAX_STARTS:
                self._end(f"{why} It was started {MAX_STARTS} times without a result.")
                return
            logger.warning("%s It is started again.", why)

    async def _serve_once(self) -> int:
        """Start the process, and wait for its end. Returns its exit code."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.to_thread(_start_process, theirs.fileno(), self._order)
        lost = asyncio.Event()
        _, connection = await self._loop.create_connection(
            lambda: FrameConnection(self._on_frame, lambda *_: lost.set()), sock=ours
        )
        await _first_of(self._closing, lost)
        if self._streams and self._connection is not None and not lost.is_set():
            self._streams_ended.clear()
            for stream in [*self._streams.values()]:
                stream._close()
            await _first_of(self._streams_ended, lost, timeout_s=LAST_STATS_TIMEOUT_S)
        self._connection = None
        connection.close()
        return await asyncio.to_thread(_exit_code, process)

    def _close(self) -> None:
        self._is_closing = True
        self._closing.set()

    def _end(self, why: str) -> None:
        """Let nobody wait any more."""
        self._has_ended, self._why_ended = True, why
        if not self._first_ready.done():
            self._first_ready.set_exception(StartupError(why))
        for handle in [*self._handles.values()]:
            self._fail(handle, RolloutError("environment", why, code=ENDED))
        for stream in self._streams.values():
            stream._on_session_end()
        self._end_pauses()

    def _end_pauses(self) -> None:
        waiting, self._pauses = self._pauses, []
        for each in waiting:
            if self._has_ended:
                each.set_exception(StartupError(self._why_ended))
            else:
                each.set_result(None)

    def _send(self, head: list[Any], body: bytes = b"") -> None:
        """Send a frame. One that is not sent because the process starts is made up for when it is ready."""
        if self._connection is not None:
            self._connection.send(head, body)

    def _on_ready(self, connection: FrameConnection) -> None:
        self._connection, self._start_error = connection, ""
        self._send([Message.VERSION, self._sent_version])
        self._send([Message.PAUSE, self._is_paused])  # its reply is that to a pause which was lost with the process
        for handle in self._handles.values():
            self._send_handle(handle)
        for stream in [*self._streams.values()]:
            stream._on_session_ready()
        if not self._first_ready.done():
            self._first_ready.set_result(None)

    def _send_version(self, version: int) -> None:
        self._sent_version = version
        self._submitted.clear()
        self._unfinished.clear()
        self._send([Message.VERSION, version])

    def _submit(
        self, handle: RolloutHandle, row: Row, prefix: bytes, keep_calls: bool, version: int, before: Place | None
    ) -> None:
        self._handles[handle.id] = handle
        if self._has_ended:
            self._fail(handle, RolloutError("environment", self._why_ended, code=ENDED))
            return
        digest = hashlib.sha256(b"%d %b" % (version, row.body)).hexdigest()[:16]
        if before is not None and before[1] == digest and before in self._unfinished:
            self._unfinished.discard(before)
            handle._place = before
        else:
            handle._place = self._submitted[digest], digest
            self._submitted[digest] += 1
        head = [Message.SUBMIT, handle.id, row.agent, handle.group, *handle._place, len(row.body), keep_calls]
        handle._frame = head, row.body + prefix
        self._send_handle(handle)

    def _send_handle(self, handle: RolloutHandle) -> None:
        if handle._frame is not None:
            self._send(*handle._frame)

    def _abort(self, handle: RolloutHandle, keep_partial: bool) -> None:
        if handle.id not in self._handles:
            return
        self._send([Message.ABORT, handle.id])
        if not keep_partial or self._connection is None:
            self._fail(handle, RolloutError("timeout", "The trainer has aborted the rollout.", code=ABORTED))

    def _fail(self, handle: RolloutHandle, error: RolloutError, log: bytes = b"") -> None:
        self._handles.pop(handle.id, None)
        error.row, error.rollout_id = handle.row, handle.id
        error.partial = PartialRollout(handle.row, log, handle.group, handle._place)
        if handle._place is not None:
            self._unfinished.add(handle._place)
        handle._future.set_exception(error)

    def _forget_stream(self, number: int) -> None:
        self._streams.pop(number, None)
        if not self._streams:
            self._streams_ended.set()

    def _on_frame(self, connection: FrameConnection, head: list[Any], body: bytes) -> None:
        kind, *rest = head
        if kind == Message.READY:
            self._on_ready(connection)
        elif kind == Message.PAUSE:
            self._end_pauses()
        elif kind in (Message.SCORED, Message.FAILED):
            self._on_outcome(kind, *rest, body=body)
        elif kind == Message.NOT_READY:
            (self._start_error,) = rest
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
            handle._future.set_result(read_record(body[:detail]))
            return
        response = detail.pop("response", None)
        error = RolloutError(detail.pop("cause"), detail.pop("message"), **detail)
        error.response = response
        self._fail(handle, error, body)


async def _first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def _as_json(order: Mapping[str, Any]) -> bytes:
    def plain(value: object) -> Any:
        if isinstance(value, DictConfig | ListConfig):
            return OmegaConf.to_container(value, resolve=True)
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        raise TypeError(f"{value!r:.100} of the class {type(value).__name__}")

    try:
        return orjson.dumps(order, default=plain)
    except TypeError as error:
        message = f"The session's options have {error.__cause__ or error}"
        raise ConfigError(f"{message}; expected texts, numbers, paths, lists and dicts.") from error


def _checked_version(version: int) -> int:
    try:
        return operator.index(version)  # of a number of numpy or torch, too
    except TypeError as error:
        raise ConfigError(f"The policy version is {version!r}; expected an integer.") from error


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
