"""Figures over many rollouts, gathered as they land. Memory does not grow with the number of rollouts: a task is kept
until all of its repeats have come to an outcome, then only what it adds to the estimates."""

import copy
import json
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson

from nemo_gym.common.redaction import one_line, process_redactor
from nemo_gym.common.words import count_of, shorten
from nemo_gym.errors import Cause
from nemo_gym.rollouts.estimators import ClusteredMean, LogHistogram, majority_at_k, pass_at_k
from nemo_gym.rollouts.types import ANSWER_FIELDS, Figures, figures_of, task_index_of

PASS_THRESHOLD = 1.0
JUDGE_FAILURE_FIELD = "judge_failure"
"""Where a judged environment says that its judge gave no verdict, and why."""

MAX_VOTERS = 64
"""The largest k of majority@k: beyond, counting the votes takes longer than it is worth."""

MAX_NAME = 24
"""Longer names of fields are cut, so that a table fits 70 columns."""
LARGEST = 1e100
"""Numbers beyond are passed over: the sums of their squares would be no numbers any more."""
_NUMBER_TYPES = frozenset((int, float, bool))
TOKENS = ("input", "output", "reasoning", "total")
BATCH_SIZE = 1024
"""How many rollouts are added up at once: one by one it takes ten times as long."""


class _Sums(dict[str, list[float]]):
    """The sum and the number of the values of each name."""

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.add_all(name, (value,))

    def add_all(self, name: str, values: Sequence[float]) -> None:
        total, count = self.get(name, (0, 0))
        self[name] = [total + sum(values), count + len(values)]


@dataclass(slots=True)
class _Task:
    """The outcomes of one row so far."""

    outcomes: int = 0
    rewards: int = 0
    passed: int = 0
    sums: _Sums = field(default_factory=_Sums)
    is_asked: bool = False
    """Its environment reports the model's answers, even if there is none."""
    votes: dict[str | bytes, tuple[int, int]] = field(default_factory=dict)
    """Each answer: how many gave it, and how many of those passed."""

    def vote(self, answer: Any, *, passed: bool) -> None:
        """Count an answer as it is in the output, with its secrets masked: a resumed run counts those of the file."""
        self.is_asked = True
        if answer is None or answer == "":
            return
        redactor = process_redactor()
        if isinstance(answer, str):
            key: str | bytes = redactor.values(answer)
        else:
            key = redactor.json(orjson.dumps(answer, option=orjson.OPT_SORT_KEYS))
        given, good = self.votes.get(key, (0, 0))
        self.votes[key] = (given + 1, good + passed)


@dataclass(slots=True)
class _Estimates:
    """What tasks add up to."""

    tasks: int = 0
    fields: dict[str, ClusteredMean] = field(default_factory=lambda: defaultdict(ClusteredMean))
    passes: dict[int, ClusteredMean] = field(default_factory=lambda: defaultdict(ClusteredMean))
    majorities: dict[int, ClusteredMean] = field(default_factory=lambda: defaultdict(ClusteredMean))
    votes_differ: bool = False

    def add(self, task: _Task) -> None:
        if not task.sums:
            return
        self.tasks += 1
        for name, (total, count) in task.sums.items():
            self.fields[name].add(total, int(count))
        for power in range(task.rewards.bit_length()):
            self.passes[1 << power].add(pass_at_k(task.rewards, task.passed, 1 << power))
        if task.is_asked:
            votes = tuple(sorted(task.votes.values()))
            self.votes_differ |= len(votes) > 1
            silent = task.rewards - sum([given for given, _ in votes])
            for power in range(min(task.rewards, MAX_VOTERS).bit_length()):
                self.majorities[1 << power].add(majority_at_k(votes, 1 << power, silent=silent))


