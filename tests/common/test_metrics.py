import pytest

from nemo_gym.common.metrics import Family, Histogram, RequestStats, exposition, parse_exposition


def test_a_histogram_counts_each_value_in_all_buckets_above_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    family = Family("took", "histogram", "How long.")
    family.add_histogram(histogram, stage="verify")
    assert exposition([family]).splitlines() == [
        "# HELP took How long.",
        "# TYPE took histogram",
        'took_bucket{stage="verify",le="1"} 2',
        'took_bucket{stage="verify",le="2"} 3',
        'took_bucket{stage="verify",le="+Inf"} 4',
        'took_sum{stage="verify"} 12',
        'took_count{stage="verify"} 4',
    ]


def test_label_values_are_escaped() -> None:
    family = Family("up", "gauge", "")
    family.add(1, name='a "b"\\\n')
    assert family.lines == [r'up{name="a \"b\"\\\n"} 1']


def test_pages_of_several_workers_join_to_one_family_each() -> None:
    pages = []
    for worker in "01":
        family = Family("up", "counter", "Is it?")
        family.add(1, worker=worker)
        pages.append(exposition([family, Family("nothing", "gauge", "")]))
    joined = exposition(found for page in pages for found in parse_exposition(page))
    assert joined == '# HELP up Is it?\n# TYPE up counter\nup{worker="0"} 1\nup{worker="1"} 1\n'


@pytest.mark.parametrize(("failure", "outcomes"), [(None, {"ok": 1}), ("model", {"ok": 0, "model": 1})])
def test_a_request_is_in_flight_until_it_ends(failure: str | None, outcomes: dict[str, int]) -> None:
    stats = RequestStats()
    started = stats.start()
    assert stats.in_flight == 1
    stats.end(started, failure)
    assert (stats.in_flight, stats.outcomes("ok")) == (0, outcomes)
