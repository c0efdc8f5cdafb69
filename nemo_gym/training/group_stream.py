"""The stream of groups that a trainer takes from its session.

What the trainer holds is here: the rows that were read and the complete groups that it has not taken. Which rollouts
are started is decided in the process of the session (`session_process`). Rows and `keep` are code of the trainer that
may take long or wait for it, so each runs in a thread of its own."""

import asyncio
import contextlib
import copy
import itertools
import logging
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from nemo_gym.common.exceptions import exception_repr
from nemo_gym.common.logging import RateLimitedLog
from nemo_gym.errors import ConfigError, RolloutError, SetupError, StartupError
from nemo_gym.llm_api.stored_tokens import read_record
from nemo_gym.rollouts.dataset import trainer_row
from nemo_gym.rollouts.types import Row
from nemo_gym.training.groups import NOW, Begun, GroupOptions, GroupState, Source, check_sources, is_stale
from nemo_gym.training.session_process import Message

if TYPE_CHECKING:
    from nemo_gym.training.session import RolloutSession

logger = logging.getLogger(__name__)
rate_limited_log = RateLimitedLog(logger)

Keep = Callable[[list[dict[str, Any]]], bool]
Place = tuple[str, int]
"""A row: its source and its index there."""

MAX_INVALID_ROWS = 1000
"""A source with this many rows in succession that cannot be sent has no others."""


class CompleteGroup(NamedTuple):
    """A group for the trainer."""

    number: int
    source: str
    row: Any
    results: list[dict[str, Any]]
    """Records, in the order in which they completed."""
    version: int
    """The policy version when the group was begun."""
    staleness: int
    """How many versions ago that was."""


class GroupIterator:
    """Takes complete groups, in a plain loop or an event loop. The rollouts end when it is closed or collected, as
    happens when you leave a loop. A wait that is interrupted, cancelled or timed out loses no group: take the next."""

    def __init__(self, stream: "GroupStream") -> None:
        self._stream = stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> CompleteGroup:
        stream = self._stream
        while (group := stream._take()) is None:
            if stream._is_over():
                raise StopIteration
            stream._next_change().result()
        return group

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CompleteGroup:
        stream = self._stream
        while (group := stream._take()) is None:
            if stream._is_over():
                raise StopAsyncIteration
            await asyncio.wrap_future(stream._next_change())
        return group

    def close(self) -> None:
        """End the rollouts of the stream."""
        self._stream.close()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    def __del__(self) -> None:
        self.close()