class RunningMetrics:
    """The figures of a run: add every outcome, then call `summary()` or `table()` at any time."""

    def __init__(self, *, num_repeats: int | None = None, pass_threshold: float = PASS_THRESHOLD) -> None:
        """Without `num_repeats` it is unknown when a task is complete, so all of them stay in memory until the end."""
        self.num_repeats, self.pass_threshold = num_repeats, pass_threshold
        self.scored = 0
        self.failed: Counter[Cause] = Counter()
        self.judge_failures: Counter[str] = Counter()
        """By kind, whether they left the rollout without a result or a reward is configured for them."""
        self._open: dict[int | None, _Task] = {}
        """The rows that are not complete. A record without an index is a row of its own."""
        self._estimates, self._tokens = _Estimates(), _Sums()
        self._rewarded, self._reward_total = 0, 0.0
        self._not_booleans: set[str] = set()
        """Fields that were a number other than true and false."""
        self._rewards_are_proportions = True
        self.cut_off = 0
        """Rollouts that a token or step limit ended."""
        self._attempts = self._retries = 0
        self._latency = LogHistogram()
        self._batch: list[Mapping[str, Any]] = []
        """The values of rollouts that are not added up yet, their tokens, and how long they took."""
        self._token_batch: list[Sequence[Any]] = []
        self._seconds: list[float] = []
        self.blocked: dict[str, dict[str, float]] = {}
        """The handlers that blocked the event loop, if the servers are in this process."""
        self.stages: dict[str, dict[str, float]] = {}
        """Requests and seconds by stage, if the servers are in this process."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a scored rollout by its record. Records from elsewhere have no metadata."""
        self.add_scored(
            figures_of(record),
            task_index=task_index_of(record),
            attempts=record.get("_attempts", 0),
            retries=record.get("_retries", 0),
            seconds=record.get("_seconds"),
        )

    def add_scored(
        self, figures: Figures, *, task_index: int | None, attempts: int, retries: int, seconds: float | None
    ) -> None:
        """Add a scored rollout."""
        values = figures.values
        self.scored += 1
        self.cut_off += figures.is_cut_off
        self._attempts += attempts
        self._retries += retries
        if seconds is not None:
            self._seconds.append(seconds)
        if kind := values.get(JUDGE_FAILURE_FIELD):
            self.judge_failures[kind if isinstance(kind, str) else json.dumps(kind)] += 1
        if self.num_repeats != 1:
            self._add_to_task(task_index, values)
        if figures.tokens:
            self._token_batch.append(figures.tokens)
        self._batch.append(values)
        if len(self._batch) == BATCH_SIZE:
            self._add_batch()

    def _add_to_task(self, task_index: int | None, figures: Mapping[str, Any]) -> None:
        task, numbers = self._open.get(task_index) or _Task(), _numbers(figures)
        task.sums.add(numbers)
        reward = numbers.get("reward")
        if reward is not None:
            passed = reward >= self.pass_threshold
            task.rewards += 1
            task.passed += passed
            for name in ANSWER_FIELDS:
                if name in figures:
                    task.vote(figures[name], passed=passed)
                    break
        self._add_outcome(task_index, task)

    def _add_batch(self) -> None:
        """Add up name by name what has gathered. If every task has one rollout only, so are the estimates."""
        batch, self._batch = self._batch, []
        seconds, self._seconds = self._seconds, []
        if seconds:
            self._latency.add(*seconds)
        tokens, self._token_batch = self._token_batch, []
        for name, counts in zip(TOKENS, zip(*tokens, strict=True), strict=False):
            if numbers := _only_numbers(counts):
                self._tokens.add_all(name, numbers)
        columns = _columns(batch)
        for name, values in columns.items():
            if set(map(type, values)) != {bool}:
                self._not_booleans.add(name)
            if self.num_repeats == 1:
                self._estimates.fields[name].add_samples(values)
        if rewards := columns.get("reward"):
            self._rewarded += len(rewards)
            self._reward_total += sum(rewards)
            self._rewards_are_proportions &= min(rewards) >= 0 and max(rewards) <= 1
        if rewards and self.num_repeats == 1:
            self._estimates.tasks += len(rewards)
            self._estimates.passes[1].add_samples([reward >= self.pass_threshold for reward in rewards])

    def add_failure(
        self, cause: Cause, *, code: str | None = None, task_index: int | None = None, attempts: int = 0
    ) -> None:
        """Take in a rollout without a result: an outcome of its row, but no figure."""
        self.failed[cause] += 1
        self._attempts += attempts
        if cause == "judge" and code is not None:
            self.judge_failures[code] += 1
        if self.num_repeats != 1:
            self._add_outcome(task_index, self._open.get(task_index) or _Task())

    def _add_outcome(self, index: int | None, task: _Task) -> None:
        task.outcomes += 1
        if index is not None and task.outcomes != self.num_repeats:
            self._open[index] = task
        else:
            self._open.pop(index, None)
            self._estimates.add(task)

    def mean_reward(self) -> float | None:
        """The mean reward so far, earlier records of a resumed run included."""
        self._add_batch()
        return None if not self._rewarded else self._reward_total / self._rewarded

    def means(self) -> dict[str, float]:
        """The averages, `reward` first, each over the records that have the field."""
        summary = self.summary()
        found = {"reward": summary["reward"], **summary["fields"]}
        return {name: each["mean"] for name, each in found.items() if each}

    def summary(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        self._add_batch()
        estimates = copy.deepcopy(self._estimates)
        for task in self._open.values():
            estimates.add(task)
        numbers = self._not_booleans - ({"reward"} if self._rewards_are_proportions else set())
        fields = {
            name: _as_json(each, is_proportion=name not in numbers) for name, each in sorted(estimates.fields.items())
        }
        tokens = {name: self._tokens[name] for name in TOKENS if name in self._tokens}
        chances = {"pass": estimates.passes, "majority": estimates.majorities if estimates.votes_differ else {}}
        return {
            "scored": self.scored,
            "failed": self.failed.total(),
            "failures_by_cause": dict(sorted(self.failed.items())),
            "judge_failures": dict(sorted(self.judge_failures.items())),
            "cut_off": self.cut_off,
            "tasks": estimates.tasks,
            "reward": fields.pop("reward", None),
            "pass_threshold": self.pass_threshold,
            **{
                f"{name}@{k}": _as_json(each, is_proportion=True)
                for name, by_k in chances.items()
                for k, each in sorted(by_k.items())
            },
            "fields": fields,
            "tokens": {
                name: {"mean": total / count, "total": _as_64_bits(total)} for name, (total, count) in tokens.items()
            },
            "latency_s": self._latency.summary(),
            "attempts": self._attempts,
            "retries": self._retries,
            **({"blocked_handlers": self.blocked} if self.blocked else {}),
            **({"stages": self.stages} if self.stages else {}),
        }

    def table(self) -> str:
        """Everything, for people."""
        redactor, lines = process_redactor(), _lines(self.summary(), numbers=self._not_booleans)
        return "\n".join(one_line(redactor.text(line)) for line in lines)


def _numbers(fields: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the fields, without metadata (`_...`)."""
    return {
        name: value
        for name, value in fields.items()
        if type(value) in _NUMBER_TYPES and not name.startswith("_") and -LARGEST <= value <= LARGEST
    }


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[float]]:
    """The numbers under each name, without metadata."""
    columns: dict[str, Sequence[float]] = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        if not name.startswith("_") and (numbers := _only_numbers([row[name] for row in rows if name in row])):
            columns[name] = numbers
    return columns


def _only_numbers(values: Sequence[Any]) -> Sequence[float]:
    """Those that are numbers, and not too large to be added up."""
    kinds = set(map(type, values))
    if kinds.isdisjoint(_NUMBER_TYPES):
        return ()
    if not kinds <= _NUMBER_TYPES:
        values = [value for value in values if type(value) in _NUMBER_TYPES]
    if min(values) >= -LARGEST and max(values) <= LARGEST and not math.isnan(sum(values)):
        return values
    return [value for value in values if -LARGEST <= value <= LARGEST]


def _as_64_bits(total: float) -> float:
    """A number that JSON can hold: an endpoint may report any number of tokens."""
    return total if abs(total) < 2**63 else float(total)


def _as_json(estimate: ClusteredMean, *, is_proportion: bool) -> dict[str, Any]:
    interval = estimate.proportion_interval_95 if is_proportion else estimate.interval_95
    return {
        "mean": estimate.mean,
        "standard_error": estimate.standard_error,
        "interval_95": None if interval is None else list(interval),
        "samples": estimate.samples,
        "tasks": estimate.clusters,
    }


def _lines(summary: Mapping[str, Any], *, numbers: Container[str]) -> Iterator[str]:
    causes = ", ".join(f"{cause} {count}" for cause, count in summary["failures_by_cause"].items())
    failed = f", {summary['failed']} without a result ({causes})" if causes else ""
    tasks = f" of {count_of(summary['tasks'], 'task')}" if summary["tasks"] else ""
    yield f"{count_of(summary['scored'], 'scored rollout')}{tasks}{failed}"
    if summary["judge_failures"]:
        kinds = (f"{kind} {count}" for kind, count in summary["judge_failures"].items())
        yield f"judge replies without a verdict: {', '.join(kinds)}"
    if summary["cut_off"]:
        yield f"{count_of(summary['cut_off'], 'rollout')} cut off by a limit"
    yield from _table(summary, numbers)
    if summary["tokens"]:
        tokens = {name: entry for name, entry in summary["tokens"].items() if entry["total"]}
        means = (f"{name} {_shown(entry['mean'])}" for name, entry in tokens.items())
        yield f"tokens per rollout: {', '.join(means) or 'none'}"
    if summary["latency_s"]:
        times = (f"{name} {value:.3g}" for name, value in summary["latency_s"].items())
        yield f"seconds per rollout: {', '.join(times)}"
    if summary["attempts"] > summary["scored"] + summary["failed"] or summary["retries"]:
        yield f"{count_of(summary['attempts'], 'attempt')}, {summary['retries']} requests retried within scored ones"
    if summary.get("stages"):
        stages = (f"{name} {entry['seconds']:.2f}" for name, entry in summary["stages"].items())
        yield f"seconds of requests by stage: {', '.join(stages)}"
    for name, entry in summary.get("blocked_handlers", {}).items():
        yield f"{name} blocked the event loop, times: {entry['times']}, seconds in all: {entry['seconds']:.3g}"


def _table(summary: Mapping[str, Any], numbers: Container[str]) -> Iterator[str]:
    """Means and intervals in at most 70 columns, without what is false everywhere and repeated numbers of samples."""
    chances = {name: entry for name, entry in summary.items() if name.startswith(("pass@", "majority@"))}
    fields = {name: each for name, each in summary["fields"].items() if each["mean"] or name in numbers}
    rows = {**({"reward": summary["reward"]} if summary["reward"] else {}), **chances, **fields}
    if not rows:
        return
    width = min(max(map(len, rows)), MAX_NAME)
    yield f"{'':<{width}}  {'mean':>8}  {'error':>8}  {'95 % interval':>17}"
    for name, entry in rows.items():
        error, interval = entry["standard_error"] or None, entry["interval_95"]
        shown = " .. ".join(f"{bound:.3g}" for bound in interval) if interval else "unknown"
        count = "" if entry["tasks"] == summary["tasks"] else f"  n={entry['samples']}"
        yield f"{shorten(name, width):<{width}}  {_shown(entry['mean']):>8}  {_shown(error):>8}  {shown:>17}{count}"


def _shown(value: float | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"
