"""No strategy that does not answer the question is right more often than by chance."""

import re
from collections.abc import Callable

import pytest

from resources_servers.mcqa.generate import generate_rows

COUNT = 1000
NOISE = 0.05
"""More than three standard deviations."""


def hub(numbers: list[int]) -> int:
    return min(numbers, key=lambda number: sum(abs(number - other) for other in numbers))


def in_prompt(numbers: list[int], question: str, *, place: int) -> int:
    """The first or last number of the question that is an option."""
    found = [int(digits) for digits in re.findall(r"\d+", question) if int(digits) in numbers]
    return found[place] if found else numbers[0]


def nearest_to_prompt(numbers: list[int], question: str) -> int:
    largest = max(map(int, re.findall(r"\d+", question)))
    return min(numbers, key=lambda number: abs(number - largest))


def last_digit(numbers: list[int], *, is_common: bool) -> int:
    """An option whose last digit is that of most others, or of the fewest."""
    digits = [number % 10 for number in numbers]
    return (max if is_common else min)(numbers, key=lambda number: digits.count(number % 10))


STRATEGIES: dict[str, Callable[[list[int], str], int]] = {
    **{f"option {place}": lambda numbers, _, place=place: numbers[place] for place in (0, 1, 2, 3, -1, -2)},  # type: ignore[misc]
    "middle place": lambda numbers, _: numbers[len(numbers) // 2],
    "smallest": lambda numbers, _: min(numbers),
    "largest": lambda numbers, _: max(numbers),
    "median": lambda numbers, _: sorted(numbers)[len(numbers) // 2],
    "lower median": lambda numbers, _: sorted(numbers)[(len(numbers) - 1) // 2],
    "second smallest": lambda numbers, _: sorted(numbers)[1],
    "nearest to the others": lambda numbers, _: hub(numbers),
    "longest": lambda numbers, _: max(numbers, key=lambda number: len(str(number))),
    "shortest": lambda numbers, _: min(numbers, key=lambda number: len(str(number))),
    "common last digit": lambda numbers, _: last_digit(numbers, is_common=True),
    "rare last digit": lambda numbers, _: last_digit(numbers, is_common=False),
    "first number of the prompt": lambda numbers, question: in_prompt(numbers, question, place=0),
    "last number of the prompt": lambda numbers, question: in_prompt(numbers, question, place=-1),
    "nearest to the largest number": nearest_to_prompt,
}


@pytest.mark.parametrize("difficulty", range(1, 6))
def test_no_strategy_is_better_than_chance(difficulty: int) -> None:
    solved = dict.fromkeys(STRATEGIES, 0)
    for row in generate_rows(11, COUNT, difficulty):
        numbers = [int(text) for option in row["options"] for text in option.values()]
        question = row["responses_create_params"]["input"][0]["content"].partition("\nA: ")[0]
        right = int(
            next(option[row["expected_answer"]] for option in row["options"] if row["expected_answer"] in option)
        )
        for name, strategy in STRATEGIES.items():
            solved[name] += strategy(numbers, question) == right
    better = {name: count / COUNT for name, count in solved.items() if count / COUNT > 1 / (3 + difficulty) + NOISE}
    assert better == {}
