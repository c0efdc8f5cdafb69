"""Metrics that public environments compute in `compute_metrics`, by the names and percentages that public benchmarks
report. They are public as `nemo_gym.reward_profile`."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from nemo_gym.common.statistics import pass_at_k

Record = Mapping[str, Any]
Tasks = Sequence[Sequence[Record]]
ScoreFunction = Callable[[Any], Mapping[str, float | bool]]
Scores = list[list[dict[str, float]]]
"""Scores by name, for each rollout of each task."""

_SPREADS = ("std_dev_across_runs", "std_err_across_runs", "avg_sample_std_dev")


class PassMajorityMetrics(NamedTuple):
    metrics: dict[str, Any]
    all_score_dicts: Scores
    score_names: list[str]
    max_k: int


def compute_pass_majority_metrics(
    tasks: Tasks, score_fn: ScoreFunction | None = None, answer_key: str | None = None
) -> PassMajorityMetrics:
    """Return `pass@k`, `pass@1[avg-of-k]` and, with `answer_key`, `majority@k` of each score, for every k."""
    if not tasks:
        return PassMajorityMetrics({}, [], [], 0)
    scores = [[_scores(record, score_fn, answer_key) for record in task] for task in tasks]
    names = sorted({name for task in scores for one in task for name in one})
    max_k = max(map(len, scores))
    metrics: dict[str, Any] = {}
    for name in names:
        values = [[one[name] for one in task if name in one] for task in scores]
        is_binary = all(value in (0, 1) for task in values for value in task)
        for k in range(1, max_k + 1):
            best = (_best_of(task, k, is_binary=is_binary) for task in values if len(task) >= k)
            _put(metrics, f"pass@{k}/{name}", best)
            _put(metrics, f"pass@1[avg-of-{k}]/{name}", (fmean(task[:k]) for task in values if task))
            if answer_key is not None:
                answered = zip(tasks, scores, strict=True)
                votes = (_majority(task[:k], found, name, answer_key) for task, found in answered)
                _put(metrics, f"majority@{k}/{name}", votes)
    metrics["per_sample_aggregate"] = {name: _by_run(scores, name, max_k) for name in names}
    _add_spread_across_runs(metrics, max_k)
    return PassMajorityMetrics(metrics, scores, names, max_k)


def _scores(record: Record, score_fn: ScoreFunction | None, answer_key: str | None) -> dict[str, float]:
    found = {"accuracy": record["reward"]} if score_fn is None else score_fn(record)
    scores = {name: int(value) if isinstance(value, bool) else value for name, value in found.items()}
    for name, value in scores.items():
        if not isinstance(value, int | float):
            raise TypeError(f"The score '{name}' is {value!r}; expected a number")
    return scores if answer_key is None else {**scores, "no_answer": int(record.get(answer_key) is None)}


def _put(metrics: dict[str, Any], key: str, values: Iterable[float]) -> None:
    """Add the mean over tasks in percent, if there are any."""
    found = list(values)
    if found:
        metrics[key] = 100 * fmean(found)


def _best_of(values: Sequence[float], k: int, *, is_binary: bool) -> float:
    """Return pass@k of one task; for scores other than 0 and 1, the best of the first k."""
    return pass_at_k(len(values), len(values) - values.count(0), k) if is_binary else max(values[:k])


def _majority(records: Sequence[Record], scores: Sequence[Mapping[str, float]], name: str, answer_key: str) -> float:
    """Return the mean score of the most frequent answer, over all of them if several are. No answers: 0."""
    by_answer: dict[Any, list[float]] = defaultdict(list)
    for record, found in zip(records, scores, strict=False):
        answer = record.get(answer_key)
        if answer is not None and name in found:
            key = json.dumps(answer, sort_keys=True, default=str) if isinstance(answer, list | dict) else answer
            by_answer[key].append(found[name])
    most = max(map(len, by_answer.values()), default=0)
    return fmean(fmean(votes) for votes in by_answer.values() if len(votes) == most) if most else 0.0


def _by_run(scores: Scores, name: str, max_k: int) -> list[float]:
    runs = ([task[run][name] for task in scores if run < len(task) and name in task[run]] for run in range(max_k))
    return [100 * fmean(values) for values in runs if values]


def _add_spread_across_runs(metrics: dict[str, Any], max_k: int) -> None:
    for name, runs in metrics["per_sample_aggregate"].items():
        for k in range(2, max_k + 1) if len(runs) > 1 else ():
            key, spread = f"pass@1[avg-of-{k}]/{name}", stdev(runs[:k])
            metrics[f"{key}/std_dev_across_runs"] = spread
            metrics[f"{key}/std_err_across_runs"] = spread / math.sqrt(len(runs[:k]))


def compute_subset_metrics(
    tasks: Tasks, subset_key: str, score_fn: ScoreFunction | None = None, answer_key: str | None = None
) -> dict[str, Any]:
    """Return the same for each value of a field, as `<value>/pass@1/accuracy`. Tasks without it are left out."""
    subsets: dict[Any, list[Sequence[Record]]] = defaultdict(list)
    for task in tasks:
        if task and task[0].get(subset_key):
            subsets[task[0][subset_key]].append(task)
    found: dict[str, Any] = {}
    for value, members in subsets.items():
        metrics = compute_pass_majority_metrics(members, score_fn, answer_key).metrics
        found |= {f"{value}/{name}": metric for name, metric in metrics.items() if name != "per_sample_aggregate"}
    return found


def highest_k_metrics(
    agent_metrics: Mapping[str, Any],
    pattern: str,
    score_names: Collection[str] | None = None,
    exclude_names: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the metrics with the largest k among those that a pattern such as `pass@{k}` names."""
    expression = re.compile(re.escape(pattern).replace(re.escape("{k}"), r"(\d+)") + r"/(.+)")
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for key, value in agent_metrics.items():
        match = expression.fullmatch(key)
        if match is None or match[2].endswith(_SPREADS):
            continue
        is_asked = score_names is None or match[2] in score_names
        if is_asked and match[2] not in (exclude_names or ()):
            found[int(match[1])][key] = value
    return found[max(found)] if found else {}


def add_avg_sample_std_dev(
    metrics: dict[str, Any], all_score_dicts: Scores, score_names: Sequence[str], max_k: int
) -> None:
    """Add how much the first k rollouts of a task differ, on average over tasks. Not in percent."""
    for name in score_names:
        values = [[one[name] for one in task if name in one] for task in all_score_dicts]
        for k in range(2, max_k + 1):
            spreads = [stdev(task[:k]) for task in values if len(task[:k]) > 1]
            if spreads:
                metrics[f"pass@1[avg-of-{k}]/{name}/avg_sample_std_dev"] = fmean(spreads)
