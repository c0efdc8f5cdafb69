"""Metrics are those of the records, whatever the order in which they land, and tasks are dropped once complete."""

import json
import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nemo_gym.common.metrics import StageLoad
from nemo_gym.errors import Cause, RolloutError
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.types import Outcome, Row, metric_fields


def record(task: int | None, reward: float, **fields: Any) -> dict[str, Any]:
    marks = {} if task is None else {"_task_index": task}
    return {"reward": reward, **fields, **marks}


def failure(cause: Cause, task: int = 0) -> Outcome:
    return Outcome.failed(Row(task, 0, "0" * 16, "agent", b"{}"), RolloutError(cause, "It failed."))


def metrics_of(records: list[dict[str, Any]], **options: Any) -> RunningMetrics:
    metrics = RunningMetrics(**options)
    for one in records:
        metrics.add(one)
    return metrics


def test_a_field_is_averaged_over_the_records_that_have_it() -> None:
    metrics = metrics_of([record(0, 1.0, overlap=0.5), record(1, 0.0, overlap=1, right=True), record(2, 0.5)])
    assert metrics.means() == {"reward": 0.5, "overlap": 0.75, "right": 1.0}
    summary = metrics.summary()
    assert (summary["reward"]["mean"], summary["reward"]["samples"]) == (0.5, 3)
    assert (summary["fields"]["overlap"]["mean"], summary["fields"]["overlap"]["samples"]) == (0.75, 2)
    assert (summary["fields"]["right"]["standard_error"], summary["fields"]["right"]["interval_95"]) == (None, None)


def test_masked_rollouts_count_in_no_mean() -> None:
    records = [record(0, 1.0), record(0, 0.0, mask_sample=True), record(1, 0.5, mask_sample=False)]
    metrics = RunningMetrics(num_repeats=None)
    for each in records:
        metrics.add(each)
    summary = metrics.summary()
    assert (summary["scored"], summary["masked"], summary["reward"]["mean"]) == (3, 1, 0.75)
    assert "mask_sample" not in summary["fields"]
    assert "1 rollout masked" in metrics.table()
    assert metrics.mean_reward() == 0.75


def test_what_is_no_number_is_no_metric() -> None:
    odd = {
        "text": "7",
        "none": None,
        "list": [1],
        "nan": float("nan"),
        "inf": float("inf"),
        "huge": 10**400,
        "_mark": 1,
    }
    summary = metrics_of([record(0, 1.0, **odd)]).summary()
    assert summary["fields"] == {}
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


@pytest.mark.parametrize("seed", range(5))
def test_values_that_are_no_numbers_leave_the_others_of_their_field(seed: int) -> None:
    values: list[Any] = [1.0, float("nan"), "x", 3, True, float("-inf"), None, 10**400, [7]]
    records = [record(task, 1.0, score=value) for task, value in enumerate(values)]
    records += [record(9, 0.0), record(10, 0.0, other=2, score=3), {"score": 2.0, "reward": 1.0}]
    random.Random(seed).shuffle(records)
    fields = metrics_of(records, num_repeats=1).summary()["fields"]
    assert (fields["score"]["samples"], fields["score"]["mean"]) == (5, 2.0)
    assert (fields["other"]["samples"], fields["other"]["mean"]) == (1, 2.0)


def test_repeats_of_a_row_are_one_cluster() -> None:
    repeated = metrics_of([record(task, reward) for task, reward in enumerate((0.0, 1.0, 1.0)) for _ in range(4)])
    once = metrics_of([record(task, reward) for task, reward in enumerate((0.0, 1.0, 1.0))])
    assert repeated.summary()["reward"]["standard_error"] == pytest.approx(once.summary()["reward"]["standard_error"])
    assert (repeated.summary()["tasks"], repeated.summary()["reward"]["samples"]) == (3, 12)


def test_records_without_marks_are_rows_of_their_own() -> None:
    summary = metrics_of([record(None, 1.0), record(None, 0.0)]).summary()
    assert (summary["tasks"], summary["reward"]["standard_error"]) == (2, 0.5)
    assert "pass@2" not in summary


def test_pass_at_k_is_given_for_the_powers_of_two_that_repeats_allow() -> None:
    rewards = [1.0, 0.0, 0.0, 0.0, 0.0]
    summary = metrics_of([record(0, reward) for reward in rewards] + [record(1, 1.0)], num_repeats=5).summary()
    chances = {name: reply["mean"] for name, reply in summary.items() if name.startswith("pass@")}
    assert chances == {"pass@1": pytest.approx(0.6), "pass@2": pytest.approx(0.4), "pass@4": pytest.approx(0.8)}
    assert (summary["pass@1"]["tasks"], summary["pass@4"]["tasks"]) == (2, 1)


@pytest.mark.parametrize(("threshold", "expected"), [(1.0, 0.0), (0.5, 1.0), (0.9, 0.0)])
def test_what_passes_is_a_matter_of_the_threshold(threshold: float, expected: float) -> None:
    assert metrics_of([record(0, 0.5)], pass_threshold=threshold).summary()["pass@1"]["mean"] == expected


