"""All statistics: descriptions of numbers, estimates with their errors, pass@k and majority@k, percentiles, counters.

Metrics of a collection, `/aggregate_metrics`, profiles, comparisons, dataset statistics and `/metrics` all use the
classes here. Those that take in values one by one need memory that does not grow with their number.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from statistics import fmean, median
from time import monotonic
from typing import Any, NamedTuple, Self

PASS_THRESHOLD = 1.0
"""The smallest reward that counts as a pass, unless a user chooses another."""
MAX_VOTERS = 64
"""The largest k of majority@k: beyond it, the exact computation takes too long."""

# Numbers in records

LARGEST = 1e100
"""Larger numbers are ignored: the sum of their squares would overflow."""
_NUMBER_TYPES = frozenset((int, float, bool))


def only_numbers(values: Sequence[Any]) -> Sequence[float]:
    """Return the values that are numbers and small enough to sum."""
    kinds = set(map(type, values))
    if kinds.isdisjoint(_NUMBER_TYPES):
        return ()
    if not kinds <= _NUMBER_TYPES:
        values = [value for value in values if type(value) in _NUMBER_TYPES]
    if min(values) >= -LARGEST and max(values) <= LARGEST and not math.isnan(sum(values)):
        return values
    return [value for value in values if -LARGEST <= value <= LARGEST]


def numbers_in(fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of one record by name, without metadata (`_...`)."""
    return {
        name: value
        for name, value in fields.items()
        if type(value) in _NUMBER_TYPES and not name.startswith("_") and -LARGEST <= value <= LARGEST
    }


def number_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[float]]:
    """Return the numbers of many records by name, as `numbers_in` but in a tenth of the time."""
    columns: dict[str, Sequence[float]] = {}
    for name in dict.fromkeys(chain.from_iterable(records)):
        if not name.startswith("_") and (
            numbers := only_numbers([record[name] for record in records if name in record])
        ):
            columns[name] = numbers
    return columns


# Descriptions of numbers


@dataclass(slots=True)
class Moments:
    """Count, mean, spread and range of numbers, without the numbers. Merging keeps them exact up to rounding."""

    total: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of the squared differences from the mean."""
    min: float = math.inf
    max: float = -math.inf

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Describe a list of numbers."""
        if not values:
            return cls()
        least, most = min(values), max(values)
        mean = float(least) if least == most else fmean(values)
        squares = 0.0 if least == most else math.fsum([(value - mean) ** 2 for value in values])
        return cls(len(values), mean, squares, least, most)

    def observe(self, value: float) -> None:
        """Add one number."""
        self.add(Moments(1, value, 0.0, value, value))

    def add(self, other: "Moments") -> None:
        """Merge another description into this one (Chan's form of Welford's update)."""
        if not other.total:
            return
        total, delta = self.total + other.total, other.mean - self.mean
        self.mean += delta * other.total / total
        self.squares += other.squares + delta * delta * self.total * other.total / total
        self.total = total
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)

    def repeated(self, times: int) -> Self:
        """Describe the same numbers, each of them `times` times."""
        return type(self)(self.total * times, self.mean, self.squares * times, self.min, self.max)

    def deviation(self, *, of_population: bool = False) -> float:
        """Return the standard deviation: of the sample, or of the numbers as the whole population."""
        degrees = self.total if of_population else self.total - 1
        return math.sqrt(self.squares / degrees) if degrees > 0 else 0.0


def describe_columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return `mean/`, `max/`, `min/`, `median/` and `std/` of each name. A name with a single value has no `std/`; if
    that is so for all names, `std/` is 0 for those that every row has."""
    columns: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            columns[name].append(value)
    described = {name: Moments.of(values) for name, values in columns.items()}
    found: dict[str, Any] = {f"{kind}/{name}": getattr(each, kind) for kind in ("mean", "max", "min")
                             for name, each in described.items()}  # fmt: skip
    found |= {f"median/{name}": median(values) for name, values in columns.items()}
    spreads = {f"std/{name}": each.deviation() for name, each in described.items() if each.total > 1}
    alone = {f"std/{name}": 0.0 for name, each in described.items() if each.total == len(rows)}
    return found | (spreads or alone)


# Estimates: means with their errors

ROUNDING = 1e-12
"""A difference of sums below this share of them is rounding error."""
Z_95 = 1.959963984540054
_T_95 = (math.inf, 12.706204736, 4.302652730, 3.182446305, 2.776445105, 2.570581836)
"""Student's t for 0 to 5 degrees of freedom, where the series in `student_t_95` is not precise enough."""

Interval = tuple[float, float]


def student_t_95(degrees: int) -> float:
    """Return how many standard errors below and above a mean hold 95 % of the probability."""
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


