"""Rows from a seed: a list of numbers goes through several steps, and the result is one number.

The reference solution is made of functions from `reference.py`. It computes the tests and is the gold response."""

import inspect
import json
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, NamedTuple

from nemo_gym.data.generate import distinct_rows
from resources_servers.code_gen import reference

TESTS = 8
MIN_RESULTS = 4
"""Tests with fewer different results say too little about a program."""
LARGEST = 50
PROGRAM = (
    "Solve the problem with a Python program that reads standard input and writes standard output. "
    "Put the whole program into one ```python block at the end of your answer.\n\n"
    "The first line of the input contains n, the second n integers; n may be 0. "
)
FUNCTION = (
    "Solve the problem with a Python function. Put it into one ```python block at the end of your answer.\n\n"
    "Write `solve(numbers: list[int]) -> int`. The list may be empty. "
)
READ_AND_PRINT = "import sys\n\nprint(solve([int(word) for word in sys.stdin.read().split()[1:]]))\n"


class Step(NamedTuple):
    text: str
    function: Callable[..., Any]
    arguments: tuple[int, ...] = ()

    @property
    def call(self) -> str:
        return f"{self.function.__name__}({', '.join(['numbers', *map(str, self.arguments)])})"


class Task(NamedTuple):
    steps: list[Step]
    result: Step

    def solve(self, numbers: list[int]) -> int:
        for step in self.steps:
            numbers = step.function(numbers, *step.arguments)
        found: int = self.result.function(numbers, *self.result.arguments)
        return found

    @property
    def text(self) -> str:
        lines = [f"{number}. {step.text}" for number, step in enumerate(self.steps, 1)]
        return "\n".join(["Apply these steps to the list of integers, in this order:", *lines])

    @property
    def source(self) -> str:
        """A function `solve` and what it needs."""
        functions = dict.fromkeys(step.function for step in (*self.steps, self.result))
        lines = [f"    numbers = {step.call}" for step in self.steps]
        solve = ["def solve(numbers):", *lines, f"    return {self.result.call}"]
        return "\n\n".join([*map(_source, functions), "\n".join(solve)]) + "\n"


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """The difficulty is the number of steps. Higher difficulties also ask for results that are harder to compute."""
    return distinct_rows("code_gen", _row, seed=seed, count=count, difficulty=difficulty)


def _row(chance: Random, level: int) -> dict[str, Any]:
    is_function = chance.random() < 0.5
    task, inputs = _task(chance, level)
    outputs = [str(task.solve(numbers)) for numbers in inputs]
    shown = [_argument(numbers) if is_function else _lines(numbers) for numbers in inputs]
    ask, verb = (FUNCTION, "Return") if is_function else (PROGRAM, "Print")
    example = f"Example input:\n{shown[-1].rstrip()}\nExample output:\n{outputs[-1]}"
    prompt = f"{ask}{task.text}\n\n{verb} {task.result.text}.\n\n{example}"
    code = task.source if is_function else f"{task.source}\n\n{READ_AND_PRINT}"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
        "verifier_metadata": {
            "unit_tests": {"inputs": shown, "outputs": outputs, "fn_name": "solve" if is_function else None}
        },
        "gold_response": f"```python\n{code}```",
    }


def _task(chance: Random, level: int) -> tuple[Task, list[list[int]]]:
    """A task and inputs for it. The inputs depend on nothing else, so that the same task has the same prompt."""
    while True:
        steps = [make(chance) for make in chance.sample(STEPS, level)]
        task = Task(steps, chance.choice(RESULTS[level])(chance))
        inputs = _inputs(Random(f"{task.text} {task.result.text}"))
        if _is_telling(task, inputs):
            return task, inputs


def _inputs(chance: Random) -> list[list[int]]:
    """The empty list, a list of one number, and longer ones."""
    sizes = [0, 1, *(chance.randint(4, 20) for _ in range(TESTS - 2))]
    return [[chance.randint(-LARGEST, LARGEST) for _ in range(size)] for size in sizes]


