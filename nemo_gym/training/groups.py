"""Decide which rollout of which group starts next, and what becomes of every group.

A state machine without I/O and without a clock: the caller passes rows and the time in, starts and aborts what `poll`
says, and reports what came of it. A group leaves in exactly one way: taken, or dropped for a reason that is counted.
Rows are known by their index in their source."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from nemo_gym.errors import ConfigError

NOW = ("open", "ready", "in_flight")
"""The statistics of groups that are about this moment: groups that are not complete, groups that wait for the trainer,
and rollouts."""
OnLost = Literal["retry", "shrink", "drop"]
DropReason = Literal["no_signal", "lost", "deadline", "stale"]


@dataclass
class Source:
    """Rows of one environment. Change `weight` at any time, as in a curriculum: from the next group that you take or
    version that you set on, it holds for groups that begin. Rows are read ahead, as many as may be begun meanwhile."""

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
    """Upper bound for rollouts in flight."""
    max_ready: int | None = None
    """Begin no more groups while this many complete ones wait for the trainer. By default as many as there may be in
    flight. More of them bridge longer steps of the trainer, and are older when they are taken."""
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
        counts = {"group_size": self.group_size, "max_in_flight": self.max_in_flight, "min_group": self.min_group}
        for name, count in {**counts, "max_ready": self.max_ready}.items():
            if not _is_count(count) and (name, count) != ("max_ready", None):
                raise ConfigError(f"{name} is {count!r}; expected an integer of at least 1.")
        for name in ("hedge_after_s", "deadline_s", "max_staleness"):
            limit = getattr(self, name)
            if limit is not None and not (isinstance(limit, int | float) and 0 <= limit < math.inf):
                raise ConfigError(f"{name} is {limit!r}; expected a finite number from 0.")
        if self.min_group > max(2, self.group_size) or not _is_count(self.over_sample + 1):
            sizes = f"group_size={self.group_size}, min_group={self.min_group}, over_sample={self.over_sample}"
            raise ConfigError(f"Found {sizes}; expected 1 <= min_group <= group_size and over_sample >= 0.")
        if self.on_lost not in get_args(OnLost):
            raise ConfigError(f"on_lost is {self.on_lost!r}; expected one of {', '.join(get_args(OnLost))}.")

    @property
    def ready_limit(self) -> int:
        return max(1, self.max_in_flight // self.group_size) if self.max_ready is None else self.max_ready


def check_sources(sources: Mapping[str, Source]) -> None:
    """Raise ConfigError for sources that no group could be made of."""
    if not sources:
        raise ConfigError("There is no source of rows.")
    for name, source in sources.items():
        limit = source.max_in_flight
        is_weight = isinstance(source.weight, int | float) and 0 <= source.weight < math.inf
        if not is_weight or not (limit is None or _is_count(limit)):
            found = f"Source '{name}' has weight={source.weight}, max_in_flight={limit}"
            raise ConfigError(f"{found}; expected a finite weight from 0 and a limit of at least 1.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1


class Start(NamedTuple):
    """A rollout to start."""

    id: int
    group: int
    slot: int
    """Its place in the group. A rollout that replaces or hedges another one has the same."""
    source: str
    row: int
    version: int
    """The policy version when its group was begun."""


class Begun(NamedTuple):
    """A group that begins."""

    group: int
    source: str
    row: int
    version: int
    """The policy version now."""


class Completed(NamedTuple):
    """A group that has all its results, in the order in which they completed. Until it is taken or dropped, it counts
    for `max_ready`."""

    group: int
    results: list[Any]


class Dropped(NamedTuple):
    """A group that is given up."""

    group: int
    reason: DropReason


class Actions(NamedTuple):
    """What to do now, and what became of groups since the last time, in order."""

    start: list[Start]
    abort: list[int]
    """Ids of rollouts whose results nobody needs any more."""
    events: list[Begun | Completed | Dropped]


@dataclass(slots=True)
class _Running:
    group: "_Group"
    slot: int


@dataclass(slots=True)
class _Group:
    number: int
    source: "_SourceState"
    row: int
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
    weight: float
    max_in_flight: int | None
    rows: deque[int] = field(default_factory=deque)
    """Those that were passed in and are not begun."""
    again: deque[int] = field(default_factory=deque)
    """Rows of groups that became too old."""
    has_more: bool = True
    in_flight: int = 0
    virtual_time: float = 0.0
    """Grows by 1 / weight with each group: the source where it is smallest is next."""

    @property
    def has_room(self) -> bool:
        return self.max_in_flight is None or self.in_flight < self.max_in_flight

    @property
    def has_rows(self) -> bool:
        return bool(self.rows or self.again)

    @property
    def may_begin(self) -> bool:
        return self.weight > 0 and (self.has_more or self.has_rows)


class GroupScheduler:
    """Groups of several sources, from their first rollout to their end."""

    def __init__(self, sources: dict[str, Source], options: GroupOptions, *, version: int = 0) -> None:
        self.options, self.version = options, version
        self._sources = {
            name: _SourceState(name, source.weight, source.max_in_flight) for name, source in sources.items()
        }
        self._groups: dict[int, _Group] = {}
        self._running: dict[int, _Running] = {}
        self._ready: dict[int, _Group] = {}
        """Groups that are complete and neither taken nor dropped."""
        self._actions = Actions([], [], [])
        self._next_group = self._next_id = 0
        self._counts: Counter[str] = Counter()
        self._dropped: dict[str, Counter[str]] = {name: Counter() for name in sources}
        self._lost: dict[str, Counter[str]] = {name: Counter() for name in sources}

    # What happens

    def add_rows(self, source: str, rows: Iterable[int], *, has_more: bool) -> None:
        """Add rows of a source, by their index, and say whether more will follow."""
        state = self._sources[source]
        state.rows.extend(rows)
        state.has_more = has_more

    def set_weights(self, weights: dict[str, float]) -> None:
        """Change the shares of sources."""
        for name, weight in weights.items():
            self._sources[name].weight = weight

    def poll(self, now: float) -> Actions:
        """Return what to do at this time."""
        for group in [*self._groups.values()]:
            self._check_time(group, now)
        while (start := self._next_start(now)) is not None:
            self._actions.start.append(start)
        actions, self._actions = self._actions, Actions([], [], [])
        return actions

    def finish(self, rollout: int, result: Any) -> None:
        """Take in the result of a rollout. One that was aborted counts no more."""
        running = self._end(rollout)
        if running is None or running.slot in running.group.results:
            return
        group = running.group
        group.results[running.slot] = result
        self._abort([twin for twin, other in group.running.items() if other.slot == running.slot])
        self._complete_if_full(group)

    def lose(self, rollout: int, cause: str = "internal") -> None:
        """Take in that a rollout has no result, and why."""
        running = self._end(rollout)
        if running is None:
            return
        group, options = running.group, self.options
        self._counts["rollouts_lost"] += 1
        self._lost[group.source.name][cause] += 1
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
        """The policy has changed. Groups that are too old now are dropped, and their rows tried again."""
        self.version = version
        for group in [*self._groups.values(), *self._ready.values()]:
            if is_stale(group.version, version, self.options):
                group.source.again.append(group.row)
                self._drop(group, "stale")

    def take(self, number: int) -> None:
        """The trainer has taken a complete group."""
        if (group := self._ready.pop(number, None)) is not None:
            self._counts["complete"] += 1
            self._counts["shrunk"] += len(group.results) < self.options.group_size

    def drop(self, number: int, reason: DropReason = "no_signal") -> None:
        """The trainer does not want a complete group."""
        if (group := self._ready.get(number)) is not None:
            self._drop(group, reason)

    # What is known

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def is_done(self) -> bool:
        """True if no group is left and no row will come. A source of weight 0 has no rows for now."""
        return not self._groups and not self._ready and not any(each.may_begin for each in self._sources.values())

    def wanted(self) -> dict[str, int]:
        """How many more rows of each source to add, so that the trainer need not be asked for a while."""
        reserve = 2 + self.options.max_in_flight // self.options.group_size + self.options.ready_limit
        return {
            each.name: reserve - len(each.rows)
            for each in self._sources.values()
            if each.has_more and len(each.rows) <= reserve // 2
        }

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
        """Counts of groups and rollouts; of dropped groups by source and reason, of lost rollouts by source and
        cause."""
        dropped, lost = (
            {name: dict(counts) for name, counts in counted.items() if counts}
            for counted in (self._dropped, self._lost)
        )
        now = dict(zip(NOW, (len(self._groups), len(self._ready), len(self._running)), strict=True))
        return {**self._counts, **now, "dropped": dropped, "lost": lost}

    def restore(self, state: "GroupState", now: float, complete: Mapping[int, int] | None = None) -> None:
        """Go on from a state: begin its groups again, under their numbers. Those that the trainer has are `complete`,
        with their sizes. Then add the rows that it has not read."""
        self._next_group, self.version = state.next_group, state.version
        for name, rows in state.again.items():
            self._sources[name].again.extend(rows)
        for begun in state.groups.values():
            source, number = self._sources[begun.source], begun.group
            group = self._begin(source, begun.row, now, number=number, version=begun.version)
            if complete and number in complete:
                group.waiting.clear()
                del self._groups[number]
                group.results = dict.fromkeys(range(complete[number]))
                self._ready[number] = group
        self._counts["begun"] = 0  # they were counted when they were begun
        self.set_version(state.version)

    # How it is decided

    def _next_start(self, now: float) -> Start | None:
        if len(self._running) >= self.options.max_in_flight:
            return None
        for group in self._groups.values():  # those that are begun first, so that they complete
            if group.waiting and group.source.has_room:
                return self._start(group)
        begun = self._begin_next(now) if len(self._ready) < self.options.ready_limit else None
        return None if begun is None else self._start(begun)

    def _begin_next(self, now: float) -> _Group | None:
        """Begin a group of the source that is furthest behind its share."""
        open_sources = [each for each in self._sources.values() if each.may_begin]
        sources = [each for each in open_sources if each.has_rows and each.has_room]
        if not sources:
            return None
        source = min(sources, key=lambda each: each.virtual_time)
        behind = min(each.virtual_time for each in open_sources)
        source.virtual_time = max(source.virtual_time, behind) + 1 / source.weight
        row = (source.again or source.rows).popleft()
        return self._begin(source, row, now, number=self._next_group, version=self.version)

    def _begin(self, source: _SourceState, row: int, now: float, *, number: int, version: int) -> _Group:
        self._next_group = max(self._next_group, number + 1)
        options = self.options
        slots = deque(range(options.group_size + options.over_sample))
        group = self._groups[number] = _Group(number, source, row, options.group_size, now, version, slots)
        self._counts["begun"] += 1
        self._actions.events.append(Begun(number, source.name, row, version))
        return group

    def _start(self, group: _Group) -> Start:
        slot, rollout = group.waiting.popleft(), self._next_id
        self._next_id += 1
        self._running[rollout] = group.running[rollout] = _Running(group, slot)
        group.source.in_flight += 1
        self._counts["rollouts_started"] += 1
        return Start(rollout, group.number, slot, group.source.name, group.row, group.version)

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
        if len(group.results) >= group.size:
            self._forget(group)
            self._ready[group.number] = group
            self._actions.events.append(Completed(group.number, [*group.results.values()]))

    def _drop(self, group: _Group, reason: DropReason) -> None:
        self._forget(group)
        self._counts["dropped_groups"] += 1
        self._dropped[group.source.name][reason] += 1
        self._actions.events.append(Dropped(group.number, reason))

    def _forget(self, group: _Group) -> None:
        """Let a group be no longer open, nor ready."""
        if self._groups.pop(group.number, None) is None:
            del self._ready[group.number]
        group.waiting.clear()
        self._abort([*group.running])

    def _abort(self, rollouts: Sequence[int]) -> None:
        for rollout in rollouts:
            self._end(rollout)
            self._actions.abort.append(rollout)
        self._counts["rollouts_aborted"] += len(rollouts)

    def _end(self, rollout: int) -> _Running | None:
        running = self._running.pop(rollout, None)
        if running is not None:
            del running.group.running[rollout]
            running.group.source.in_flight -= 1
        return running


def is_stale(begun: int, now: int, options: GroupOptions) -> bool:
    """True if a group that was begun under policy version `begun` is too old under `now`."""
    return options.max_staleness is not None and now - begun > options.max_staleness


@dataclass
class GroupState:
    """What a checkpoint needs: how many rows were read, and the groups that are begun and not taken. They go on after
    a restore."""

    version: int = 0
    next_group: int = 0
    read: dict[str, int] = field(default_factory=dict)
    """How many rows of each source were begun or skipped."""
    again: dict[str, list[int]] = field(default_factory=dict)
    """Rows of groups that became too old."""
    groups: dict[int, Begun] = field(default_factory=dict)

    def begin(self, begun: Begun) -> None:
        """Take in that a group has begun."""
        self.groups[begun.group] = begun
        self.next_group = max(self.next_group, begun.group + 1)
        self.read[begun.source] = max(self.read.get(begun.source, 0), begun.row + 1)
        if begun.row in (again := self.again.get(begun.source, [])):
            again.remove(begun.row)

    def end(self, group: int, *, is_tried_again: bool = False) -> Begun | None:
        """Take in that a group was taken or dropped. Returns what it was."""
        begun = self.groups.pop(group, None)
        if begun is not None and is_tried_again:
            self.again.setdefault(begun.source, []).append(begun.row)
        return begun

    def needed(self) -> set[tuple[str, int]]:
        """The rows that were read and are still needed, by source and index."""
        open_groups = {(each.source, each.row) for each in self.groups.values()}
        return open_groups | {(source, row) for source, rows in self.again.items() for row in rows}

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "groups": [[*each] for each in self.groups.values()]}

    @classmethod
    def of_json(cls, state: Mapping[str, Any]) -> "GroupState":
        try:
            groups = [Begun(*each) for each in state["groups"]]
            return cls(**{**state, "groups": {each.group: each for each in groups}})
        except (KeyError, TypeError) as error:
            raise ConfigError(f"The state of groups is {state!r:.200}; expected what `state()` returned.") from error