def mean_interval(mean: float, error: float, clusters: int) -> Interval:
    """Return the 95 % interval of a mean with this standard error over a number of independent clusters."""
    reach = error * student_t_95(clusters - 1)
    return mean - reach, mean + reach


def wilson_interval(proportion: float, size: float, z: float = Z_95) -> Interval:
    """Return Wilson's score interval of a proportion among `size` independent samples."""
    shrink = 1 + z * z / size
    center = (proportion + z * z / (2 * size)) / shrink
    reach = z / shrink * math.sqrt(proportion * (1 - proportion) / size + z * z / (4 * size * size))
    low = center - reach if proportion > 0 else 0.0  # exactly: rounding would leave 1e-19
    high = center + reach if proportion < 1 else 1.0
    return max(low, 0.0), min(high, 1.0)


class ClusteredMean:
    """The mean of samples that come in clusters, such as the repeats of one row, with its standard error.

    Samples of one cluster are not independent, so the error comes from how much clusters differ from each other. With
    one sample in every cluster it is the usual standard error of a mean.
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
        """The standard error of the mean; None if there is a single cluster."""
        if self.clusters < 2:
            return None
        mean = self.mean
        terms = (self._totals, -2 * mean * self._totals_sizes, mean**2 * self._sizes)
        spread = sum(terms)
        if spread <= ROUNDING * sum(map(abs, terms)):
            return 0.0
        return math.sqrt(spread * self.clusters / (self.clusters - 1)) / self.samples

    @property
    def interval_95(self) -> Interval | None:
        """The 95 % confidence interval of the mean; None if it is unknown because clusters do not differ."""
        error = self.standard_error
        return mean_interval(self.mean, error, self.clusters) if error else None

    @property
    def proportion_interval_95(self) -> Interval | None:
        """As `interval_95` for samples between 0 and 1: Wilson's interval, which stays between them, too."""
        error, mean = self.standard_error, min(max(self.mean, 0.0), 1.0)
        if error is None:
            return None
        variance = mean * (1 - mean)
        # the number of independent samples with the same error; if clusters do not differ, each counts as one sample
        size = min(variance / error**2, self.samples) if error and variance else self.clusters
        return wilson_interval(mean, size, student_t_95(self.clusters - 1) if error else Z_95)

    def summary(self, *, is_proportion: bool = False, lowest: float = -math.inf) -> dict[str, Any]:
        """Return the estimate as metrics files have it. No sample can be below `lowest`, so the interval is not."""
        interval = self.proportion_interval_95 if is_proportion else self.interval_95
        return {
            "mean": self.mean,
            "standard_error": self.standard_error,
            "interval_95": None if interval is None else [max(bound, lowest) for bound in interval],
            "samples": self.samples,
            "tasks": self.clusters,
        }


# Chances


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the probability that at least one of `k` samples, drawn without replacement, passes."""
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


@lru_cache(maxsize=4096)
def majority_at_k(votes: tuple[tuple[int, int], ...], k: int, *, silent: int = 0) -> float:
    """Return the probability that the most common answer among `k` samples, drawn without replacement, passes.

    `votes` has for each distinct answer how many samples gave it and how many of those passed. Answers that tie share
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
    """Return the worth of the winners, summed over the draws in which the winners have `most` votes.

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
    """Return the polynomial of the ways to draw any of these numbers out of `given` samples."""
    return sum(math.comb(given, number) << (width * number) for number in numbers)


# Tasks: the rollouts of one row, and estimates over all rows


@dataclass(slots=True)
class TaskTotals:
    """The rollouts of one task so far: enough for estimates, without the rollouts."""

    outcomes: int = 0
    """Rollouts that ended, with or without a reward."""
    rewards: int = 0
    passed: int = 0
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Sum and number of the values of each name."""
    votes: dict[str | bytes, tuple[int, int]] | None = None
    """For each answer how many gave it, and how many of those passed; None if the environment reports no answers."""

    def add(self, numbers: Mapping[str, float], *, pass_threshold: float) -> bool | None:
        """Add the numbers of one rollout. Return True if its reward is a pass, None if it has no reward."""
        sums = self.sums
        for name, value in numbers.items():
            total, count = sums.get(name, (0, 0))
            sums[name] = total + value, count + 1
        if "reward" not in numbers:
            return None
        is_pass = numbers["reward"] >= pass_threshold
        self.rewards += 1
        self.passed += is_pass
        return is_pass

    def vote(self, answer: str | bytes | None, *, is_pass: bool) -> None:
        """Count the answer of one rollout; None if it gave none."""
        if self.votes is None:
            self.votes = {}
        if answer is not None:
            given, good = self.votes.get(answer, (0, 0))
            self.votes[answer] = given + 1, good + is_pass