def test_the_majority_is_right_more_often_than_one_sample() -> None:
    votes = [("7", 1.0), ("7", 1.0), ("7", 1.0), ("8", 0.0)]
    summary = metrics_of([record(0, reward, extracted_answer=answer) for answer, reward in votes]).summary()
    assert summary["majority@1"]["mean"] == 0.75
    assert summary["majority@2"]["mean"] == 0.75
    assert summary["majority@4"]["mean"] == 1.0


def test_no_answer_is_no_vote_but_a_task_without_any_counts() -> None:
    silent = [record(1, 0.0, extracted_answer=answer) for answer in (None, "", None, None)]
    votes = [record(0, reward, extracted_answer=answer) for answer, reward in (("a", 1.0), (None, 0.0), ("b", 0.0))]
    summary = metrics_of([*silent, *votes, record(0, 0.0, extracted_answer=None)]).summary()
    assert summary["majority@1"]["mean"] == pytest.approx(0.125)
    assert summary["majority@4"]["mean"] == pytest.approx(0.25)
    assert metrics_of([record(0, 1.0), record(0, 0.0)]).summary().keys().isdisjoint({"majority@1", "majority@2"})


def test_an_answer_that_never_differs_is_the_rows_own_and_no_vote() -> None:
    echoed = [record(task, float(task), answer="the right one") for task in (0, 0, 1, 1)]
    assert "majority@1" not in metrics_of(echoed).summary()


def test_an_answer_may_be_anything_and_stands_in_the_first_of_the_known_fields() -> None:
    choices = [
        record(0, 1.0, extracted_answer={"b": 2, "a": 1}),
        record(0, 1.0, extracted_answer={"a": 1, "b": 2}),
        record(0, 0.0, extracted_answer=3),
    ]
    summary = metrics_of([{**one, "answer": "gold"} for one in choices]).summary()
    assert summary["majority@2"]["mean"] == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_tokens_time_and_attempts_are_in_the_summary() -> None:
    def used(number: int) -> dict[str, Any]:
        usage = {"input_tokens": number, "output_tokens": 2 * number, "total_tokens": 3 * number}
        return {"usage": {**usage, "output_tokens_details": {"reasoning_tokens": 1}}}

    marks = {"_attempts": 2, "_retries": 1}
    records = [record(n, 1.0, response=used(n), _seconds=float(n), **marks) for n in range(1, 101)]
    summary = metrics_of([*records, record(101, 1.0, response={"usage": None})]).summary()
    assert summary["tokens"] == {
        "input": {"mean": 50.5, "total": 5050},
        "output": {"mean": 101.0, "total": 10100},
        "reasoning": {"mean": 1.0, "total": 100},
        "total": {"mean": 151.5, "total": 15150},
    }
    assert summary["latency_s"] == {
        name: pytest.approx(v, rel=0.01)
        for name, v in zip(("p50", "p90", "p99", "max"), (50, 90, 99, 100), strict=True)
    }
    assert (summary["attempts"], summary["retries"]) == (200, 100)


def test_failures_are_counted_by_cause_and_complete_a_task_without_metrics() -> None:
    metrics = RunningMetrics(num_repeats=2)
    metrics.add(record(0, 1.0))
    failures: list[tuple[int, Cause]] = [(0, "model"), (1, "timeout"), (1, "timeout"), (2, "input")]
    for task, cause in failures:
        metrics.add_outcome(failure(cause, task))
    assert metrics.failed == {"model": 1, "timeout": 2, "input": 1}
    metrics.add_outcome(replace(failure("model", 0), is_final=False))
    assert list(metrics._open) == [2]
    summary = metrics.summary()
    assert summary["failures_by_cause"] == {"input": 1, "model": 1, "timeout": 2}
    assert (summary["tasks"], summary["reward"]["mean"], "pass@2" in summary) == (1, 1.0, False)


def test_a_task_is_dropped_once_all_of_its_repeats_are_in() -> None:
    metrics = RunningMetrics(num_repeats=4)
    for task in range(1000):
        for _ in range(4):
            metrics.add(record(task, 1.0, extracted_answer="x" * 100))
        assert len(metrics._open) == 0
    assert metrics.summary()["pass@4"]["tasks"] == 1000


rollouts = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from([0.0, 0.25, 1.0]),
        st.sampled_from(["a", "b", "c", None]),
        st.floats(0.01, 100),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@given(rollouts, st.integers(0, 2**32))
def test_the_order_of_arrival_does_not_matter(
    drawn: list[tuple[int, float, str | None, float, bool]], seed: int
) -> None:
    records = [
        record(task, reward, extracted_answer=answer, _seconds=seconds, **({"spare": seconds} if has_field else {}))
        for task, reward, answer, seconds, has_field in drawn
    ]
    shuffled = random.Random(seed).sample(records, len(records))
    first, second = metrics_of(records).summary(), metrics_of(shuffled).summary()
    assert list(first) == list(second)
    assert flat(first) == pytest.approx(flat(second), nan_ok=True, abs=1e-9)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3), min_size=1, max_size=8))
