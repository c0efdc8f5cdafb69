"""The stream of groups that a trainer takes from its session.

What the trainer holds is here: the rows that were read and the complete groups that it has not taken. Which rollouts
are started is decided in the process of the session (`session_process`)."""

import asyncio
import contextlib
import copy
import itertools
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_gym.errors import ConfigError, RolloutError, StartupError
from nemo_gym.llm_api.stored_tokens import read_record
from nemo_gym.rollouts.dataset import trainer_row
from nemo_gym.training.groups import Begun, GroupOptions, GroupState, Source, check_sources, is_stale
from nemo_gym.training.session_process import Message

if TYPE_CHECKING:
    from nemo_gym.training.session import RolloutSession

logger = logging.getLogger(__name__)


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


class GroupStream:
    """Complete groups, for a plain loop or an event loop. Rollouts go on between two groups that you take. They end
    when you leave the loop: to take some groups at a time, keep the iterator."""

    def __init__(
        self,
        session: "RolloutSession",
        number: int,
        sources: dict[str, Source],
        options: GroupOptions,
        keep: Callable[[list[dict[str, Any]]], bool] | None,
        state: Mapping[str, Any] | None,
    ) -> None:
        self._session, self._number, self._sources, self._options, self._keep = session, number, sources, options, keep
        check_sources(sources)
        self._state = GroupState.of_json(state) if state else GroupState(version=session.version)
        if unknown := sorted({source for source, _ in self._state.needed()} - sources.keys()):
            raise ConfigError(f"The state has groups of {', '.join(unknown)}; the sources are {', '.join(sources)}.")
        self._readers = {name: iter(source.rows) for name, source in sources.items()}
        self._read: dict[str, int] = {}
        """How many rows of each source were read, those read ahead included."""
        self._rows: dict[tuple[str, int], Any] = {}
        """Rows that are read and not done with."""
        self._orders: dict[tuple[str, int], tuple[str, bytes]] = {}
        """Agent and body of each of them."""
        self._ready: deque[tuple[int, list[dict[str, Any]]]] = deque()
        self._weights = {name: source.weight for name, source in sources.items()}
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._is_done = self._is_closed = False
        self._stats: dict[str, Any] = {}
        self._skipped: Counter[str] = Counter()
        self._asked: list[Future[dict[str, Any]]] = []

    def stats(self) -> dict[str, Any]:
        """What was begun, completed and dropped, and why."""
        asked: Future[dict[str, Any]] = Future()

        def ask() -> None:
            if self._session._connection is None or self._number not in self._session._streams:
                asked.set_result(self._stats)
                return
            self._asked.append(asked)
            if not self._is_closed:
                self._send(Message.STATS)

        with contextlib.suppress(RuntimeError):  # the session is closed
            self._session._in_thread(ask)
            return asked.result()
        return self._stats

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to go on after the groups taken so far, as JSON: pass it as `state` to `groups`."""
        return self._session._call(lambda: copy.deepcopy(self._state.as_json()))

    def close(self) -> None:
        """End the rollouts of this stream."""
        with contextlib.suppress(RuntimeError):  # the session is closed
            self._session._in_thread(self._close)

    def __iter__(self) -> Generator[CompleteGroup, None, None]:
        try:
            while (group := self._start_taking().result()) is not None:
                yield group
            self._raise_error()
        finally:
            self.close()

    async def __aiter__(self) -> AsyncGenerator[CompleteGroup, None]:
        try:
            while (group := await asyncio.wrap_future(self._start_taking())) is not None:
                yield group
            self._raise_error()
        finally:
            self.close()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _start_taking(self) -> "Future[CompleteGroup | None]":
        taking = self._take()
        try:
            return asyncio.run_coroutine_threadsafe(taking, self._session._loop)
        except RuntimeError as error:
            taking.close()
            raise StartupError("The session has ended.") from error

    # In the thread

    async def _take(self) -> CompleteGroup | None:
        self._send_weights()
        while True:
            if (group := self._next_ready()) is not None:
                return group
            if self._error is not None or self._is_done or self._is_closed:
                return None  # the error is raised by who waits: one such as SystemExit would end this thread
            if self._session._has_ended:
                raise StartupError("The session has ended.")
            self._changed.clear()
            await self._changed.wait()

    def _next_ready(self) -> CompleteGroup | None:
        version = self._session.version
        while self._ready:
            number, records = self._ready.popleft()
            begun = self._state.groups.get(number)
            if begun is None or is_stale(begun.version, version, self._options):
                continue  # the process drops it, too
            row = self._rows[begun.source, begun.row]
            self._forget(number)
            self._send(Message.TAKE, number)
            return CompleteGroup(number, begun.source, row, records, begun.version, version - begun.version)
        return None

    def _send(self, kind: Message, *rest: Any, body: bytes = b"") -> None:
        self._session._send([kind, self._number, *rest], body)

    def _open(self) -> None:
        self._session._streams[self._number] = self
        try:
            for name, reader in self._readers.items():
                needed = {row for source, row in self._state.needed() if source == name}
                count = self._read[name] = self._state.read.get(name, 0)
                for index, row in enumerate(islice(reader, count)):
                    if index in needed:
                        self._add(name, index, row)
            if missing := sorted(self._state.needed() - self._orders.keys()):
                source, index = missing[0]
                message = f"The state needs row {index} of source '{source}', which is not there or cannot be sent."
                raise ConfigError(f"{message} Pass the same rows in the same order.")
        except BaseException as error:
            self._fail(error)
            self._is_closed = True
            del self._session._streams[self._number]
            return
        self._send_open()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._send(Message.CLOSE)
            self._changed.set()

    def _fail(self, error: BaseException) -> None:
        """Raise the error of a user's iterator or filter where groups are taken."""
        self._error = error
        self._changed.set()

    def _send_open(self) -> None:
        """Open the stream in the process, from what is known here."""
        self._is_done = False
        self._state.version = self._session.version
        sources = {
            name: {"weight": self._weights[name], "max_in_flight": source.max_in_flight}
            for name, source in self._sources.items()
        }
        needed = sorted(self._state.needed() & self._orders.keys())
        complete = [(number, len(records)) for number, records in self._ready]
        self._send_rows(Message.OPEN, needed, asdict(self._options), sources, self._state.as_json(), complete)
        ahead = sorted(key for key in self._orders if key[1] >= self._state.read.get(key[0], 0))
        if ahead:
            self._send_rows(Message.ROWS, ahead, [])

    def _send_rows(self, kind: Message, keys: list[tuple[str, int]], *head: Any) -> None:
        rows = [(*key, self._orders[key][0], len(self._orders[key][1])) for key in keys]
        self._send(kind, *head, *rows, body=b"".join(self._orders[key][1] for key in keys))

    def _send_weights(self) -> None:
        try:
            check_sources(self._sources)
        except ConfigError as error:
            self._fail(error)
            return
        weights = {name: source.weight for name, source in self._sources.items()}
        if weights != self._weights:
            self._weights, self._is_done = weights, False
            self._send(Message.WEIGHTS, weights)

    def _add(self, source: str, index: int, row: Any) -> bool:
        """Keep a row. False for one that cannot be sent."""
        try:
            sent = trainer_row(row)
        except RolloutError as error:
            logger.warning("row %d of source '%s' is skipped: %s", index, source, error)
            self._skipped[source] += 1
            return False
        self._rows[source, index], self._orders[source, index] = row, (sent.agent, sent.body)
        return True

    def _forget(self, number: int, *, is_tried_again: bool = False) -> None:
        begun = self._state.end(number, is_tried_again=is_tried_again)
        if begun is not None and not is_tried_again:
            self._rows.pop((begun.source, begun.row), None)
            self._orders.pop((begun.source, begun.row), None)

    def _on_frame(self, kind: int, rest: list[Any], body: bytes) -> None:
        if kind == Message.BEGUN:
            self._state.begin(Begun(*rest[0]))
        elif kind == Message.GROUP:
            self._on_group(*rest, body=body)
        elif kind == Message.DROPPED:
            number, reason = rest
            self._forget(number, is_tried_again=reason == "stale")
        elif kind == Message.WANT:
            self._read_ahead(*rest)
        elif kind == Message.DONE:
            (self._is_done,) = rest
        elif kind == Message.STATS:
            (self._stats,) = rest
            for source, count in self._skipped.items():
                self._stats["dropped"].setdefault(source, {})["invalid_row"] = count
            if self._is_closed:
                self._session._streams.pop(self._number, None)
            self._reply_stats()
        self._changed.set()

    def _reply_stats(self) -> None:
        asked, self._asked = self._asked, []
        for each in asked:
            each.set_result(self._stats)

    def _on_group(self, number: int, *sizes: int, body: bytes) -> None:
        ends = [*itertools.accumulate(sizes)]
        records = [read_record(body[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        try:
            is_kept = self._keep is None or self._keep(records)
        except BaseException as error:  # such as SystemExit, which would end the thread
            begun = self._state.groups.get(number)
            if begun is not None:
                error.add_note(f"It was raised by `keep` for group {number}: row {begun.row} of '{begun.source}'.")
            self._fail(error)
            return
        if is_kept:
            self._ready.append((number, records))
        else:
            self._send(Message.DROP, number)

    def _read_ahead(self, source: str, count: int) -> None:
        has_more, rows = True, list[tuple[str, int]]()
        while len(rows) < count:
            try:
                row = next(self._readers[source])
            except StopIteration:
                has_more = False
                break
            except BaseException as error:
                error.add_note(f"It was raised by the rows of source '{source}', after row {self._read[source] - 1}.")
                self._fail(error)
                return
            index = self._read[source]
            self._read[source] = index + 1
            if self._add(source, index, row):
                rows.append((source, index))
        self._send_rows(Message.ROWS, rows, [] if has_more else [source])
