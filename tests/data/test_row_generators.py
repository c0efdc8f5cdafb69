"""Rows from a seed: the same each time, all different, and an error when there are no more."""

from itertools import islice
from random import Random
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.row_generators import difficulty_level, distinct_rows
from nemo_gym.testing import example_row


def sum_row(chance: Random, level: int) -> dict[str, Any]:
    a, b = chance.randrange(10 * level), chance.randrange(10)
    return example_row(f"{a} + {b}?", expected_answer=a + b)


def rows(seed: int, count: int, difficulty: float | str | None = None) -> list[dict[str, Any]]:
    return list(distinct_rows("sums", sum_row, seed=seed, count=count, difficulty=difficulty))


@pytest.mark.parametrize(("given", "level"), [(None, 1), (1, 1), (5, 5), ("3", 3), (2.0, 2)])
def test_a_difficulty_is_a_whole_number_from_1_to_5(given: float | str | None, level: int) -> None:
    assert difficulty_level(given) == level


@pytest.mark.parametrize("given", [0, 6, -1, 1.5, "hard", "", float("nan"), float("inf")])
def test_other_difficulties_are_refused(given: float | str) -> None:
    with pytest.raises(ConfigError, match="from 1 to 5"):
        difficulty_level(given)


def test_the_same_seed_gives_the_same_rows_and_a_longer_run_begins_like_a_shorter_one() -> None:
    assert rows(7, 50) == rows(7, 50)
    assert rows(7, 50)[:20] == rows(7, 20)
    assert rows(7, 20) != rows(8, 20)
    assert rows(7, 20, 1) != rows(7, 20, 2)


def test_no_two_rows_of_a_run_are_alike() -> None:
    prompts = [str(row["responses_create_params"]) for row in rows(7, 90)]
    assert len(set(prompts)) == 90


def test_asking_for_more_rows_than_there_are_says_how_many_there_are() -> None:
    endless = distinct_rows("sums", sum_row, seed=7, count=1000, difficulty=1)
    assert len(list(islice(endless, 90))) == 90
    with pytest.raises(ConfigError, match=r"about 100 .* difficulty 1"):
        list(endless)
