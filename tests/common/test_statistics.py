"""Estimates agree with what enumeration and textbooks say."""

import math
import statistics
from collections import Counter
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.common.statistics import (
    ClusteredMean,
    LogHistogram,
    Moments,
    RequestStats,
    describe_columns,
    majority_at_k,
    pass_at_k,
    quantile,
    student_t_95,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042), (120, 1.980)],
)
def test_student_t_is_what_tables_say(degrees: int, expected: float) -> None:
    assert student_t_95(degrees) == pytest.approx(expected, abs=6e-4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_single_samples_give_the_usual_mean_and_error(values: list[float]) -> None:
    estimate = ClusteredMean()
    for value in values:
        estimate.add(value)
    assert estimate.mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-6)
    assert estimate.standard_error == pytest.approx(
        statistics.stdev(values) / math.sqrt(len(values)), rel=1e-6, abs=1e-5
    )


@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=6), min_size=2, max_size=12))
def test_clusters_give_the_error_of_their_residuals(clusters: list[list[float]]) -> None:
    estimate = ClusteredMean()
    for cluster in clusters:
        estimate.add(sum(cluster), len(cluster))
    samples = [value for cluster in clusters for value in cluster]
    mean = statistics.fmean(samples)
    residuals = sum(sum(value - mean for value in cluster) ** 2 for cluster in clusters)
    factor = len(clusters) / (len(clusters) - 1)
    assert estimate.standard_error == pytest.approx(math.sqrt(factor * residuals) / len(samples), rel=1e-6, abs=1e-6)


def test_repeats_that_all_agree_make_nobody_surer() -> None:
    alone, repeated = ClusteredMean(), ClusteredMean()
    for value in (0.0, 1.0, 1.0, 0.0, 1.0):
        alone.add(value)
        repeated.add(8 * value, 8)
    assert repeated.standard_error == pytest.approx(alone.standard_error)
    assert repeated.interval_95 == pytest.approx(alone.interval_95)


def test_an_interval_is_as_wide_as_few_samples_make_it() -> None:
    estimate = ClusteredMean()
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        estimate.add(value)
    assert estimate.interval_95 == pytest.approx((3 - 2.776445 * math.sqrt(0.5), 3 + 2.776445 * math.sqrt(0.5)))


def test_a_large_offset_costs_no_precision() -> None:
    estimate = ClusteredMean()
    for value in (1e9, 1e9 + 1, 1e9 + 2):
        estimate.add(value)
    assert estimate.standard_error == pytest.approx(math.sqrt(1 / 3))


def test_one_cluster_has_no_error() -> None:
    estimate = ClusteredMean()
    estimate.add(3.0, 4)
    assert (estimate.mean, estimate.standard_error, estimate.interval_95) == (0.75, None, None)


@pytest.mark.parametrize(
    ("samples", "passed", "k", "expected"),
    [(10, 3, 1, 0.3), (10, 0, 5, 0.0), (10, 10, 1, 1.0), (5, 1, 5, 1.0), (4, 2, 2, 5 / 6), (200, 1, 100, 0.5)],
)
def test_pass_at_k_has_known_values(samples: int, passed: int, k: int, expected: float) -> None:
    assert pass_at_k(samples, passed, k) == pytest.approx(expected)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(passes: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(passes)))
    draws = [any(draw) for draw in combinations(passes, k)]
    assert pass_at_k(len(passes), sum(passes), k) == pytest.approx(sum(draws) / len(draws))


def enumerated_majority(samples: list[tuple[str | None, bool]], k: int) -> float:
    """The share of draws that the majority wins, one draw after the other."""
    worth = {
        answer: statistics.fmean(passed for other, passed in samples if other == answer)
        for answer, _ in samples
        if answer is not None
    }
    draws = list(combinations(samples, k))
    won = 0.0
    for draw in draws:
        votes = Counter(answer for answer, _ in draw if answer is not None)
        winners = [answer for answer, count in votes.items() if count == max(votes.values())]
        won += statistics.fmean(worth[answer] for answer in winners) if winners else 0.0
    return won / len(draws)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.booleans()), min_size=1, max_size=9), st.data()
)
def test_majority_at_k_is_the_share_of_draws_it_wins(
    samples: list[tuple[str | None, bool]], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(samples)))
    given_by = Counter(answer for answer, _ in samples)
    passed_by = Counter(answer for answer, passed in samples if passed)
    votes = tuple((count, passed_by[answer]) for answer, count in given_by.items() if answer is not None)
    found = majority_at_k(votes, k, silent=given_by[None])
    assert found == pytest.approx(enumerated_majority(samples, k))


