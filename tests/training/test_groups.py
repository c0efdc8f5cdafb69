"""The laws of groups: limits, staleness, shares, and that no group is lost or doubled, whatever happens."""

import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from nemo_gym.training.groups import Begun, Completed, Dropped, GroupOptions, GroupScheduler, GroupState, Source, Start


class Taken(NamedTuple):
    """A group as the trainer gets it."""

    begun: Begun
    results: list[Any]
    version: int


class Run:
    """Drives a scheduler as a session would, with results at random, and mirrors its state as a trainer does."""

    def __init__(
        self,
        sources: dict[str, Source],
        options: GroupOptions,
        chance: random.Random,
        *,
        lost_share: float = 0.0,
        keep: Callable[[list[Any]], bool] | None = None,
        state: GroupState | None = None,
    ) -> None:
        self.scheduler, self.chance, self.lost_share, self.keep = (
            GroupScheduler(sources, options),
            chance,
            lost_share,
            keep,
        )
        self.state = state or GroupState()
        self.rows = {name: enumerate(source.rows) for name, source in sources.items()}
        for name, rows in self.rows.items():
            next(islice(rows, self.state.read.get(name, 0), self.state.read.get(name, 0)), None)
        self.now = 0.0
        self.in_flight: dict[int, Start] = {}
        self.ready: list[Completed] = []
        self.taken: list[Taken] = []
        self.most = 0
        if state is not None:
            self.scheduler.restore(state, self.now)

    def poll(self) -> None:
        for name, count in self.scheduler.wanted().items():
            rows = [index for index, _ in islice(self.rows[name], count)]
            self.scheduler.add_rows(name, rows, has_more=len(rows) == count)
        actions = self.scheduler.poll(self.now)
        for event in actions.events:
            self.report(event)
        for rollout in actions.abort:
            self.in_flight.pop(rollout)
        for start in actions.start:
            assert start.id not in self.in_flight
            self.in_flight[start.id] = start
        self.most = max(self.most, len(self.in_flight))
        assert len(self.in_flight) == self.scheduler.in_flight

    def report(self, event: Begun | Completed | Dropped) -> None:
        if isinstance(event, Begun):
            self.state.begin(event)
        elif isinstance(event, Dropped):
            self.state.end(event.group, is_tried_again=event.reason == "stale")
        elif self.keep is None or self.keep(event.results):
            self.ready.append(event)
        else:
            self.scheduler.drop(event.group)

    def end_one(self) -> None:
        """One of the rollouts in flight ends."""
        if not self.in_flight:
            return
        rollout = self.chance.choice([*self.in_flight])
        start = self.in_flight.pop(rollout)
        if self.chance.random() < self.lost_share:
            self.scheduler.lose(rollout)
        else:
            self.scheduler.finish(rollout, (start.group, start.slot, self.chance.randint(0, 1)))

    def take(self) -> None:
        self.poll()
        for number, results in self.ready:
            if (begun := self.state.end(number)) is not None:
                self.scheduler.take(number)
                self.taken.append(Taken(begun, results, self.scheduler.version))
        self.ready = []

    def to_the_end(self) -> None:
        for _ in range(100_000):
            self.take()
            if self.scheduler.is_done:
                return
            self.now += 1.0
            self.end_one()
        raise AssertionError(f"not done: {self.scheduler.stats()}")


def differ(results: list[Any]) -> bool:
    return len({reward for _group, _slot, reward in results}) > 1


options = st.builds(
    GroupOptions,
    group_size=st.integers(2, 5),
    over_sample=st.integers(0, 2),
    max_in_flight=st.integers(1, 12),
    max_staleness=st.sampled_from([None, 0, 2]),
    hedge_after_s=st.sampled_from([None, 5.0]),
    deadline_s=st.sampled_from([None, 9.0]),
    on_lost=st.sampled_from(["retry", "shrink", "drop"]),
)


@given(
    options, st.sampled_from([None, differ]), st.integers(0, 12), st.integers(0, 12), st.randoms(use_true_random=False)
)
@settings(max_examples=200, deadline=None)
def test_every_row_is_delivered_once_or_dropped_for_a_reason(
    chosen: GroupOptions, keep: Any, first: int, second: int, chance: random.Random
) -> None:
    sources = {"a": Source([("a", row) for row in range(first)], max_in_flight=3), "b": Source(range(second))}
    run = Run(sources, chosen, chance, lost_share=0.2, keep=keep)
    run.to_the_end()
    stats = run.scheduler.stats()
    final = sum((Counter(each) for each in stats["dropped"].values()), Counter())
    rows = [(group.begun.source, group.begun.row) for group in run.taken]
    assert len(rows) == len(set(rows))
    assert len(rows) + final.total() - final["stale"] == first + second
    assert stats.get("begun", 0) == len(rows) + final.total()
    for group in run.taken:
        slots = [slot for _group, slot, _reward in group.results]
        assert len(slots) == len(set(slots)) <= chosen.group_size
        assert len(slots) == chosen.group_size or len(slots) >= chosen.min_group
        assert {number for number, _slot, _reward in group.results} == {group.begun.group}
        assert keep is None or keep(group.results)
    assert not run.in_flight


