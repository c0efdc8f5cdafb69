from nemo_gym.common.metrics import Family, decode_families, encode_families, exposition
from nemo_gym.common.statistics import Histogram


def test_a_histogram_counts_each_value_in_all_buckets_above_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    family = Family("took", "histogram", "How long.")
    family.add_histogram(histogram, stage="verify")
    assert exposition([family]).decode().splitlines() == [
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
    assert exposition([family]).decode().splitlines()[-1] == r'up{name="a \"b\"\\\n"} 1'


def test_metrics_of_several_workers_join_to_one_family_each() -> None:
    pages = []
    for worker in "01":
        family = Family("up", "counter", "Is it?")
        family.add(1, worker=worker)
        pages.append(encode_families([family, Family("nothing", "gauge", "")]))
    joined = exposition(found for page in pages for found in decode_families(page))
    assert joined == b'# HELP up Is it?\n# TYPE up counter\nup{worker="0"} 1\nup{worker="1"} 1\n'
