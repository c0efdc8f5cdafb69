"""The process of a trainer's session: servers, retries, workers and groups, on one connection to the trainer.

It never waits for the trainer. Rows are read ahead, and complete groups are sent at once; the groups that the trainer
has not taken bound how many rollouts are started. When the connection closes, the process ends."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from omegaconf import OmegaConf

from nemo_gym.client.call_log import parse_call
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common import event_loop
from nemo_gym.common.deadline import lease_time
from nemo_gym.common.exceptions import exception_repr
from nemo_gym.common.logging import RateLimitedLog, configure_logging
from nemo_gym.config.loading import load_config
from nemo_gym.errors import ConfigError, GymError, RolloutError, SetupError, StartupError
from nemo_gym.rollouts.attempts import MakeAttempt, Run, observed_attempt, retrying_run
from nemo_gym.rollouts.call_log import AttemptLog, CallLog, LogMode, LogRequest, ModelGate
from nemo_gym.rollouts.dispatch import WorkerPool, open_dispatch
from nemo_gym.rollouts.group_verification import needs_group, verify_group
from nemo_gym.rollouts.hacking_signals import HackingSignals
from nemo_gym.rollouts.process_losses import LOST_CODES
from nemo_gym.rollouts.types import NO_DATASET, Outcome, Row, hash_row
from nemo_gym.rollouts.worker_protocol import FrameConnection, frame
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.training.groups import Begun, Completed, Dropped, GroupOptions, GroupScheduler, GroupState, Source, Start
from nemo_gym.training.trackers import RolloutTracker, track_rollouts

logger = logging.getLogger(__name__)
rate_limited_log = RateLimitedLog(logger)

JOURNAL_WAIT_S = 30.0
"""How long to wait for the process of a trainer that was killed, which still has the journal."""
JOURNAL_POLL_S = 0.2
ABORTED = "aborted"
"""The code of a rollout that the trainer has aborted."""
NOT_SET_UP = "not_set_up"
"""The code of a rollout that failed as every other would: its endpoint refuses all requests, or no worker comes."""
MAX_LOST_GROUPS = 64
"""A source that loses this many groups in succession does not work."""


class Message(IntEnum):
    """The first item of every frame between a trainer and the process of its session."""

    READY = 1
    """Process: it takes orders now."""
    SUBMIT = 2
    """Trainer: number, agent, group, repeat index, row hash, length of the row, whether to keep the calls. The body is
    the row, then the calls of the prefix to go on from."""
    ABORT = 3
    """Trainer: number. The process sends a FAILED for it if it still runs."""
    SCORED = 4
    """Process: number, length of the record. The body is the record, then the calls if they were asked for."""
    FAILED = 5
    """Process: number, fields of the RolloutError. The body is the calls of the last attempt."""
    VERSION = 6
    """Trainer: the policy version."""
    PAUSE = 7
    """Trainer: true to hold new model calls, false to go on. Process: the same, when it is done."""
    OPEN = 8
    """Trainer: stream, options, sources, state of groups, number and size of those that are complete, and the rows
    that it needs, as in ROWS."""
    ROWS = 9
    """Trainer: stream, sources of which no more rows follow, then source, index, agent and length of each row. The
    body is the rows."""
    WEIGHTS = 10
    """Trainer: stream, weights by source."""
    TAKE = 11
    """Trainer: stream, number of a group."""
    DROP = 12
    """Trainer: stream, number of a group without signal."""
    CLOSE = 13
    """Trainer: stream. Its rollouts end, and the process sends its STATS."""
    STATS = 14
    """Trainer: stream. Process: stream, statistics, whether that is the reply, whether the stream has ended."""
    BEGUN = 15
    """Process: stream, Begun."""
    GROUP = 16
    """Process: stream, number, length of each record. The body is the records."""
    DROPPED = 17
    """Process: stream, number, reason."""
    WANT = 18
    """Process: stream, source, how many rows."""
    DONE = 19
    """Process: stream, whether all groups are taken and no row is left."""
    REFUSED = 20
    """Process: stream, why no rollout of it can be made."""
    NOT_READY = 21
    """Process: why it does not start, instead of READY."""


@dataclass
class PlayedCalls:
    """The lines of the call log of one rollout, while it runs."""

    prefix: bytes = b""
    """Calls to go on from."""
    is_kept: bool = False
    """True if the rollout may be forked."""
    lines: list[bytes] = field(default_factory=list)
    in_memory: AttemptLog | None = None
    """The log of the attempt, if its calls are no lines yet."""
    was_lost: bool = False
    """True if the process of the last attempt died: the next one goes on from its calls."""

    def calls(self) -> bytes:
        if self.in_memory is not None:
            self.lines.append(self.in_memory.kept_lines())
            self.in_memory = None
        return self.prefix + b"".join(self.lines)

    def begin(self, log: AttemptLog) -> None:
        """An attempt begins, with its calls in memory."""
        self.in_memory = log


_played: ContextVar[PlayedCalls] = ContextVar("nemo_gym_played_calls")


@dataclass(frozen=True)
class RolloutRunner:
    """Makes rollouts, and holds their model calls while the session is paused."""

    client: ServerClient
    run: Run
    timeout_s: float
    gate: ModelGate
    workers: WorkerPool | None
    tracker: RolloutTracker | None = None
    signals: HackingSignals = field(default_factory=HackingSignals)

    async def play(self, row: Row, played: PlayedCalls) -> Outcome:
        """Make a rollout, with retries. To be called in a task of its own. Every error is an outcome: the trainer
        waits for one."""
        _played.set(played)
        outcome = await self._run(row)
        if self.tracker is not None:
            self.tracker.add(outcome)
        if outcome.error is None:
            self.signals.add_line(outcome.record, row.task_index)
        return outcome

    async def _run(self, row: Row) -> Outcome:
        try:
            return await self.run(row)
        except SetupError as error:
            return Outcome.failed(row, RolloutError("model", str(error), code=NOT_SET_UP))
        except StartupError as error:
            return Outcome.failed(row, RolloutError("environment", str(error), code=NOT_SET_UP))
        except Exception as error:
            logger.exception("a rollout failed")
            return Outcome.failed(row, RolloutError("internal", exception_repr(error)))

    async def pause(self, is_paused: bool) -> None:
        """Hold new model calls, or go on."""
        self.gate.clear() if is_paused else self.gate.set()
        if self.workers is not None:
            await self.workers.pause(is_paused)

    def set_version(self, version: int) -> None:
        """Name the policy version of model calls that are made from now on."""
        self.gate.version = version
        if self.workers is not None:
            self.workers.set_version(version)


@contextlib.asynccontextmanager
async def open_runner(client: ServerClient, order: Mapping[str, Any]) -> AsyncIterator[RolloutRunner]:
    """A runner with the servers of a client. With a journal, calls that it has are not made again."""
    journal, max_attempts, log_to = order["journal"], order["max_attempts"], order["log_to"]
    gate = ModelGate()
    gate.set()
    settings: Any = OmegaConf.to_container(client.global_config_dict, resolve=True)
    log = CallLog(Path(journal or os.devnull), "journal", settings, option="journal")
    async with open_dispatch(client) as workers:
        make: MakeAttempt = workers.attempt if workers else partial(observed_attempt, client)
        if workers is not None or client.local:
            # a worker sends each call at once, as it may die
            kept: LogMode = "journal" if journal or workers is not None else "memory"
            make = log.logged(_keeping_calls(make, gate, kept if journal or order["keep_partial"] else "gate"))
        elif journal:
            raise ConfigError("A journal needs servers that the session starts, or those of an `ng_run`.")
        run = retrying_run(make, _ignore, max_attempts=max_attempts)
        async with _opened(log) if journal else contextlib.nullcontext():
            tracker = None if log_to is None else track_rollouts(log_to)
            yield RolloutRunner(client, run, float(order["rollout_timeout_s"]), gate, workers, tracker)


@contextlib.asynccontextmanager
async def _opened(log: CallLog) -> AsyncIterator[None]:
    """The journal, once the process before has closed it."""
    with contextlib.ExitStack() as stack:
        until = lease_time() + JOURNAL_WAIT_S
        while True:
            try:
                stack.enter_context(log.opened(lambda _row: False))
                break
            except ConfigError:
                if lease_time() > until:
                    raise
            await asyncio.sleep(JOURNAL_POLL_S)
        yield


async def _ignore(_outcome: Outcome) -> None:
    """Failed attempts before the last one are not stored."""


def _keeping_calls(make: MakeAttempt, gate: ModelGate, usual: LogMode) -> MakeAttempt:
    """As `make`, but the calls of an attempt are kept until the next one, and its model calls wait for the gate."""

    async def make_kept(row: Row, log: LogRequest | None = None) -> Outcome:
        if log is None:
            raise AssertionError("the calls of a session are logged")
        played, write_on = _played.get(), log.write
        if not played.was_lost:
            played.lines, played.in_memory = [log.stored], None
        stored = played.calls()

        def write(line: bytes) -> None:
            played.lines.append(line)
            write_on(line)

        mode: LogMode = "journal" if stored and usual == "memory" else usual
        mode = "continue" if played.prefix else "keep" if played.is_kept else mode
        on_start = played.begin if mode == "memory" else None
        if mode == "continue" and not log.stored:  # or the journal would have only the end of what is played
            for call in filter(None, map(parse_call, played.prefix.splitlines(keepends=True))):
                write_on(log.line_of(row, call))
        log = log._replace(mode=mode, stored=stored, write=write, gate=gate, on_start=on_start)
        outcome = await make(row, log)
        played.was_lost = outcome.error is not None and outcome.error.code in LOST_CODES
        return outcome

    return make_kept


class SessionServer:
    """Does what the trainer orders."""

    def __init__(self, runner: RolloutRunner) -> None:
        self.runner = runner
        self.ended = asyncio.Event()
        self._running: dict[int, tuple[asyncio.Task[None], PlayedCalls]] = {}
        self._streams: dict[int, GroupStreamServer] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self.version = 0
        self.connection: FrameConnection

    async def serve(self, trainer: socket.socket) -> None:
        """Follow orders until the trainer closes the connection."""
        loop = asyncio.get_running_loop()
        _, self.connection = await loop.create_connection(
            lambda: FrameConnection(self._on_frame, lambda *_: self.ended.set()), sock=trainer
        )
        self.connection.send([Message.READY])
        await self.ended.wait()
        for stream in self._streams.values():
            stream.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.runner.tracker is not None:
            await asyncio.to_thread(self.runner.tracker.close, self.version)

    def now(self) -> float:
        """The time for limits of groups: it stands still in a pause, and while this process does."""
        return lease_time() - self._paused_s if self._paused_at is None else self._paused_at - self._paused_s

    def start(self, row: Row, played: PlayedCalls, on_end: Any) -> "asyncio.Task[None]":
        """Make a rollout. `on_end` gets its outcome, unless the task is cancelled before."""

        async def play() -> None:
            on_end(await self.runner.play(row, played))

        return self.own(asyncio.create_task(play()))

    def own(self, task: "asyncio.Task[Any]") -> "asyncio.Task[Any]":
        """Cancel a task when the session ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _on_frame(self, _connection: FrameConnection, head: list[Any], body: bytes) -> None:
        kind, *rest = head
        if kind == Message.SUBMIT:
            self._submit(*rest, body=body)
        elif kind == Message.ABORT:
            self._abort(*rest)
        elif kind == Message.VERSION:
            self._set_version(*rest)
        elif kind == Message.PAUSE:
            self.own(asyncio.create_task(self._pause(*rest)))
        elif kind == Message.OPEN:
            number, options, sources, *state = rest
            stream = self._streams[number] = GroupStreamServer(self, number, options, sources)
            stream.restore(*state, body=body)
        elif rest[0] in self._streams:
            stream = self._streams[rest[0]]
            stream.on_frame(kind, rest[1:], body)
            if kind == Message.CLOSE:
                del self._streams[rest[0]]

    def _set_version(self, version: int) -> None:
        if version != self.version:
            self.runner.signals.warn()
        if self.runner.tracker is not None and version != self.version:
            alarms = {f"alarms/{alarm.signal}": 1.0 for alarm in self.runner.signals.alarms()}
            self.runner.tracker.log(self.version, {**self._group_counts(), **alarms})
        self.version = version
        self.runner.set_version(version)
        for stream in self._streams.values():
            stream.scheduler.set_version(version)
            stream.poll()

    def _group_counts(self) -> dict[str, float]:
        """How many groups were taken and dropped so far, for a tracker."""
        counts: Counter[str] = Counter()
        for stream in self._streams.values():
            stats = stream.scheduler.stats()
            counts["groups/complete"] += stats.get("complete", 0)
            for dropped in stats["dropped"].values():
                counts.update({f"groups/dropped/{reason}": count for reason, count in dropped.items()})
        return dict(counts)

    def _submit(
        self,
        number: int,
        agent: str,
        group: str,
        repeat_index: int,
        row_hash: str,
        size: int,
        keeps_calls: bool,
        *,
        body: bytes,
    ) -> None:
        row = Row(NO_DATASET, repeat_index, row_hash, agent, body[:size], self.runner.timeout_s, group=group)
        played = PlayedCalls(body[size:], keeps_calls)

        def on_end(outcome: Outcome) -> None:
            if self._running.pop(number, None) is None:
                return  # it was aborted
            calls = played.calls() if keeps_calls else b""
            if outcome.error is None:
                self.connection.send([Message.SCORED, number, len(outcome.record)], outcome.record + calls)
            else:
                self.connection.send([Message.FAILED, number, error_fields(outcome.error)], played.calls())

        self._running[number] = self.start(row, played, on_end), played

    def _abort(self, number: int) -> None:
        task, played = self._running.pop(number, (None, None))
        if task is not None and played is not None:
            task.cancel()
            error = RolloutError("timeout", "The trainer has aborted the rollout.", code=ABORTED)
            self.connection.send([Message.FAILED, number, error_fields(error)], played.calls())

    async def _pause(self, is_paused: bool) -> None:
        if is_paused and self._paused_at is None:
            self._paused_at = lease_time()
        elif not is_paused and self._paused_at is not None:
            self._paused_s += lease_time() - self._paused_at
            self._paused_at = None
        await self.runner.pause(is_paused)
        self.connection.send([Message.PAUSE, is_paused])
        for stream in self._streams.values():
            stream.poll()