@given(options, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_limits_are_never_exceeded(chosen: GroupOptions, chance: random.Random) -> None:
    sources = {"a": Source(range(20), max_in_flight=2), "b": Source(range(20), weight=3.0)}
    run = Run(sources, chosen, chance, lost_share=0.1)
    for _ in range(300):
        run.poll()
        by_source = Counter(start.source for start in run.in_flight.values())
        assert run.most <= chosen.max_in_flight
        assert by_source["a"] <= 2
        run.now += 1.0
        run.end_one()
        if chance.random() < 0.3:
            run.take()


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
def test_staleness_is_never_broken_in_a_thousand_updates(max_staleness: int) -> None:
    chance = random.Random(max_staleness)
    chosen = GroupOptions(group_size=4, max_in_flight=32, max_staleness=max_staleness, over_sample=1)
    run = Run({"a": Source(iter(int, 1)), "b": Source(iter(int, 1))}, chosen, chance, lost_share=0.05)
    oldest: dict[int, int] = {}
    for version in range(1, 1001):
        for _ in range(chance.randint(0, 60)):
            run.poll()
            for start in run.in_flight.values():
                oldest.setdefault(start.group, run.scheduler.version)
            run.end_one()
        taken = len(run.taken)
        run.take()
        for start in run.in_flight.values():
            oldest.setdefault(start.group, run.scheduler.version)
        for group in run.taken[taken:]:
            assert group.begun.version == oldest[group.begun.group]
            assert run.scheduler.version - group.begun.version <= max_staleness
        run.scheduler.set_version(version)
    assert run.taken
    assert run.scheduler.stats()["dropped"]["a"]["stale"] > 0


def test_groups_are_shared_out_by_weight_and_weights_may_change() -> None:
    sources = {"a": Source(iter(int, 1), weight=1.0), "b": Source(iter(int, 1), weight=3.0)}
    run = Run(sources, GroupOptions(group_size=2, max_in_flight=8), random.Random(0))

    def play(groups: int) -> Counter[str]:
        before = len(run.taken)
        while len(run.taken) < before + groups:
            run.poll()
            run.end_one()
            run.take()
        return Counter(group.begun.source for group in run.taken[before:])

    assert 90 <= play(400)["a"] <= 110
    run.scheduler.set_weights({"b": 0.0})
    play(50)
    assert play(100) == {"a": 100}


def one_source(rows: int, **options: Any) -> GroupScheduler:
    scheduler = GroupScheduler({"a": Source(())}, GroupOptions(**options))
    scheduler.add_rows("a", range(rows), has_more=False)
    return scheduler


def test_a_dropped_group_makes_room_for_another_one() -> None:
    scheduler = one_source(3, group_size=2, max_in_flight=2, max_ready=1)
    for start in scheduler.poll(0.0).start:
        scheduler.finish(start.id, 1)
    actions = scheduler.poll(1.0)
    assert (actions.start, actions.events) == ([], [(0, [1, 1])])
    scheduler.drop(0)
    following = scheduler.poll(2.0).start
    assert {start.row for start in following} == {1}
    for result, start in enumerate(following):
        scheduler.finish(start.id, result)
    assert scheduler.poll(3.0).events == [(1, [0, 1])]
    assert scheduler.stats()["dropped"] == {"a": {"no_signal": 1}}


def test_rows_are_wanted_ahead_so_that_nobody_waits_for_the_trainer() -> None:
    scheduler = GroupScheduler({"a": Source(())}, GroupOptions(group_size=4, max_in_flight=32, max_ready=16))
    assert scheduler.wanted() == {"a": 26}
    scheduler.add_rows("a", range(26), has_more=True)
    for wave in range(3):
        starts = scheduler.poll(float(wave)).start
        assert len(starts) == (32 if wave < 2 else 0), "complete groups that nobody takes are bounded"
        for start in starts:
            scheduler.finish(start.id, None)
    assert scheduler.wanted() == {"a": 16}
    scheduler.add_rows("a", (), has_more=False)
    assert scheduler.wanted() == {}


def test_the_first_of_a_rollout_and_its_hedge_counts() -> None:
    scheduler = one_source(1, group_size=2, hedge_after_s=5.0, deadline_s=60.0)
    first, slow = scheduler.poll(0.0).start
    scheduler.finish(first.id, "first")
    assert scheduler.next_time() == 5.0
    (hedge,) = scheduler.poll(5.0).start
    assert hedge.slot == slow.slot
    scheduler.finish(hedge.id, "hedge")
    actions = scheduler.poll(6.0)
    assert (actions.abort, actions.events) == ([slow.id], [(0, ["first", "hedge"])])
    scheduler.finish(slow.id, "too late")
    assert scheduler.poll(7.0).events == []


def test_a_deadline_ends_the_slowest_and_drops_what_is_too_small() -> None:
    scheduler = one_source(2, group_size=3, min_group=2, deadline_s=10.0, max_in_flight=6)
    starts = scheduler.poll(0.0).start
    scheduler.finish(starts[0].id, 0)
    scheduler.finish(starts[1].id, 1)
    scheduler.finish(starts[3].id, 2)
    actions = scheduler.poll(10.0)
    assert sorted(actions.abort) == sorted(start.id for start in (starts[2], *starts[4:]))
    assert actions.events == [(0, [0, 1]), (1, "deadline")]
    assert scheduler.stats()["dropped"] == {"a": {"deadline": 1}}


@pytest.mark.parametrize(("on_lost", "sizes"), [("retry", [3]), ("shrink", [2]), ("drop", [])])
def test_a_lost_rollout_follows_on_lost(on_lost: Any, sizes: list[int]) -> None:
    scheduler = one_source(1, group_size=3, on_lost=on_lost)
    lost, *others = scheduler.poll(0.0).start
    scheduler.lose(lost.id)
    for start in (*others, *scheduler.poll(1.0).start):
        scheduler.finish(start.id, start.slot)
    completed = [event for event in scheduler.poll(2.0).events if isinstance(event, Completed)]
    assert [len(event.results) for event in completed] == sizes


def test_a_row_all_of_whose_rollouts_are_lost_is_dropped_at_last() -> None:
    scheduler = one_source(1, group_size=3)
    while not scheduler.is_done:
        for start in scheduler.poll(0.0).start:
            scheduler.lose(start.id)
    assert scheduler.stats()["rollouts_lost"] == 4
    assert scheduler.stats()["dropped"] == {"a": {"lost": 1}}


def test_a_complete_group_that_the_trainer_has_is_not_made_again() -> None:
    state = GroupState(next_group=2, read={"a": 2}, groups={n: Begun(n, "a", n, 0) for n in (0, 1)})
    scheduler = GroupScheduler({"a": Source(())}, GroupOptions(group_size=3, max_staleness=0))
    scheduler.restore(state, 0.0, {0: 3})
    assert {start.group for start in scheduler.poll(0.0).start} == {1}
    scheduler.set_version(1)
    assert scheduler.poll(1.0).events[:2] == [(1, "stale"), (0, "stale")]


@given(st.integers(0, 60), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_restored_scheduler_makes_what_is_missing(ends: int, chance: random.Random) -> None:
    """Killed anywhere and started again, no group is lost or doubled, and begun groups keep their numbers."""
    chosen = GroupOptions(group_size=2, max_in_flight=6, max_staleness=1)

    def sources() -> dict[str, Source]:
        return {"a": Source([("a", row) for row in range(10)]), "b": Source([("b", row) for row in range(7)])}

    before = Run(sources(), chosen, chance)
    numbers: dict[int, Any] = {}
    for _ in range(ends):
        before.poll()
        numbers |= {start.group: start.row for start in before.in_flight.values()}
        before.end_one()
        if chance.random() < 0.2:
            before.take()
        if chance.random() < 0.1:
            before.scheduler.set_version(before.scheduler.version + 1)
    after = Run(sources(), chosen, chance, state=GroupState.of_json(json.loads(json.dumps(before.state.as_json()))))
    after.to_the_end()
    rows = [(group.begun.source, group.begun.row) for group in (*before.taken, *after.taken)]
    assert sorted(rows) == [("a", row) for row in range(10)] + [("b", row) for row in range(7)]
    assert all(numbers.get(group.begun.group, group.begun.row) == group.begun.row for group in after.taken)


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_group=9"):
        GroupOptions(group_size=4, min_group=9)