class GroupStream:
    """Complete groups: iterate over it, in a plain loop or an event loop. Rollouts go on between two groups that you
    take. They end when you leave the loop: to take some groups at a time, keep the iterator."""

    def __init__(
        self,
        session: "RolloutSession",
        number: int,
        sources: dict[str, Source],
        options: GroupOptions,
        keep: Keep | None,
        state: Mapping[str, Any] | None,
    ) -> None:
        self._session, self._number, self._sources, self._options, self._keep = session, number, sources, options, keep
        check_sources(sources)
        self._state = GroupState.of_json(state) if state else GroupState(version=session.version)
        if unknown := sorted({source for source, _ in self._state.needed()} - sources.keys()):
            raise ConfigError(f"The state has groups of {', '.join(unknown)}; the sources are {', '.join(sources)}.")
        self._weights = {name: source.weight for name, source in sources.items()}
        self._readers: dict[str, RowReader] = {}
        self._read_again: dict[str, int] = {name: count for name, count in self._state.read.items() if count}
        """How many rows of each source an earlier stream had read. The stream opens once they were read again."""
        self._rows: dict[Place, tuple[Any, Row]] = {}
        """Rows that are not done with, as they were read and as they are sent."""
        self._records: dict[int, list[dict[str, Any]]] = {}
        """Those of complete groups that are neither taken nor dropped."""
        self._ready: deque[tuple[Begun, CompleteGroup]] = deque()
        """Complete groups that are kept."""
        self._keeping = CallThread("nemo-gym-keep")
        self._waiting: list[Future[None]] = []
        """For something that whoever takes groups must know."""
        self._error: BaseException | None = None
        self._is_done = self._is_closed = False
        self._stats: dict[str, Any] = {}
        """What the process of the session has reported last."""
        self._stats_before: dict[str, Any] = {}
        """The sum of what processes before it have reported."""
        self._skipped: Counter[str] = Counter()
        self._asked: deque[Future[dict[str, Any]]] = deque()

    def stats(self) -> dict[str, Any]:
        """What was begun, completed and dropped, and why."""
        asked: Future[dict[str, Any]] = Future()
        try:
            self._session._in_thread(self._ask_stats, asked)
        except StartupError:  # the session has ended
            return self._all_stats()
        return asked.result()

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to go on after the groups taken so far, as JSON: pass it as `state` to `groups`."""
        return self._session._call(lambda: copy.deepcopy(self._state.as_json()))

    def close(self) -> None:
        """End the rollouts of this stream."""
        with contextlib.suppress(StartupError):  # the session has ended
            self._session._in_thread(self._close)

    def __iter__(self) -> GroupIterator:
        return GroupIterator(self)

    def __aiter__(self) -> GroupIterator:
        return GroupIterator(self)

    # Where groups are taken

    def _take(self) -> CompleteGroup | None:
        """The next group, if there is one."""
        self._update_weights()
        with self._session._lock:
            version = self._session.version
            while self._ready:
                begun, group = self._ready.popleft()
                if not is_stale(begun.version, version, self._options):  # the process drops it, too
                    self._session._in_thread(self._on_taken, begun.group)
                    return group._replace(staleness=version - begun.version)
        return None

    def _update_weights(self) -> None:
        """Pass weights on that the trainer has changed."""
        check_sources(self._sources)
        weights = {name: source.weight for name, source in self._sources.items()}
        if weights != self._weights:
            self._weights, self._is_done = weights, False
            self._session._in_thread(self._send, Message.WEIGHTS, weights)

    def _is_over(self) -> bool:
        """True if there will be no more groups. Raises what is the reason, if all is not well."""
        if self._error is not None:
            raise self._error
        if self._is_done:
            return True
        if self._is_closed:
            message = "The stream is closed: its loop was left, or `close` was called. To take groups in several loops"
            raise StartupError(f"{message}, keep the iterator. To go on from here, pass `state()` to `groups`.")
        self._session._raise_if_ended()
        return False

    def _next_change(self) -> Future[None]:
        """Resolves when `_take` or `_is_over` may have something new to say."""
        change: Future[None] = Future()
        self._session._in_thread(self._wait, change)
        return change

    # In the thread of the session

    def _wait(self, change: Future[None]) -> None:
        self._waiting = [each for each in self._waiting if not each.cancelled()] + [change]
        is_over = self._is_done or self._is_closed or self._session._has_ended
        if self._ready or is_over or self._error is not None:
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if change.set_running_or_notify_cancel():
                change.set_result(None)

    def _on_taken(self, number: int) -> None:
        self._forget(number)
        self._send(Message.TAKE, number)

    def _send(self, kind: Message, *rest: Any, body: bytes = b"") -> None:
        self._session._send([kind, self._number, *rest], body)

    def _open(self) -> None:
        self._session._streams[self._number] = self
        for name, source in self._sources.items():
            in_session: Callable[..., object] = self._session._loop.call_soon_threadsafe
            self._readers[name] = RowReader(name, source.rows, partial(in_session, self._on_read, name))
            if count := self._read_again.get(name):
                self._readers[name].read(count, with_invalid=True)
        self._open_if_read()

    def _open_if_read(self) -> None:
        """Open the stream in the process, when the rows of its state were read."""
        if self._read_again or self._is_closed:
            return
        if missing := sorted(self._state.needed() - self._rows.keys()):
            source, index = missing[0]
            message = f"The state needs row {index} of source '{source}', which is not there or cannot be sent."
            self._fail(ConfigError(f"{message} Pass the same rows in the same order."))
            self._close()
            return
        self._send_open()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._keeping.close()
            for reader in self._readers.values():
                reader.close()
            self._send(Message.CLOSE)
            self._wake()

    def _fail(self, error: BaseException) -> None:
        """Raise an error where groups are taken."""
        self._error = error
        self._wake()

    def _on_session_ready(self) -> None:
        """Go on with the process of the session, which has started again."""
        self._reply_stats()  # those asked for were lost with the one before
        self._stats_before, self._stats = _sum_of(self._stats_before, self._stats), {}
        if self._is_closed:
            del self._session._streams[self._number]
        elif not self._read_again:
            self._send_open()

    def _on_session_end(self) -> None:
        self._reply_stats()
        self._keeping.close()
        for reader in self._readers.values():
            reader.close()
        self._wake()

    def _send_open(self) -> None:
        """Open the stream in the process, from what is known here."""
        self._is_done = False
        self._state.version = self._session._sent_version
        sources = {
            name: {"weight": self._weights[name], "max_in_flight": source.max_in_flight}
            for name, source in self._sources.items()
        }
        needed = sorted(self._state.needed())
        complete = [(number, len(records)) for number, records in self._records.items()]
        self._send_rows(Message.OPEN, needed, asdict(self._options), sources, self._state.as_json(), complete)
        ahead = sorted(place for place in self._rows if place[1] >= self._state.read.get(place[0], 0))
        if ahead:
            self._send_rows(Message.ROWS, ahead, [])

    def _send_rows(self, kind: Message, places: list[Place], *head: Any) -> None:
        sent = [self._rows[place][1] for place in places]
        rows = [(*place, row.agent, len(row.body)) for place, row in zip(places, sent, strict=True)]
        self._send(kind, *head, *rows, body=b"".join(row.body for row in sent))

    def _forget(self, number: int, *, is_tried_again: bool = False) -> None:
        self._records.pop(number, None)
        begun = self._state.end(number, is_tried_again=is_tried_again)
        if begun is not None and not is_tried_again:
            self._rows.pop((begun.source, begun.row), None)

    def _on_frame(self, kind: int, rest: list[Any], body: bytes) -> None:
        if kind == Message.BEGUN:
            self._state.begin(Begun(*rest[0]))
        elif kind == Message.GROUP:
            self._on_group(*rest, body=body)
        elif kind == Message.DROPPED:
            number, reason = rest
            self._forget(number, is_tried_again=reason == "stale")
        elif kind == Message.WANT:
            source, count = rest
            self._readers[source].read(count)
        elif kind == Message.DONE:
            (self._is_done,) = rest
            self._wake()
        elif kind == Message.REFUSED:
            self._fail(SetupError(*rest))
        elif kind == Message.STATS:
            stats, is_reply, is_last = rest
            self._on_stats(stats, is_reply=is_reply, is_last=is_last)

    def _ask_stats(self, asked: Future[dict[str, Any]]) -> None:
        self._asked.append(asked)
        if self._session._connection is None or self._number not in self._session._streams:
            self._reply_stats()
        elif not self._is_closed:
            self._send(Message.STATS)

    def _on_stats(self, stats: dict[str, Any], *, is_reply: bool, is_last: bool) -> None:
        self._stats = stats
        if is_last:
            self._session._forget_stream(self._number)
            self._reply_stats()
        elif is_reply:
            self._asked.popleft().set_result(self._all_stats())

    def _all_stats(self) -> dict[str, Any]:
        stats = _sum_of(self._stats_before, self._stats)
        for source, count in self._skipped.items():
            stats.setdefault("dropped", {}).setdefault(source, {})["invalid_row"] = count
        return stats

    def _reply_stats(self) -> None:
        while self._asked:
            self._asked.popleft().set_result(self._all_stats())

    def _on_group(self, number: int, *sizes: int, body: bytes) -> None:
        ends = [*itertools.accumulate(sizes)]
        records = [read_record(body[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        self._records[number] = records
        if self._keep is None:
            self._on_kept(number, is_kept=True)
        else:
            self._keeping.call(partial(self._judge, self._keep, number, records))

    def _judge(self, keep: Keep, number: int, records: list[dict[str, Any]]) -> None:
        """Ask the trainer whether it wants a group. Called in the thread for `keep`."""
        in_session = self._session._loop.call_soon_threadsafe
        try:
            is_kept = bool(keep(records))
        except BaseException as error:  # such as SystemExit, which would end the thread
            begun = self._state.groups.get(number)
            if begun is not None:
                error.add_note(f"It was raised by `keep` for group {number}: row {begun.row} of '{begun.source}'.")
            in_session(self._fail, error)
        else:
            in_session(partial(self._on_kept, number, is_kept=is_kept))

    def _on_kept(self, number: int, *, is_kept: bool) -> None:
        records, begun = self._records.get(number), self._state.groups.get(number)
        if records is None or begun is None:
            return  # it was dropped
        if not is_kept:
            del self._records[number]
            self._send(Message.DROP, number)
            return
        row, _ = self._rows[begun.source, begun.row]
        self._ready.append((begun, CompleteGroup(number, begun.source, row, records, begun.version, 0)))
        self._wake()

    def _on_read(self, source: str, read: "ReadRow | BaseException | None") -> None:
        """A reader has read a row, an error, or the end of its rows."""
        if isinstance(read, BaseException):
            self._fail(read)
            return
        if read is not None and read.sent is None:
            self._skipped[source] += 1
        again = self._read_again.get(source)
        if again is not None:
            self._on_read_again(source, read, again)
        elif read is None:
            self._send(Message.ROWS, [source])
        elif read.sent is not None:
            self._rows[source, read.number] = read.row, read.sent
            self._send_rows(Message.ROWS, [(source, read.number)], [])

    def _on_read_again(self, source: str, read: "ReadRow | None", count: int) -> None:
        if read is not None and read.sent is not None and (source, read.number) in self._state.needed():
            self._rows[source, read.number] = read.row, read.sent
        if read is None or read.number == count - 1:
            del self._read_again[source]
            self._open_if_read()


def _sum_of(before: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of two processes, one after the other, as one."""
    total: dict[str, Any] = {name: 0 if name in NOW else count for name, count in before.items()}
    for name, value in stats.items():
        if isinstance(value, Mapping):
            total[name] = _sum_of(total.get(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
    return total


class CallThread:
    """Calls functions one after the other in a thread of its own, which starts with the first. The end of the process
    does not wait for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], None]) -> None:
        """Call a function when those before it have returned."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(function)

    def close(self) -> None:
        """Make no call any more but those that were ordered."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except RuntimeError as error:  # the event loop is closed
                logger.debug("%s: %s", self._name, exception_repr(error))


class ReadRow(NamedTuple):
    """A row of a source."""

    number: int
    """Its index in the source."""
    row: Any
    sent: Row | None
    """None if it cannot be sent."""


class RowReader:
    """Reads rows of one source, when they are wanted, in a thread of its own: they may wait for the trainer."""

    def __init__(self, source: str, rows: Any, report: Callable[..., object]) -> None:
        self._source, self._rows, self._report = source, rows, report
        self._numbered: Iterator[tuple[int, Any]] | None = None
        self._thread = CallThread(f"nemo-gym-rows-{source}")
        self._last = -1
        """The index of the row that was read last."""
        self._is_closed = False

    def read(self, count: int, *, with_invalid: bool = False) -> None:
        """Read so many rows, and report each of them, their end and errors. Invalid rows count only `with_invalid`."""
        self._thread.call(partial(self._read, count, with_invalid))

    def close(self) -> None:
        self._is_closed = True
        self._thread.close()

    def _read(self, count: int, with_invalid: bool) -> None:
        invalid = 0
        try:
            if self._numbered is None:
                self._numbered = enumerate(iter(self._rows))
            while count > 0 and not self._is_closed:
                self._last, row = next(self._numbered)
                read = self._as_sent(self._last, row)
                invalid = 0 if read.sent is not None else invalid + 1
                count -= read.sent is not None or with_invalid
                if invalid == MAX_INVALID_ROWS:
                    raise ConfigError(f"{invalid} rows of source '{self._source}' in succession cannot be sent.")
                self._report(read)
        except StopIteration:
            self._report(None)
        except BaseException as error:  # such as SystemExit, which would end the thread
            error.add_note(f"It was raised by the rows of source '{self._source}', after row {self._last}.")
            self._report(error)

    def _as_sent(self, index: int, row: Any) -> ReadRow:
        try:
            return ReadRow(index, row, trainer_row(row))
        except RolloutError as error:
            text = "row %d of source '%s' is skipped: %s"
            rate_limited_log.warning(self._source, text, index, self._source, error)
            return ReadRow(index, row, None)
