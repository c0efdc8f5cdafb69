"""What samples tell about the whole: means and how sure they are, pass@k, majority@k, percentiles. All of it pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache

ROUNDING = 1e-12
"""What is left of a difference of sums that should be nothing, as a share of them."""
Z_95 = 1.959963984540054
_T_95 = (math.inf, 12.706204736, 4.302652730, 3.182446305, 2.776445105, 2.570581836)
"""Student's t for 0 to 5 degrees of freedom, where the series in `student_t_95` is not good enough."""


def student_t_95(degrees: int) -> float:
    """How many standard errors to either side hold 95 % of the chance."""
    if degrees < len(_T_95):
        return _T_95[degrees]
    z = Z_95
    series = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(degrees) ** power for power, term in enumerate(series, 1))


class ClusteredMean:
    """The mean of samples that come in clusters, such as the repeats of one row, and how sure it is.

    Samples of one cluster are not independent, so the error comes from how much clusters differ from each other. With
    one sample in every cluster that is the usual standard error of a mean.
    """

    __slots__ = ("_size", "_sizes", "_total", "_totals", "_totals_sizes", "clusters", "samples")

    def __init__(self) -> None:
        self.clusters = self.samples = 0
        self._total = self._size = 0.0
        self._totals = self._totals_sizes = self._sizes = 0.0

    def add(self, total: float, size: int = 1) -> None:
        """Add a cluster of `size` samples that sum to `total`."""
        self.clusters += 1
        self.samples += size
        total_off, size_off = total - self._total, size - self._size
        self._total += total_off / self.clusters
        self._size += size_off / self.clusters
        self._totals += total_off * (total - self._total)
        self._totals_sizes += total_off * (size - self._size)
        self._sizes += size_off * (size - self._size)

    def add_samples(self, values: Sequence[float]) -> None:
        """Add clusters of one sample each, at least one: as `add`, but in a fraction of the time."""
        count, first = len(values), values[0]
        differs = values.count(first) < count
        offsets = [value - first for value in values] if differs else ()
        offset = sum(offsets) / count
        total_off, size_off = first + offset - self._total, 1 - self._size
        share = count / (self.clusters + count)
        weight = self.clusters * share
        self._total += total_off * share
        self._size += size_off * share
        self._totals += sum([(each - offset) ** 2 for each in offsets]) + total_off * total_off * weight
        self._totals_sizes += total_off * size_off * weight
        self._sizes += size_off * size_off * weight
        self.clusters += count
        self.samples += count

    @property
    def mean(self) -> float:
        return self._total / self._size

    @property
    def standard_error(self) -> float | None:
        """None if a single cluster is all there is."""
        if self.clusters < 2:
            return None
        mean = self.mean
        terms = (self._totals, -2 * mean * self._totals_sizes, mean**2 * self._sizes)
        spread = sum(terms)
        if spread <= ROUNDING * sum(map(abs, terms)):  # clusters that do not differ but by rounding
            return 0.0
        return math.sqrt(spread * self.clusters / (self.clusters - 1)) / self.samples

    @property
    def interval_95(self) -> tuple[float, float] | None:
        """Where the true mean is, with 95 % confidence. None if that is unknown, because clusters do not differ."""
        error = self.standard_error
        if not error:
            return None
        reach = error * student_t_95(self.clusters - 1)
        return self.mean - reach, self.mean + reach

    @property
    def proportion_interval_95(self) -> tuple[float, float] | None:
        """As `interval_95` for samples between 0 and 1: Wilson's interval, which stays between them, too."""
        error, mean = self.standard_error, min(max(self.mean, 0.0), 1.0)
        if error is None:
            return None
        variance = mean * (1 - mean)
        # as many independent samples as would be as sure; if clusters do not differ, each counts as one sample
        size = min(variance / error**2, self.samples) if error and variance else self.clusters
        return wilson_interval(mean, size, student_t_95(self.clusters - 1) if error else Z_95)


