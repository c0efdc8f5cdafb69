"""Decide which rollout of which group starts next, and what becomes of every group.

A state machine without I/O and without a clock: the caller passes the time in, starts and aborts what `poll` says, and
reports what came of it. A group leaves in exactly one way: complete, or dropped for a reason that is counted."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from nemo_gym.errors import ConfigError

OnLost = Literal["retry", "shrink", "drop"]
DropReason = Literal["no_signal", "lost", "deadline", "stale"]


@dataclass
class Source:
    """Rows of one environment. Change `weight` at any time, as in a curriculum: it holds for groups not yet begun."""

    rows: Iterable[Any]
    weight: float = 1.0
    """The share of groups, relative to the other sources. 0: none for now."""
    max_in_flight: int | None = None
    """Upper bound for rollouts of this source in flight."""


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """How groups are made."""

    group_size: int = 16
    over_sample: int = 0
    """Start this many rollouts more for each group. The first `group_size` to complete are the group, and the others
    are aborted."""
    max_in_flight: int = 256
    """Upper bound for rollouts in flight. Those of complete groups that nobody has taken count too."""
    keep: Callable[[list[Any]], bool] | None = None
    """Drop a group for whose results this is False, such as one without signal."""
    min_group: int = 2
    """The smallest size of a group that was shrunk, by `on_lost` or the deadline."""
    max_staleness: int | None = None
    """Drop a group whose oldest rollout was begun more than this many policy versions ago. Its row is tried again."""
    hedge_after_s: float | None = None
    """Start every rollout that its group still waits for after this long a second time. The first one counts."""
    deadline_s: float | None = None
    """End the rollouts that a group still waits for after this long."""
    on_lost: OnLost = "retry"
    """What becomes of a group one of whose rollouts has no result: it gets another rollout, gets smaller, or is
    dropped. A group that has lost more than `group_size` rollouts is dropped in any case."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_group <= max(2, self.group_size) or self.group_size < 1 or self.over_sample < 0:
            sizes = f"group_size={self.group_size}, min_group={self.min_group}, over_sample={self.over_sample}"
            raise ConfigError(f"Found {sizes}; expected 1 <= min_group <= group_size and over_sample >= 0.")
        if self.max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {self.max_in_flight}; expected at least 1.")


class Start(NamedTuple):
    """A rollout to start."""

    id: int
    group: int
    slot: int
    """Its place in the group. A rollout that replaces or hedges another one has the same."""
    source: str
    row: Any


class Actions(NamedTuple):
    """What to do now."""

    start: list[Start]
    abort: list[int]
    """Ids of rollouts whose results nobody needs any more."""


class CompleteGroup(NamedTuple):
    """A group for the trainer."""

    number: int
    source: str
    row: Any
    results: list[Any]
    """In the order in which they completed."""
    version: int
    """The policy version when its oldest rollout was begun."""
    staleness: int
    """How many versions ago that was."""


@dataclass(slots=True)
class _Running:
    group: "_Group"
    slot: int


@dataclass(slots=True)
class _Group:
    number: int
    source: "_SourceState"
    row: Any
    size: int
    begun_at: float
    version: int
    waiting: deque[int]
    """Slots of rollouts that are not started yet."""
    running: dict[int, _Running] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    lost: int = 0
    is_hedged: bool = False

    @property
    def expected(self) -> int:
        """How many results it has or may still get."""
        return len({*self.results, *self.waiting, *(each.slot for each in self.running.values())})


@dataclass(slots=True)
class _SourceState:
    name: str
    source: Source
    rows: Iterator[Any]
    read: int = 0
    """How many rows were read."""
    again: deque[Any] = field(default_factory=deque)
    """Rows of groups that became too old."""
    has_more: bool = True
    in_flight: int = 0
    virtual_time: float = 0.0
    """Grows by 1 / weight with each group: the source where it is smallest is next."""

    def next_row(self) -> Any:
        """A row to try again, or else a new one. Raises StopIteration if there is none."""
        if self.again:
            return self.again.popleft()
        row = next(self.rows)
        self.read += 1
        return row

    @property
    def has_room(self) -> bool:
        limit = self.source.max_in_flight
        return limit is None or self.in_flight < limit