def _is_telling(task: Task, inputs: list[list[int]]) -> bool:
    """True if results vary, and a program that leaves out a step fails."""
    results = [task.solve(numbers) for numbers in inputs]
    shorter = (task._replace(steps=task.steps[:place] + task.steps[place + 1 :]) for place in range(len(task.steps)))
    return len(set(results)) >= MIN_RESULTS and all(
        [other.solve(numbers) for numbers in inputs] != results for other in shorter
    )


def _lines(numbers: list[int]) -> str:
    return f"{len(numbers)}\n{' '.join(map(str, numbers))}\n"


def _argument(numbers: list[int]) -> str:
    return json.dumps(numbers)


@cache
def _source(function: Callable[..., Any]) -> str:
    return inspect.getsource(function)


MakeStep = Callable[[Random], Step]


def _with_number(text: str, function: Callable[..., Any], low: int, high: int) -> MakeStep:
    def make(chance: Random) -> Step:
        number = chance.randint(low, high)
        return Step(text.format(number), function, (number,))

    return make


def _plain(text: str, function: Callable[..., Any]) -> MakeStep:
    return lambda _: Step(text, function)


STEPS: tuple[MakeStep, ...] = (
    _with_number("Keep only the numbers that are divisible by {}.", reference.keep_multiples, 2, 4),
    _with_number("Keep only the numbers that are greater than {}.", reference.keep_greater, -30, 15),
    _with_number("Keep only the numbers whose absolute value is at most {}.", reference.keep_small, 15, 45),
    _with_number("Add {} to every number.", reference.add, 2, 60),
    _with_number("Multiply every number by {}.", reference.multiply, 2, 30),
    _with_number(
        "Replace every number by its remainder modulo {}, which is never negative.", reference.remainders, 3, 40
    ),
    _with_number("Remove the first {} numbers, or all if there are not more.", reference.drop_first, 1, 4),
    _with_number(
        "Keep only the first number and every number whose distance to it is a multiple of {} positions.",
        reference.keep_every,
        *(2, 4),
    ),
    _with_number("Move the first number to the end, {} times.", reference.rotate, 1, 9),
    _plain("Sort the numbers in ascending order.", reference.ascending),
    _plain("Reverse the list.", reference.backwards),
    _plain("Replace every number by the sum of itself and all numbers before it.", reference.running_sums),
    _plain(
        "Replace the list by the differences of neighbours, each number minus the one before it. "
        "The list becomes one number shorter; an empty list stays empty.",
        reference.differences,
    ),
    _plain("Keep only the first occurrence of every value.", reference.without_repeats),
)
RESULTS: dict[int, tuple[MakeStep, ...]] = {
    1: (
        _plain("the sum of the numbers", reference.total),
        _plain("the largest number, or 0 if there is none", reference.largest),
        _with_number("how many numbers are at most {}", reference.count_at_most, -10, 30),
    ),
    2: (
        _plain(
            "the alternating sum: first number minus second plus third and so on, 0 for an empty list",
            reference.alternating_sum,
        ),
        _plain("the difference between the largest and the smallest number, or 0 if there is none", reference.spread),
    ),
    3: (
        _plain("the length of the longest strictly increasing run of neighbours", reference.longest_run),
        _plain("the largest sum of a contiguous block; the empty block has the sum 0", reference.best_block),
    ),
    4: (
        _plain("the number of pairs of positions i < j whose numbers are in descending order", reference.inversions),
        _with_number(
            "the largest sum of a contiguous block of at most {} numbers; the empty block has the sum 0",
            reference.best_short_block,
            *(2, 5),
        ),
    ),
    5: (
        _plain("the length of the longest strictly increasing subsequence", reference.longest_subsequence),
        _with_number(
            "how many subsets of the positions, the empty one included, have a sum of numbers divisible by {}",
            reference.count_subsets,
            *(3, 12),
        ),
        _plain(
            "the largest sum of numbers no two of which are neighbours in the list, or 0 if no sum is positive",
            reference.best_apart,
        ),
    ),
}
"""The last step of the task, by difficulty."""
