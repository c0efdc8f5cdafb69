"""Rows from a seed: sums, and look-ups in a table.

The options are made first and one of them is then asked for, so that nothing about the options says which one is
right: each place, rank, length and distance to the others is equally likely."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from nemo_gym.data.generate import distinct_rows

LETTERS = "ABCDEFGHIJ"
ASK = "Put the letter of the right option, and nothing else, into \\boxed{}."
CITIES = (
    *("Arlo", "Brask", "Corvin", "Delmar", "Eskel", "Fenwick"),
    *("Garda", "Holt", "Isen", "Jorvik", "Kestrel", "Lund"),
)
COLUMNS = ("bakeries", "bridges", "cinemas", "fountains", "libraries", "parks")


class Question(NamedTuple):
    text: str
    answer: int
    others: list[int]
    """The wrong options."""


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """Higher difficulties have longer sums, larger tables and more options."""
    return distinct_rows("mcqa", _row, seed=seed, count=count, difficulty=difficulty)


def _row(chance: Random, level: int) -> dict[str, Any]:
    question, answer, others = (_sum if chance.random() < 0.5 else _look_up)(chance, level)
    numbers = chance.sample([answer, *others], 1 + len(others))
    listed = [{LETTERS[place]: str(number)} for place, number in enumerate(numbers)]
    shown = "\n".join(f"{letter}: {text}" for option in listed for letter, text in option.items())
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"{question}\n{shown}\n\n{ASK}"}]},
        "options": listed,
        "expected_answer": LETTERS[numbers.index(answer)],
        "grading_mode": "strict_single_letter_boxed",
        "uuid": str(UUID(int=chance.getrandbits(128), version=4)),
    }


def _sum(chance: Random, level: int) -> Question:
    """A sum with one more product than the difficulty. Several options have the same last digit."""
    factors = [(chance.randint(2, 9 * level), chance.randint(2, 12)) for _ in range(level)]
    start = chance.randint(100, 100 + 100 * level)
    text = " + ".join([str(start), *(f"{a} * {b}" for a, b in factors)])
    answer, digits = start + sum(a * b for a, b in factors), chance.sample(range(10), 2)
    offsets = chance.sample([10 * tens + digit for tens in range(6) for digit in digits], 3 + level)
    return Question(f"How much is {text}?", answer, [answer + offset - offsets[0] for offset in offsets[1:]])


def _look_up(chance: Random, level: int) -> Question:
    """A cell of a table or, from difficulty 3 on, the sum of a row; from 4 on, the difference of two cells. The other
    options answer the same question about other cells."""
    cities, columns = chance.sample(CITIES, 2 + 2 * level), chance.sample(COLUMNS, min(2 + level // 2, len(COLUMNS)))
    table = {city: {column: chance.randint(10, 99) for column in columns} for city in cities}
    lines = [" | ".join(["town", *columns])]
    lines += [" | ".join([city, *(str(table[city][column]) for column in columns)]) for city in cities]
    if level < 3:
        asked = [
            (f"How many {column} does {city} have?", table[city][column]) for city in cities for column in columns
        ]
    elif level == 3:
        named = " and ".join(columns)
        asked = [(f"How many {named} does {city} have in all?", sum(table[city].values())) for city in cities]
    else:
        column = chance.choice(columns)
        pairs = ((more, fewer) for more in cities for fewer in cities if table[more][column] > table[fewer][column])
        asked = [
            (f"How many more {column} does {more} have than {fewer}?", table[more][column] - table[fewer][column])
            for more, fewer in pairs
        ]
    by_answer = {answer: question for question, answer in chance.sample(asked, len(asked))}
    if len(by_answer) < 3 + level:
        return _look_up(chance, level)
    answer, *others = chance.sample(sorted(by_answer), 3 + level)
    return Question("\n".join([*lines, "", by_answer[answer]]), answer, others)
