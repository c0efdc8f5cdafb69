"""Rows from a seed: sums, and look-ups in a table. The wrong options are near the right one."""

from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

from nemo_gym.data.generate import distinct_rows

LETTERS = "ABCDEFGHIJ"
ASK = "Put the letter of the right option, and nothing else, into \\boxed{}."
CITIES = (
    *("Arlo", "Brask", "Corvin", "Delmar", "Eskel", "Fenwick"),
    *("Garda", "Holt", "Isen", "Jorvik", "Kestrel", "Lund"),
)
COLUMNS = ("bakeries", "bridges", "cinemas", "fountains", "libraries", "parks")


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """Higher difficulties have longer sums, larger tables and more options."""
    return distinct_rows("mcqa", _row, seed=seed, count=count, difficulty=difficulty)


def _row(chance: Random, level: int) -> dict[str, Any]:
    question, answer = (_sum if chance.random() < 0.5 else _look_up)(chance, level)
    options = {answer}
    while len(options) < 3 + level:
        options.add(answer + chance.choice((-10, -2, -1, 1, 2, 10)) * chance.randint(1, 3))
    numbers = chance.sample(sorted(options), len(options))
    listed = [{LETTERS[place]: str(number)} for place, number in enumerate(numbers)]
    shown = "\n".join(f"{letter}: {text}" for option in listed for letter, text in option.items())
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"{question}\n{shown}\n\n{ASK}"}]},
        "options": listed,
        "expected_answer": LETTERS[numbers.index(answer)],
        "grading_mode": "strict_single_letter_boxed",
        "uuid": str(UUID(int=chance.getrandbits(128), version=4)),
    }


def _sum(chance: Random, level: int) -> tuple[str, int]:
    """A sum with one more product than the difficulty."""
    factors = [(chance.randint(2, 9 * level), chance.randint(2, 12)) for _ in range(level)]
    start = chance.randint(10, 100 * level)
    text = " + ".join([str(start), *(f"{a} * {b}" for a, b in factors)])
    return f"How much is {text}?", start + sum(a * b for a, b in factors)


def _look_up(chance: Random, level: int) -> tuple[str, int]:
    """A cell of a table or, from difficulty 3 on, the sum of a row; from 4 on, the difference of two cells."""
    cities, columns = chance.sample(CITIES, 2 + 2 * level), chance.sample(COLUMNS, min(2 + level // 2, len(COLUMNS)))
    table = {city: {column: chance.randint(2, 99) for column in columns} for city in cities}
    lines = [" | ".join(["town", *columns])]
    lines += [" | ".join([city, *(str(table[city][column]) for column in columns)]) for city in cities]
    city, other, column = *chance.sample(cities, 2), chance.choice(columns)
    question, answer = f"How many {column} does {city} have?", table[city][column]
    if level == 3:
        question, answer = f"How many {' and '.join(columns)} does {city} have in all?", sum(table[city].values())
    if level > 3:
        more, fewer = sorted((city, other), key=lambda town: -table[town][column])
        question = f"How many more {column} does {more} have than {fewer}?"
        answer = table[more][column] - table[fewer][column]
    return "\n".join([*lines, "", question]), answer