def wilson_interval(proportion: float, size: float, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a proportion among `size` independent samples."""
    shrink = 1 + z * z / size
    center = (proportion + z * z / (2 * size)) / shrink
    reach = z / shrink * math.sqrt(proportion * (1 - proportion) / size + z * z / (4 * size * size))
    return max(center - reach, 0.0), min(center + reach, 1.0)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of `k` samples, drawn without putting back, passes."""
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


@lru_cache(maxsize=4096)
def majority_at_k(votes: tuple[tuple[int, int], ...], k: int, *, silent: int = 0) -> float:
    """The chance that the most common answer among `k` samples, drawn without putting back, passes.

    `votes` says of each different answer how many samples gave it and how many of those passed. Answers that tie share
    the win. The `silent` samples gave no answer: they are drawn like the others but do not vote.
    """
    samples = silent + sum(given for given, _ in votes)
    scale = math.lcm(*(given for given, _ in votes))
    worths = [(given, passed * scale // given) for given, passed in votes]
    most_given = max((given for given, _ in votes), default=0)
    width = samples + (samples * scale).bit_length()
    won = sum(
        (_won_with(most, worths, k, samples, width) for most in range(1, min(k, most_given) + 1)), start=Fraction()
    )
    return float(won / (math.comb(samples, k) * scale))


def _won_with(most: int, worths: Iterable[tuple[int, int]], k: int, samples: int, width: int) -> Fraction:
    """The worth of the winners, summed over the draws in which the winners have `most` votes.

    Draws are counted by polynomials: the coefficient of x^d is the number of ways to draw d samples. A polynomial is
    one integer with `width` bits a coefficient, more than any sum needs, so that Python multiplies them at once.
    """
    contenders = [(given, worth) for given, worth in worths if given >= most]
    others = samples - sum(given for given, _ in contenders)
    whole = (1 << width * (k + 1)) - 1
    ways, worth_in = [1], [0]
    for given, worth in contenders:
        fewer, exactly = _choices(given, range(most), width), _choices(given, [most], width)
        worth_in = [
            (with_fewer * fewer + (with_most + worth * way) * exactly) & whole
            for with_fewer, with_most, way in zip([*worth_in, 0], [0, *worth_in], [0, *ways], strict=True)
        ]
        ways = [(stay * fewer + win * exactly) & whole for stay, win in zip([*ways, 0], [0, *ways], strict=True)]
    rest = _choices(others, range(min(others, k) + 1), width)
    drawn = (((worth * rest) & whole) >> (width * k) for worth in worth_in[1:])
    return sum((Fraction(worth, tied) for tied, worth in enumerate(drawn, 1)), start=Fraction())


def _choices(given: int, numbers: Iterable[int], width: int) -> int:
    """The polynomial of the ways to draw any of these numbers out of `given` samples."""
    return sum(math.comb(given, number) << (width * number) for number in numbers)


class LogHistogram:
    """Percentiles of positive values in little memory: buckets that grow, so that a value is off by 1 % at most."""

    ERROR = 0.01
    LEAST, MOST = 1e-6, 1e9
    _GROWTH = (1 + ERROR) / (1 - ERROR)
    _LOG_GROWTH = math.log(_GROWTH)

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._largest = -math.inf

    def add(self, *values: float) -> None:
        self._largest = max(self._largest, *values)
        least, most, log, ceil, growth = self.LEAST, self.MOST, math.log, math.ceil, self._LOG_GROWTH
        if min(values) < least or max(values) > most:
            values = tuple(min(max(value, least), most) for value in values)
        self._buckets.update([ceil(log(value) / growth) for value in values])

    def percentile(self, percent: float) -> float | None:
        """The least value that at least `percent` of all values do not exceed; None if there are none."""
        rank = math.ceil(self._buckets.total() * percent / 100)
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank <= 0:
                return float(2 * self._GROWTH**bucket / (self._GROWTH + 1))
        return None

    def summary(self) -> dict[str, float]:
        """A few percentiles and the largest value; nothing if there are no values."""
        found = {f"p{percent}": self.percentile(percent) for percent in (50, 90, 99)}
        known = {name: min(value, self._largest) for name, value in found.items() if value is not None}
        return {**known, "max": self._largest} if known else {}