@pytest.mark.parametrize(
    ("votes", "k", "silent", "expected"),
    [
        (((3, 3), (2, 0)), 1, 0, 0.6),
        (((3, 3), (2, 0)), 5, 0, 1.0),
        (((2, 2), (2, 0)), 4, 0, 0.5),
        (((1, 1), (1, 0), (1, 0)), 3, 0, 1 / 3),
        (((1, 1),), 1, 1, 0.5),
        (((1, 1),), 2, 1, 1.0),
        ((), 2, 3, 0.0),
        (((60, 60), (40, 0)), 124, 24, 1.0),
    ],
)
def test_majority_at_k_has_known_values(
    votes: tuple[tuple[int, int], ...], k: int, silent: int, expected: float
) -> None:
    assert majority_at_k(votes, k, silent=silent) == pytest.approx(expected)


@given(st.lists(st.floats(1e-5, 1e8), min_size=1, max_size=200), st.sampled_from([1, 50, 90, 99, 100]))
def test_a_percentile_is_off_by_one_percent_at_most(values: list[float], percent: int) -> None:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(len(values) * percent / 100) - 1]
    assert histogram.percentile(percent) == pytest.approx(exact, rel=LogHistogram.ERROR * 1.0001)


def test_a_histogram_stays_small_and_takes_what_it_cannot_measure() -> None:
    histogram = LogHistogram()
    assert histogram.percentile(50) is None
    for value in (0.0, -1.0, 1e300):
        histogram.add(value)
    assert histogram.percentile(1) == pytest.approx(LogHistogram.LEAST, rel=0.02)
    for step in range(20_000):
        histogram.add(1.001 ** (step - 10_000))
    assert len(histogram._buckets) < 2_000


def test_clusters_of_different_size_that_do_not_differ_leave_no_error() -> None:
    for value in (0.1, 27.3, 99.99, 1e6 / 3):
        for sizes in permutations((1, 2, 3, 7)):
            estimate = ClusteredMean()
            for size in sizes:
                estimate.add(value * size, size)
            assert estimate.standard_error == 0


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1), min_size=1))
def test_samples_added_at_once_are_the_same_as_one_by_one(batches: list[list[float]]) -> None:
    at_once, one_by_one = ClusteredMean(), ClusteredMean()
    at_once.add(7.0, 3)
    one_by_one.add(7.0, 3)
    for batch in batches:
        at_once.add_samples(batch)
        for value in batch:
            one_by_one.add(value)
    assert (at_once.samples, at_once.clusters) == (one_by_one.samples, one_by_one.clusters)
    assert at_once.mean == pytest.approx(one_by_one.mean, rel=1e-6, abs=1e-6)
    assert at_once.standard_error == pytest.approx(one_by_one.standard_error, rel=1e-6, abs=1e-3)


def test_equal_samples_added_at_once_have_no_error() -> None:
    estimate = ClusteredMean()
    for _ in range(3):
        estimate.add_samples([0.1] * 7)
    assert (estimate.mean, estimate.standard_error) == (0.1, 0.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_moments_are_those_of_the_numbers(numbers: list[float]) -> None:
    found = Moments.of(numbers)
    assert (found.total, found.min, found.max) == (len(numbers), min(numbers), max(numbers))
    assert found.mean == pytest.approx(statistics.fmean(numbers))
    assert found.deviation(of_population=True) == pytest.approx(statistics.pstdev(numbers), rel=1e-6, abs=1e-6)
    if len(numbers) > 1:
        assert found.deviation() == pytest.approx(statistics.stdev(numbers), rel=1e-6, abs=1e-6)


def test_columns_of_one_row_have_no_spread() -> None:
    assert describe_columns([{"a": 2}]) == {"mean/a": 2.0, "max/a": 2, "min/a": 2, "median/a": 2, "std/a": 0.0}
    assert "std/b" not in describe_columns([{"a": 1, "b": 1}, {"a": 2}])


@pytest.mark.parametrize(("failure", "outcomes"), [(None, {"ok": 1}), ("model", {"ok": 0, "model": 1})])
def test_a_request_is_in_flight_until_it_ends(failure: str | None, outcomes: dict[str, int]) -> None:
    stats = RequestStats()
    started = stats.start()
    assert stats.in_flight == 1
    stats.end(started, failure)
    assert (stats.in_flight, stats.outcomes("ok")) == (0, outcomes)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_a_quantile_is_one_of_the_values(share: float, value: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == value


@pytest.mark.parametrize("size", [1, 3, 7, 49, 1000.5])
def test_the_interval_of_a_share_ends_exactly_where_no_other_is_possible(size: float) -> None:
    none, all_of_them = wilson_interval(0.0, size), wilson_interval(1.0, size)
    assert (none[0], all_of_them[1]) == (0.0, 1.0)
    assert 0 < none[1] < 1
    assert 0 < all_of_them[0] < 1