def error_fields(error: RolloutError) -> dict[str, Any]:
    """What the trainer's RolloutError says."""
    names = ("cause", "server", "retryable", "code", "status", "response")
    return {"message": str(error), **{name: getattr(error, name) for name in names}}


class GroupStreamServer:
    """The groups of one stream: what the scheduler decides is done here."""

    def __init__(self, session: SessionServer, number: int, options: Any, sources: dict[str, Any]) -> None:
        self._session, self._number = session, number
        named = {name: Source((), **each) for name, each in sources.items()}
        self.scheduler = GroupScheduler(named, GroupOptions(**options), version=session.version)
        self._rows: dict[tuple[str, int], tuple[str, bytes]] = {}
        """Agent and body of each row that may still be begun."""
        self._begun: dict[int, Begun] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asked: Counter[str] = Counter()
        """How many rows of each source the trainer was asked for and has not sent."""
        self._lost: Counter[str] = Counter()
        """How many groups of each source were lost since one was complete."""
        self._is_done: bool | None = None
        self._is_polling = self._is_closed = False
        self._has_news = False
        """True if groups have begun or ended since the trainer got statistics, which it keeps if this process dies."""

    def restore(self, state: dict[str, Any], complete: list[tuple[int, int]], *rows: Any, body: bytes) -> None:
        """Begin, or go on from a state. These of its groups are complete, and these are their rows."""
        self._read_rows(rows, body)
        sizes = dict[int, int](complete)
        self.scheduler.restore(GroupState.of_json(state), self._session.now(), sizes)
        self.poll()

    def on_frame(self, kind: int, rest: list[Any], body: bytes) -> None:
        if kind == Message.ROWS:
            self._add_rows(*rest, body=body)
        elif kind == Message.WEIGHTS:
            self.scheduler.set_weights(*rest)
            self._is_done = None
        elif kind == Message.TAKE:
            self._has_news = True
            self._track_staleness(*rest)
            self.scheduler.take(*rest)
            self._forget(*rest)
        elif kind == Message.DROP:
            self.scheduler.drop(*rest)
        elif kind == Message.STATS:
            self._send_stats(is_reply=True)
        elif kind == Message.CLOSE:
            self.close()
            self._send_stats(is_last=True)
            return
        self._poll_soon()

    def _track_staleness(self, group: int) -> None:
        tracker, begun = self._session.runner.tracker, self._begun.get(group)
        if tracker is not None and begun is not None:
            tracker.add_staleness(self.scheduler.version - begun.version)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks.values():
            task.cancel()

    def _send(self, kind: Message, *rest: Any, body: bytes = b"") -> None:
        self._session.connection.send([kind, self._number, *rest], body)

    def _read_rows(self, rows: Iterable[Any], body: bytes) -> None:
        start = 0
        for source, index, agent, size in rows:
            self._rows[source, index] = agent, body[start : start + size]
            start += size

    def _add_rows(self, ended: list[str], *rows: Any, body: bytes) -> None:
        self._read_rows(rows, body)
        for source in {*ended, *(row[0] for row in rows)}:
            indices = [index for name, index, *_ in rows if name == source]
            self.scheduler.add_rows(source, indices, has_more=source not in ended)
            self._asked[source] = 0 if source in ended else self._asked[source] - len(indices)

    def poll(self) -> None:
        """Do what is to be done now."""
        if self._is_closed:
            return
        scheduler = self.scheduler
        self._act(self._session.now())
        for source, count in scheduler.wanted().items():
            if self._asked[source] <= 0:
                self._asked[source] = count
                self._send(Message.WANT, source, count)
        if scheduler.is_done is not self._is_done:
            self._is_done = scheduler.is_done
            self._send(Message.DONE, self._is_done)
        if self._has_news:
            self._send_stats()

    def _send_stats(self, *, is_reply: bool = False, is_last: bool = False) -> None:
        self._has_news = False
        self._send(Message.STATS, self.scheduler.stats(), is_reply, is_last)

    def _act(self, now: float) -> None:
        scheduler, actions = self.scheduler, self.scheduler.poll(now)
        for event in actions.events:
            self._report(event)
        self._has_news |= bool(actions.events)
        for rollout in actions.abort:
            if (task := self._tasks.pop(rollout, None)) is not None:
                task.cancel()
        for start in actions.start:
            self._start(start)
        if self._timer is not None:
            self._timer.cancel()
        at = scheduler.next_time()
        delay = None if at is None else max(0.0, at - now)
        self._timer = None if delay is None else asyncio.get_running_loop().call_later(delay, self.poll)

    def _report(self, event: Begun | Completed | Dropped) -> None:
        if isinstance(event, Begun):
            self._begun[event.group] = event
            self._send(Message.BEGUN, [*event])
        elif isinstance(event, Completed):
            if any(map(needs_group, event.results)):
                self._session.own(asyncio.create_task(self._verify(event)))
            else:
                self._send_group(event.group, event.results)
        else:
            self._send(Message.DROPPED, *event)
            if event.reason == "lost":
                self._count_lost(self._begun[event.group].source)
            self._forget(event.group, is_tried_again=event.reason == "stale")

    def _count_lost(self, source: str) -> None:
        self._lost[source] += 1
        if self._lost[source] == MAX_LOST_GROUPS:
            causes = self.scheduler.stats()["lost"].get(source, {})
            found = f"{MAX_LOST_GROUPS} groups of source '{source}' in succession were lost"
            self._refuse(f"{found}; rollouts without a result by cause: {causes}. See the log for their errors.")

    def _refuse(self, why: str) -> None:
        """Make no rollout any more, and say why where groups are taken."""
        if not self._is_closed:
            self.close()
            self._send(Message.REFUSED, why)

    async def _verify(self, event: Completed) -> None:
        """Score the rollouts of a group together. If that fails, the group is lost."""
        begun = self._begun[event.group]
        scored = await verify_group(self._session.runner.client, event.results)
        if failed := [outcome.error for outcome in scored if outcome.error is not None]:
            text = "group %d, row %d of source '%s', could not be scored: %s"
            logger.warning(text, event.group, begun.row, begun.source, failed[0])
            self.scheduler.drop(event.group, "lost")
            self.poll()
        else:
            self._send_group(event.group, scored)

    def _send_group(self, number: int, outcomes: list[Outcome]) -> None:
        records = [outcome.record for outcome in outcomes]
        self._lost[self._begun[number].source] = 0
        self._send(Message.GROUP, number, *map(len, records), body=b"".join(records))

    def _forget(self, group: int, *, is_tried_again: bool = False) -> None:
        begun = self._begun.pop(group, None)
        if begun is not None and not is_tried_again:
            self._rows.pop((begun.source, begun.row), None)

    def _start(self, start: Start) -> None:
        agent, body = self._rows[start.source, start.row]
        place = f"{self._number}\0{start.source}\0{start.row}\0{start.version}\0".encode()
        timeout_s, group = self._session.runner.timeout_s, f"{self._number}-{start.group}"
        row = Row(NO_DATASET, start.slot, hash_row(place + body), agent, body, timeout_s, group=group)

        def on_end(outcome: Outcome) -> None:
            if self._tasks.pop(start.id, None) is None:
                return  # it was aborted
            if outcome.error is None or needs_group(outcome):
                self.scheduler.finish(start.id, outcome)
            elif outcome.error.code == NOT_SET_UP:
                self._refuse(str(outcome.error))
            else:
                self._lose(start, outcome.error)
            self._poll_soon()

        self._tasks[start.id] = self._session.start(row, PlayedCalls(), on_end)

    def _lose(self, start: Start, error: RolloutError) -> None:
        text = "group %d, row %d of source '%s': a rollout has no result (%s): %s"
        rate_limited_log.warning(error.cause, text, start.group, start.row, start.source, error.cause, error)
        self.scheduler.lose(start.id, error.cause)

    def _poll_soon(self) -> None:
        """Poll once for all rollouts that end in this turn of the event loop."""
        if not self._is_polling:
            self._is_polling = True
            asyncio.get_running_loop().call_soon(self._poll_now)

    def _poll_now(self) -> None:
        self._is_polling = False
        self.poll()


async def serve_trainer(trainer: socket.socket, order: Mapping[str, Any]) -> None:
    """Start or find the servers, and follow the orders of the trainer at the other end of the socket."""
    config = load_config([], initial=order["config"], use_dotenv=False, fill_ports=False)
    async with connect_servers(config) as client, open_runner(client, order) as runner:
        await SessionServer(runner).serve(trainer)


def main() -> None:
    """Entry point of the process: the descriptor of the socket is its argument, the order its standard input."""
    configure_logging()
    trainer = socket.socket(fileno=int(sys.argv[1]))
    try:
        event_loop.run(serve_trainer(trainer, orjson.loads(sys.stdin.buffer.read())))
    except GymError as error:
        try:
            trainer.sendall(frame([Message.NOT_READY, str(error)]))
        except OSError:  # it was ready, so the socket is closed, or the trainer is gone
            sys.exit(str(error))
        sys.exit(1)
