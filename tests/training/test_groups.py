"""The laws of groups: limits, staleness, shares, and that no group is lost or doubled, whatever happens."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from nemo_gym.training.groups import CompleteGroup, GroupOptions, GroupScheduler, Source, Start


class Run:
    """Drives a scheduler as a session would, with results at random."""

    def __init__(self, scheduler: GroupScheduler, chance: random.Random, *, lost_share: float = 0.0) -> None:
        self.scheduler, self.chance, self.lost_share = scheduler, chance, lost_share
        self.now = 0.0
        self.in_flight: dict[int, Start] = {}
        self.taken: list[CompleteGroup] = []
        self.most = 0

    def poll(self) -> None:
        actions = self.scheduler.poll(self.now)
        for rollout in actions.abort:
            self.in_flight.pop(rollout)
        for start in actions.start:
            assert start.id not in self.in_flight
            self.in_flight[start.id] = start
        self.most = max(self.most, len(self.in_flight))
        assert len(self.in_flight) == self.scheduler.in_flight

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
        while (group := self.scheduler.take()) is not None:
            self.taken.append(group)

    def to_the_end(self) -> None:
        for _ in range(100_000):
            self.poll()
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
    keep=st.sampled_from([None, differ]),
    max_staleness=st.sampled_from([None, 0, 2]),
    hedge_after_s=st.sampled_from([None, 5.0]),
    deadline_s=st.sampled_from([None, 9.0]),
    on_lost=st.sampled_from(["retry", "shrink", "drop"]),
)


@given(options, st.integers(0, 12), st.integers(0, 12), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_every_row_is_delivered_once_or_dropped_for_a_reason(
    chosen: GroupOptions, first: int, second: int, chance: random.Random
) -> None:
    sources = {"a": Source([("a", row) for row in range(first)], max_in_flight=3), "b": Source(range(second))}
    run = Run(GroupScheduler(sources, chosen), chance, lost_share=0.2)
    run.to_the_end()
    stats = run.scheduler.stats()
    final = sum((Counter(each) for each in stats["dropped"].values()), Counter())
    rows = [group.row for group in run.taken]
    assert len(rows) == len(set(rows))
    assert len(rows) + final.total() - final["stale"] == first + second
    assert stats.get("begun", 0) == len(rows) + final.total()
    for group in run.taken:
        slots = [slot for _group, slot, _reward in group.results]
        assert len(slots) == len(set(slots)) <= chosen.group_size
        assert len(slots) == chosen.group_size or len(slots) >= chosen.min_group
        assert {number for number, _slot, _reward in group.results} == {group.number}
        assert chosen.keep is None or chosen.keep(group.results)
    assert not run.in_flight


@given(options, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_limits_are_never_exceeded(chosen: GroupOptions, chance: random.Random) -> None:
    sources = {"a": Source(range(20), max_in_flight=2), "b": Source(range(20), weight=3.0)}
    run = Run(GroupScheduler(sources, chosen), chance, lost_share=0.1)
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
    run = Run(GroupScheduler({"a": Source(iter(int, 1)), "b": Source(iter(int, 1))}, chosen), chance, lost_share=0.05)
    oldest: dict[int, int] = {}
    for version in range(1, 1001):
        for _ in range(chance.randint(0, 60)):
            run.poll()
            for start in run.in_flight.values():
                oldest.setdefault(start.group, run.scheduler.version)
            run.end_one()
        taken = len(run.taken)
        run.take()
        for group in run.taken[taken:]:
            assert group.version == oldest[group.number]
            assert group.staleness == run.scheduler.version - group.version <= max_staleness
        run.scheduler.set_version(version)
    assert run.taken
    assert run.scheduler.stats()["dropped"]["a"]["stale"] > 0


def test_groups_are_shared_out_by_weight_and_weights_may_change() -> None:
    sources = {"a": Source(iter(int, 1), weight=1.0), "b": Source(iter(int, 1), weight=3.0)}
    run = Run(GroupScheduler(sources, GroupOptions(group_size=2, max_in_flight=8)), random.Random(0))

    def play(groups: int) -> Counter[str]:
        before = len(run.taken)
        while len(run.taken) < before + groups:
            run.poll()
            run.end_one()
            run.take()
        return Counter(group.source for group in run.taken[before:])

    assert 90 <= play(400)["a"] <= 110
    sources["b"].weight = 0.0
    play(50)
    assert play(100) == {"a": 100}


def test_a_dropped_group_makes_room_for_another_one() -> None:
    chosen = GroupOptions(group_size=2, max_in_flight=2, keep=lambda results: sum(results) == 1)
    scheduler = GroupScheduler({"a": Source("xyz")}, chosen)
    for start in scheduler.poll(0.0).start:
        scheduler.finish(start.id, 1)
    assert scheduler.take() is None
    following = scheduler.poll(1.0).start
    assert {start.row for start in following} == {"y"}
    for result, start in enumerate(following):
        scheduler.finish(start.id, result)
    group = scheduler.take()
    assert group is not None
    assert (group.row, group.results) == ("y", [0, 1])
    assert scheduler.stats()["dropped"] == {"a": {"no_signal": 1}}


def test_the_first_of_a_rollout_and_its_hedge_counts() -> None:
    scheduler = GroupScheduler({"a": Source("x")}, GroupOptions(group_size=2, hedge_after_s=5.0, deadline_s=60.0))
    first, slow = scheduler.poll(0.0).start
    scheduler.finish(first.id, "first")
    assert scheduler.next_time() == 5.0
    (hedge,) = scheduler.poll(5.0).start
    assert hedge.slot == slow.slot
    scheduler.finish(hedge.id, "hedge")
    assert scheduler.poll(6.0).abort == [slow.id]
    scheduler.finish(slow.id, "too late")
    group = scheduler.take()
    assert group is not None
    assert group.results == ["first", "hedge"]


def test_a_deadline_ends_the_slowest_and_drops_what_is_too_small() -> None:
    chosen = GroupOptions(group_size=3, min_group=2, deadline_s=10.0, max_in_flight=6)
    scheduler = GroupScheduler({"a": Source("xy")}, chosen)
    starts = scheduler.poll(0.0).start
    scheduler.finish(starts[0].id, 0)
    scheduler.finish(starts[1].id, 1)
    scheduler.finish(starts[3].id, 2)
    assert sorted(scheduler.poll(10.0).abort) == sorted(start.id for start in (starts[2], *starts[4:]))
    group = scheduler.take()
    assert group is not None
    assert group.results == [0, 1]
    assert scheduler.take() is None
    assert scheduler.stats()["dropped"] == {"a": {"deadline": 1}}


@pytest.mark.parametrize(("on_lost", "sizes"), [("retry", [3]), ("shrink", [2]), ("drop", [])])
def test_a_lost_rollout_follows_on_lost(on_lost: Any, sizes: list[int]) -> None:
    scheduler = GroupScheduler({"a": Source("x")}, GroupOptions(group_size=3, on_lost=on_lost))
    lost, *others = scheduler.poll(0.0).start
    scheduler.lose(lost.id)
    for start in (*others, *scheduler.poll(1.0).start):
        scheduler.finish(start.id, start.slot)
    group = scheduler.take()
    assert [len(group.results)] == sizes if group else sizes == []


def test_a_row_all_of_whose_rollouts_are_lost_is_dropped_at_last() -> None:
    scheduler = GroupScheduler({"a": Source("x")}, GroupOptions(group_size=3))
    while not scheduler.is_done:
        for start in scheduler.poll(0.0).start:
            scheduler.lose(start.id)
    assert scheduler.stats()["rollouts_lost"] == 4
    assert scheduler.stats()["dropped"] == {"a": {"lost": 1}}


@given(st.integers(0, 60), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_restored_scheduler_makes_what_is_missing(ends: int, chance: random.Random) -> None:
    """Killed anywhere and started again, no group is lost or doubled, and begun groups keep their numbers."""
    chosen = GroupOptions(group_size=2, max_in_flight=6)

    def sources() -> dict[str, Source]:
        return {"a": Source([("a", row) for row in range(10)]), "b": Source([("b", row) for row in range(7)])}

    before = Run(GroupScheduler(sources(), chosen), chance)
    numbers: dict[int, Any] = {}
    for _ in range(ends):
        before.poll()
        numbers |= {start.group: start.row for start in before.in_flight.values()}
        before.end_one()
        if chance.random() < 0.2:
            before.take()
    after = Run(GroupScheduler(sources(), chosen), chance)
    after.scheduler.restore(before.scheduler.state(), 0.0)
    after.to_the_end()
    rows = [group.row for group in (*before.taken, *after.taken)]
    assert sorted(rows) == sorted([("a", row) for row in range(10)] + [("b", row) for row in range(7)])
    assert all(numbers.get(group.number, group.row) == group.row for group in after.taken)


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_group=9"):
        GroupOptions(group_size=4, min_group=9)