def test_dropping_complete_tasks_changes_no_metric(tasks: list[list[float]]) -> None:
    records = [record(task, reward) for repeat in range(3) for task, reward in enumerate(r[repeat] for r in tasks)]
    kept, dropped = metrics_of(records), metrics_of(records, num_repeats=3)
    assert (len(kept._open), len(dropped._open)) == (len(tasks), 0)
    assert flat(kept.summary()) == pytest.approx(flat(dropped.summary()), abs=1e-9)


def test_asking_half_way_changes_nothing() -> None:
    metrics = RunningMetrics(num_repeats=2)
    for one in [record(0, 1.0), record(1, 0.0), record(1, 1.0), record(0, 1.0)]:
        metrics.add(one)
        assert metrics.table()
    assert metrics.summary() == metrics_of([record(0, 1.0)] * 2 + [record(1, 0.0), record(1, 1.0)]).summary()


def test_the_table_has_all_metrics() -> None:
    metrics = metrics_of([record(task, task % 2, overlap=0.5, _seconds=1.0, _attempts=1) for task in (0, 1, 1, 0)])
    metrics.add_outcome(failure("judge"))
    table = metrics.table()
    for reply in (
        "4 scored rollouts of 2 tasks",
        "1 without a result (judge 1)",
        "reward",
        "pass@2",
        "overlap",
        "max 1",
    ):
        assert reply in table
    assert len({len(line) for line in table.splitlines() if line.startswith(("reward", "pass@", "overlap"))}) == 1


def test_the_table_has_one_line_for_each_metric() -> None:
    fields = {"forged\nreward": 7, "\x1b[2J": 3, "judge_failure": "none\n9 scored rollouts"}
    table = metrics_of([record(0, 1.0, **fields)]).table()
    assert "\x1b" not in table
    assert [line for line in table.splitlines() if line.startswith(("reward", "9 scored"))] == [
        line for line in table.splitlines() if line.startswith("reward ")
    ]
    assert "forged\\nreward" in table


def test_a_judge_failure_that_is_no_text_is_counted() -> None:
    kinds = (True, 7, "refused", True, False, None)
    summary = metrics_of([record(task, 1.0, judge_failure=kind) for task, kind in enumerate(kinds)]).summary()
    assert summary["judge_failures"] == {"7": 1, "refused": 1, "true": 2}
    assert json.loads(json.dumps(summary)) == summary


def test_nothing_has_a_table_too() -> None:
    assert RunningMetrics().table() == "0 scored rollouts"
    assert RunningMetrics().summary()["reward"] is None


def flat(value: Any, path: str = "") -> dict[str, float]:
    """Every number of a summary under its path."""
    if isinstance(value, dict):
        return {key: number for name, item in value.items() for key, number in flat(item, f"{path}.{name}").items()}
    if isinstance(value, list):
        return {
            key: number for index, item in enumerate(value) for key, number in flat(item, f"{path}.{index}").items()
        }
    return {} if value is None else {path: float(value)}


def test_any_number_of_tokens_that_an_endpoint_reports_can_be_written() -> None:
    metrics = RunningMetrics(num_repeats=1)
    record = {"reward": 1.0, "response": {"usage": {"input_tokens": 10**30, "output_tokens": 2}}}
    metrics.add_outcome(Outcome(Row(0, 0, "0" * 16, "agent", b"{}"), b"{}", **metric_fields(record)))
    tokens = orjson.loads(orjson.dumps(metrics.summary()))["tokens"]
    assert (tokens["input"]["total"], tokens["output"]["total"]) == (1e30, 2)


def test_only_requests_since_the_start_of_a_collection_count_by_stage() -> None:
    def load(requests: int, seconds: float) -> StageLoad:
        return StageLoad(in_flight=0, requests=requests, seconds=seconds)

    before = {"model": load(2, 1.0), "tool": load(1, 3.0)}
    now = {"model": load(5, 2.5), "tool": load(1, 3.0), "verify": load(1, 0.1), "agent": load(9, 9.0)}
    metrics = RunningMetrics()
    metrics.add_stages(before, now)
    assert metrics.summary()["stages"] == {
        "model": {"requests": 3, "seconds": 1.5},
        "verify": {"requests": 1, "seconds": 0.1},
    }


def test_no_interval_of_a_share_leaves_its_range() -> None:
    metrics = RunningMetrics(num_repeats=1)
    for index, share in enumerate((0.0, 0.0, 0.0, 0.5)):
        fields = {"share": share, "count": int(share * 20), "change": int(share * 20) - 1, "offset": share - 0.2}
        metrics.add({"reward": share, "_task_index": index, "_repeat_index": 0, **fields})
    found = metrics.summary()
    assert found["fields"]["share"]["interval_95"] == found["reward"]["interval_95"]
    low, high = found["fields"]["share"]["interval_95"]
    assert 0 <= low < high <= 1
    assert found["fields"]["offset"]["interval_95"][0] < -0.2
    assert found["fields"]["count"]["interval_95"][0] == 0 > found["fields"]["change"]["interval_95"][0]
