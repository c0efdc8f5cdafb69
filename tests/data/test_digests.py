"""Distinct values are counted exactly, in memory and on disk."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.data.digests import PARTITIONS, Spill, digest, packed, slices, unique_count


@given(st.lists(st.lists(st.integers(0, 50), max_size=30), max_size=8))
def test_the_count_is_that_of_a_set(batches: list[list[int]]) -> None:
    with Spill(buffered_bytes=64) as spill:
        found = spill.new_set()
        for batch in batches:
            found.add(packed(digest(b"%d" % value) for value in batch))
        assert unique_count(found) == len({value for batch in batches for value in batch})
        assert found.count == sum(map(len, batches))


def test_several_sets_are_counted_together() -> None:
    with Spill(buffered_bytes=100) as spill:
        plain, located = spill.new_set(), spill.new_set(extra_bytes=8)
        plain.add(packed(digest(b"%d" % value) for value in range(20)))
        located.add(packed(digest(b"%d" % value) + bytes(8) for value in range(10, 40)))
        assert unique_count(plain, located) == 40


def test_a_large_partition_is_compared_in_several_passes() -> None:
    with Spill() as spill:
        found = spill.new_set()
        found.add(packed(digest(b"%d" % (value % 3000)) for value in range(5000)))
        parts = list(slices(found, records_at_once=10))
        assert len(parts) > PARTITIONS
        assert unique_count(found, records_at_once=10) == 3000


def test_nothing_is_left_on_disk(tmp_path: Path) -> None:
    with Spill(tmp_path, buffered_bytes=10) as spill:
        found = spill.new_set()
        found.add(packed(digest(b"%d" % value) for value in range(100)))
        assert list(tmp_path.iterdir()) == []
        assert unique_count(found) == 100