@dataclass(slots=True)
class TaskEstimates:
    """Means, pass@k and majority@k over tasks, for each power of two that the number of rollouts allows."""

    tasks: int = 0
    fields: dict[str, ClusteredMean] = field(default_factory=lambda: defaultdict(ClusteredMean))
    passes: dict[int, ClusteredMean] = field(default_factory=lambda: defaultdict(ClusteredMean))
    majorities: dict[int, ClusteredMean] = field(default_factory=lambda: defaultdict(ClusteredMean))
    votes_differ: bool = False

    def add(self, task: TaskTotals) -> None:
        """Add a task with all its rollouts. One without any number does not count."""
        if not task.sums:
            return
        self.tasks += 1
        for name, (total, count) in task.sums.items():
            self.fields[name].add(total, count)
        for power in range(task.rewards.bit_length()):
            self.passes[1 << power].add(pass_at_k(task.rewards, task.passed, 1 << power))
        if task.votes is not None:
            votes = tuple(sorted(task.votes.values()))
            self.votes_differ |= len(votes) > 1
            silent = task.rewards - sum([given for given, _ in votes])
            for power in range(min(task.rewards, MAX_VOTERS).bit_length()):
                self.majorities[1 << power].add(majority_at_k(votes, 1 << power, silent=silent))

    def add_single_rollouts(self, columns: Mapping[str, Sequence[float]], *, pass_threshold: float) -> None:
        """Add tasks of one rollout each: as `add`, but in a fraction of the time."""
        for name, values in columns.items():
            self.fields[name].add_samples(values)
        if rewards := columns.get("reward"):
            self.tasks += len(rewards)
            self.passes[1].add_samples([reward >= pass_threshold for reward in rewards])

    def chances(self) -> dict[str, ClusteredMean]:
        """Return pass@k and, if answers differ, majority@k, by name."""
        majorities = self.majorities if self.votes_differ else {}
        kinds = {"pass": self.passes, "majority": majorities}
        return {f"{kind}@{k}": each for kind, by_k in kinds.items() for k, each in sorted(by_k.items())}


class PairedDifference(NamedTuple):
    """The difference of each task's mean between two runs."""

    mean_before: float
    mean_after: float
    difference: ClusteredMean
    up: int
    down: int

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Self:
        """Compare tasks by their means before and after."""
        difference = ClusteredMean()
        for before, after in pairs:
            difference.add(after - before)
        return cls(
            fmean(before for before, _ in pairs),
            fmean(after for _, after in pairs),
            difference,
            sum(after > before for before, after in pairs),
            sum(after < before for before, after in pairs),
        )

    @property
    def sign_test(self) -> float:
        """The probability of a split of up and down at least this uneven if the runs do not differ."""
        moved, fewer = self.up + self.down, min(self.up, self.down)
        return min(1.0, 2.0 * sum(math.comb(moved, count) for count in range(fewer + 1)) / float(2**moved))


# Percentiles


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class LogHistogram:
    """Percentiles of positive values in little memory: buckets grow, so that a value is off by 1 % at most."""

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
        """Return the least value that at least `percent` of all values do not exceed; None if there are none."""
        rank = math.ceil(self._buckets.total() * percent / 100)
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank <= 0:
                return float(2 * self._GROWTH**bucket / (self._GROWTH + 1))
        return None

    def summary(self) -> dict[str, float]:
        """Return a few percentiles and the largest value; nothing if there are no values."""
        found = {f"p{percent}": self.percentile(percent) for percent in (50, 90, 99)}
        known = {name: min(value, self._largest) for name, value in found.items() if value is not None}
        return {**known, "max": self._largest} if known else {}


# Live counters

SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Bucket bounds for durations from a direct call to a long rollout."""


class Histogram:
    """Counts of values between fixed bounds, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class RequestStats:
    """Counts and durations of the requests to one endpoint."""

    __slots__ = ("failures", "in_flight", "seconds", "succeeded")

    def __init__(self) -> None:
        self.in_flight = self.succeeded = 0
        self.failures: dict[str, int] = {}
        """By cause."""
        self.seconds = Histogram()

    def start(self) -> float:
        """Count a request that begins. Return the start time to pass to `end`."""
        self.in_flight += 1
        return monotonic()

    def end(self, started: float, failure: str | None) -> None:
        """Count a request that ended, and the cause if it failed."""
        seconds, histogram = monotonic() - started, self.seconds
        self.in_flight -= 1
        histogram.counts[bisect_left(SECONDS, seconds)] += 1
        histogram.total += seconds
        if failure is None:
            self.succeeded += 1
        else:
            self.failures[failure] = self.failures.get(failure, 0) + 1

    def outcomes(self, success: str) -> dict[str, int]:
        """Return the number of ended requests by outcome. `success` names those that did not fail."""
        return {success: self.succeeded, **self.failures}