class GroupScheduler:
    """Groups of several sources, from their first rollout to their end."""

    def __init__(self, sources: dict[str, Source], options: GroupOptions, *, version: int = 0) -> None:
        self.options, self.version = options, version
        self._sources = [_SourceState(name, source, iter(source.rows)) for name, source in sources.items()]
        self._groups: dict[int, _Group] = {}
        self._running: dict[int, _Running] = {}
        self._ready: deque[_Group] = deque()
        self._aborts: list[int] = []
        self._next_group = self._next_id = 0
        self._counts: Counter[str] = Counter()
        self._dropped: dict[str, Counter[str]] = {name: Counter() for name in sources}

    # What happens

    def poll(self, now: float) -> Actions:
        """Return what to start and to abort at this time."""
        for group in [*self._groups.values()]:
            self._check_time(group, now)
        starts = []
        while (start := self._next_start(now)) is not None:
            starts.append(start)
        aborts, self._aborts = self._aborts, []
        return Actions(starts, aborts)

    def finish(self, rollout: int, result: Any) -> None:
        """Take in the result of a rollout. One that was aborted counts no more."""
        running = self._end(rollout)
        if running is None or running.slot in running.group.results:
            return
        group = running.group
        group.results[running.slot] = result
        self._abort([twin for twin, other in group.running.items() if other.slot == running.slot])
        self._complete_if_full(group)

    def lose(self, rollout: int) -> None:
        """Take in that a rollout has no result."""
        running = self._end(rollout)
        if running is None:
            return
        group, options = running.group, self.options
        self._counts["rollouts_lost"] += 1
        group.lost += 1
        if group.expected >= group.size:
            return
        if options.on_lost == "drop" or group.lost > options.group_size:
            self._drop(group, "lost")
        elif options.on_lost == "retry":
            group.waiting.append(running.slot)
        else:
            self._shrink(group, group.expected, "lost")

    def set_version(self, version: int) -> None:
        """The policy has changed. Groups that are too old now are dropped."""
        self.version = version
        if self.options.max_staleness is None:
            return
        for group in [*self._groups.values(), *self._ready]:
            if version - group.version > self.options.max_staleness:
                group.source.again.append(group.row)
                self._drop(group, "stale")

    def take(self) -> CompleteGroup | None:
        """The next complete group, in order of completion."""
        if not self._ready:
            return None
        group = self._ready.popleft()
        self._counts["complete"] += 1
        self._counts["shrunk"] += len(group.results) < self.options.group_size
        staleness, results = self.version - group.version, [*group.results.values()]
        return CompleteGroup(group.number, group.source.name, group.row, results, group.version, staleness)

    # What is known

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def is_done(self) -> bool:
        """True if all rows were read and no group is left. A source of weight 0 has no rows for now."""
        return not self._groups and not self._ready and not any(map(_may_begin, self._sources))

    def next_time(self) -> float | None:
        """When `poll` has something to do even if nothing happens before."""
        limits = (self.options.deadline_s, self.options.hedge_after_s)
        times = [
            group.begun_at + limit
            for group in self._groups.values()
            for limit, is_over in zip(limits, (False, group.is_hedged), strict=True)
            if limit is not None and not is_over
        ]
        return min(times, default=None)

    def stats(self) -> dict[str, Any]:
        """Counts of groups and rollouts, and of dropped groups by source and reason."""
        dropped = {name: dict(counts) for name, counts in self._dropped.items() if counts}
        now = {"open": len(self._groups), "ready": len(self._ready), "in_flight": len(self._running)}
        return {**self._counts, **now, "dropped": dropped}

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs: the groups that are begun and not taken go on after `restore`."""
        groups = [
            (each.number, each.source.name, each.row, each.version) for each in (*self._ready, *self._groups.values())
        ]
        sources = {each.name: {"read": each.read, "again": [*each.again]} for each in self._sources}
        return {"next_group": self._next_group, "version": self.version, "sources": sources, "groups": groups}

    def restore(self, state: dict[str, Any], now: float) -> None:
        """Go on from a state. Sources must have the same rows in the same order. Groups keep their numbers, so that a
        call log knows their rollouts."""
        self._next_group, self.version = state["next_group"], state["version"]
        by_name = {each.name: each for each in self._sources}
        for name, saved in state["sources"].items():
            source = by_name[name]
            source.read = saved["read"]
            source.again.extend(saved["again"])
            next(islice(source.rows, source.read, source.read), None)  # skip them
        for number, name, row, version in state["groups"]:
            self._begin(by_name[name], row, now, number=number, version=version)

    # How it is decided

    def _next_start(self, now: float) -> Start | None:
        options = self.options
        if len(self._running) + options.group_size * len(self._ready) >= options.max_in_flight:
            return None
        for group in self._groups.values():  # those that are begun first, so that they complete
            if group.waiting and group.source.has_room:
                return self._start(group)
        begun = self._begin_next(now)
        return None if begun is None else self._start(begun)

    def _begin_next(self, now: float) -> _Group | None:
        """Begin a group of the source that is furthest behind its share."""
        while True:
            sources = [each for each in self._sources if _may_begin(each) and each.has_room]
            if not sources:
                return None
            source = min(sources, key=lambda each: each.virtual_time)
            try:
                row = source.next_row()
            except StopIteration:
                source.has_more = False
                continue
            behind = min(each.virtual_time for each in self._sources if _may_begin(each))
            source.virtual_time = max(source.virtual_time, behind) + 1 / source.source.weight
            return self._begin(source, row, now, number=self._next_group, version=self.version)

    def _begin(self, source: _SourceState, row: Any, now: float, *, number: int, version: int) -> _Group:
        self._next_group = max(self._next_group, number + 1)
        options = self.options
        slots = deque(range(options.group_size + options.over_sample))
        group = self._groups[number] = _Group(number, source, row, options.group_size, now, version, slots)
        self._counts["begun"] += 1
        return group

    def _start(self, group: _Group) -> Start:
        slot, rollout = group.waiting.popleft(), self._next_id
        self._next_id += 1
        self._running[rollout] = group.running[rollout] = _Running(group, slot)
        group.source.in_flight += 1
        self._counts["rollouts_started"] += 1
        return Start(rollout, group.number, slot, group.source.name, group.row)

    def _check_time(self, group: _Group, now: float) -> None:
        hedge_after_s, deadline_s = self.options.hedge_after_s, self.options.deadline_s
        if deadline_s is not None and now >= group.begun_at + deadline_s:
            self._shrink(group, len(group.results), "deadline")
        elif hedge_after_s is not None and now >= group.begun_at + hedge_after_s and not group.is_hedged:
            group.is_hedged = True
            slots = [each.slot for each in group.running.values()]
            group.waiting.extend(slots)
            self._counts["rollouts_hedged"] += len(slots)

    def _shrink(self, group: _Group, size: int, reason: DropReason) -> None:
        """Make do with a smaller group, if it is not too small."""
        if size < min(self.options.min_group, self.options.group_size):
            self._drop(group, reason)
            return
        group.size = size
        self._complete_if_full(group)

    def _complete_if_full(self, group: _Group) -> None:
        if len(group.results) < group.size:
            return
        self._forget(group)
        if self.options.keep is None or self.options.keep([*group.results.values()]):
            self._ready.append(group)
        else:
            self._count_dropped(group, "no_signal")

    def _drop(self, group: _Group, reason: DropReason) -> None:
        self._forget(group)
        self._count_dropped(group, reason)

    def _forget(self, group: _Group) -> None:
        """Let a group be no longer open, nor ready."""
        if self._groups.pop(group.number, None) is None:
            self._ready.remove(group)
        group.waiting.clear()
        self._abort([*group.running])

    def _count_dropped(self, group: _Group, reason: DropReason) -> None:
        self._counts["dropped_groups"] += 1
        self._dropped[group.source.name][reason] += 1

    def _abort(self, rollouts: Sequence[int]) -> None:
        for rollout in rollouts:
            self._end(rollout)
            self._aborts.append(rollout)
        self._counts["rollouts_aborted"] += len(rollouts)

    def _end(self, rollout: int) -> _Running | None:
        running = self._running.pop(rollout, None)
        if running is not None:
            del running.group.running[rollout]
            running.group.source.in_flight -= 1
        return running


def _may_begin(source: _SourceState) -> bool:
    return source.source.weight > 0 and (source.has_more or bool(source.again))
