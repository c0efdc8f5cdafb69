"""Metrics of public benchmarks on small examples worked out by hand."""

from typing import Any

import pytest

from nemo_gym.reward_profile import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)

TASKS: list[list[dict[str, Any]]] = [
    [{"reward": 1, "said": "x"}, {"reward": 0, "said": "y"}, {"reward": 1, "said": "x"}],
    [{"reward": 0, "said": None}, {"reward": 0, "said": "z"}],
]


def test_pass_and_majority_of_two_tasks() -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(TASKS, answer_key="said")
    expected = {
        "pass@1/accuracy": 100 / 3,
        "pass@2/accuracy": 50,
        "pass@3/accuracy": 100,
        "pass@1[avg-of-1]/accuracy": 50,
        "pass@1[avg-of-2]/accuracy": 25,
        "pass@1[avg-of-3]/accuracy": 100 / 3,
        "majority@1/accuracy": 50,
        "majority@2/accuracy": 25,
        "majority@3/accuracy": 50,
        "pass@1/no_answer": 25,
        "pass@1[avg-of-2]/accuracy/std_dev_across_runs": 35.355,
        "pass@1[avg-of-2]/accuracy/std_err_across_runs": 25,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-3)
    assert metrics["per_sample_aggregate"]["accuracy"] == [50, 0, 100]
    assert (names, max_k, len(scores)) == (["accuracy", "no_answer"], 3, 2)
    add_avg_sample_std_dev(metrics, scores, names, max_k)
    assert metrics["pass@1[avg-of-2]/accuracy/avg_sample_std_dev"] == pytest.approx(0.35355, abs=1e-4)


def test_scores_that_are_no_yes_or_no_take_the_best_of_the_first_k() -> None:
    metrics = compute_pass_majority_metrics([[{"reward": 0.2}, {"reward": 0.9}, {"reward": 0.5}]]).metrics
    assert (metrics["pass@1/accuracy"], metrics["pass@2/accuracy"]) == (20, 90)


def test_one_task_that_is_yes_or_no_is_not_estimated_another_way_than_its_neighbour() -> None:
    metrics = compute_pass_majority_metrics(
        [[{"reward": 0}, {"reward": 1}], [{"reward": 0.5}, {"reward": 0.5}]]
    ).metrics
    assert metrics["pass@1/accuracy"] == 25


def test_a_judge_that_scored_one_answer_both_ways_does_not_split_its_votes() -> None:
    task = [{"reward": 1, "said": "x"}, {"reward": 0, "said": "x"}, {"reward": 0, "said": ["y"]}]
    metrics = compute_pass_majority_metrics([task], answer_key="said").metrics
    assert metrics["majority@3/accuracy"] == 50


def test_no_tasks_and_no_rewards() -> None:
    assert compute_pass_majority_metrics([]) == ({}, [], [], 0)
    with pytest.raises(KeyError):
        compute_pass_majority_metrics([[{}]])
    with pytest.raises(TypeError, match="expected a number"):
        compute_pass_majority_metrics([[{"reward": None}]])


def test_subsets_have_their_value_in_front() -> None:
    tasks: list[list[dict[str, Any]]] = [
        [{"reward": 1, "level": "easy"}],
        [{"reward": 0, "level": "hard"}],
        [{"reward": 0}],
    ]
    found = compute_subset_metrics(tasks, "level")
    assert {name: value for name, value in found.items() if "avg" not in name} == {
        "easy/pass@1/accuracy": 100,
        "hard/pass@1/accuracy": 0,
    }


def test_the_highest_k_of_a_pattern() -> None:
    metrics = {"pass@1/a": 1, "pass@4/a": 2, "pass@4/b": 3, "pass@1[avg-of-8]/a": 4, "pass@4/a/std_dev_across_runs": 5}
    assert highest_k_metrics(metrics, "pass@{k}") == {"pass@4/a": 2, "pass@4/b": 3}
    assert highest_k_metrics(metrics, "pass@{k}", score_names=["a"]) == {"pass@4/a": 2}
    assert highest_k_metrics(metrics, "pass@{k}", exclude_names=["a"]) == {"pass@4/b": 3}
    assert highest_k_metrics(metrics, "pass@1[avg-of-{k}]") == {"pass@1[avg-of-8]/a": 4}
    assert highest_k_metrics(metrics, "majority@{k}") == {}
