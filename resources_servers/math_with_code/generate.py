"""Rows from a seed: problems that are quick to solve with a few lines of Python.

The function that computes the answer is also the code of the gold response."""

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, NamedTuple

from nemo_gym.base_resources_server import tool_schemas_of
from nemo_gym.data.generate import distinct_rows, trivial_numbers
from nemo_gym.testing import calls, message
from resources_servers.math_with_code.app import PythonExecutorResourcesServer

SYSTEM = (
    "You solve mathematical problems. Compute with the tool execute_python; it keeps variables from one call to the "
    "next and has numpy, scipy and pandas. Then give the final answer, a whole number in digits, as \\boxed{answer}."
)
TOOL = "execute_python"


class Problem(NamedTuple):
    question: str
    solution: Callable[..., int]
    arguments: tuple[int, ...]

    @property
    def code(self) -> str:
        """The solution and a call of it, for the tool."""
        return f"{_source(self.solution)}\n{self.solution.__name__}{self.arguments}"


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """1: divisibility and digits. 2: primes and palindromes. 3: partitions and modular equations. 4: recurrences,
    lattice points and Collatz sequences. 5: dice and lattice paths."""
    tools = [each for each in tool_schemas_of(PythonExecutorResourcesServer) if each["name"] == TOOL]
    return distinct_rows(
        "math_with_code",
        lambda chance, level: _row(chance, level, tools),
        seed=seed,
        count=count,
        difficulty=difficulty,
    )


def _row(chance: Random, level: int, tools: list[dict[str, Any]]) -> dict[str, Any]:
    problem, answer = _problem(chance, level)
    return {
        "responses_create_params": {
            "input": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem.question}],
            "tools": tools,
            "parallel_tool_calls": False,
        },
        "expected_result": answer,
        "gold_response": [
            calls(TOOL, {"code": problem.code}, call_id="call_0"),
            message(rf"The answer is \boxed{{{answer}}}."),
        ],
    }


def _problem(chance: Random, level: int) -> tuple[Problem, str]:
    """A problem and its answer, which is not found by adding or multiplying numbers of the question."""
    while True:
        problem = chance.choice(KINDS[level])(chance)
        answer = problem.solution(*problem.arguments)
        if answer not in trivial_numbers(problem.question):
            return problem, str(answer)


@cache
def _source(function: Callable[..., int]) -> str:
    return inspect.getsource(function)


def count_multiples(limit: int, factor: int, excluded: int) -> int:
    return sum(n % factor == 0 and n % excluded != 0 for n in range(1, limit + 1))


def _multiples(chance: Random) -> Problem:
    limit, (factor, excluded) = chance.randint(500, 5000), chance.sample((3, 4, 5, 7, 8, 9, 11, 13), 2)
    text = f"How many of the numbers from 1 to {limit} are divisible by {factor} but not by {excluded}?"
    return Problem(text, count_multiples, (limit, factor, excluded))


def digit_sum(base: int, exponent: int) -> int:
    return sum(map(int, str(base**exponent)))


def _digits(chance: Random) -> Problem:
    base, exponent = chance.randint(2, 30), chance.randint(20, 120)
    return Problem(f"What is the sum of the decimal digits of {base}^{exponent}?", digit_sum, (base, exponent))


def sum_of_primes(low: int, high: int) -> int:
    return sum(n for n in range(low, high + 1) if all(n % d for d in range(2, int(n**0.5) + 1)))


def _primes(chance: Random) -> Problem:
    low = chance.randint(10, 3000)
    high = low + chance.randint(100, 400)
    return Problem(f"What is the sum of all primes from {low} to {high}?", sum_of_primes, (low, high))


def count_palindromes(low: int, high: int, base: int) -> int:
    def digits(n: int) -> list[int]:
        return [] if n == 0 else [n % base, *digits(n // base)]

    return sum(digits(n) == digits(n)[::-1] for n in range(low, high + 1))


def _palindromes(chance: Random) -> Problem:
    low, base = chance.randint(1, 200), chance.randint(2, 9)
    high = low + chance.randint(300, 600)
    text = f"How many of the numbers from {low} to {high} (in decimal) are palindromes when written in base {base}?"
    return Problem(text, count_palindromes, (low, high, base))


def count_partitions(total: int, largest: int) -> int:
    ways = [1] + [0] * total
    for part in range(1, largest + 1):
        for n in range(part, total + 1):
            ways[n] += ways[n - part]
    return ways[total]


def _partitions(chance: Random) -> Problem:
    total, largest = chance.randint(20, 80), chance.randint(3, 15)
    text = (
        f"In how many ways can {total} be written as a sum of positive integers that are at most {largest}, "
        "if the order does not matter?"
    )
    return Problem(text, count_partitions, (total, largest))


def sum_of_roots(factor: int, residue: int, modulus: int) -> int:
    return sum(x for x in range(modulus) if (x * x + factor * x) % modulus == residue)


def _roots(chance: Random) -> Problem:
    modulus = chance.choice((3, 5, 7)) * chance.choice((8, 9, 11, 13, 16, 17)) * chance.randint(2, 12)
    factor, root = chance.randint(2, 30), chance.randrange(modulus)
    residue = (root * root + factor * root) % modulus
    text = (
        f"What is the sum of all integers x with 0 <= x < {modulus} that satisfy "
        f"x^2 + {factor}x = {residue} (mod {modulus})?"
    )
    return Problem(text, sum_of_roots, (factor, residue, modulus))


def recurrence(a: int, b: int, index: int, modulus: int) -> int:
    current, following = 0, 1
    for _ in range(index):
        current, following = following, (a * following + b * current) % modulus
    return current


def _recurrence(chance: Random) -> Problem:
    a, b, index, modulus = (chance.randint(*bounds) for bounds in ((2, 9), (2, 9), (100, 999), (1000, 9999)))
    text = (
        f"Let x_0 = 0, x_1 = 1 and x_n = {a} x_(n-1) + {b} x_(n-2) for n >= 2. "
        f"What is the remainder when x_{index} is divided by {modulus}?"
    )
    return Problem(text, recurrence, (a, b, index, modulus))


def count_points(a: int, b: int, bound: int) -> int:
    side = range(-int(bound**0.5), int(bound**0.5) + 1)
    return sum(a * x * x + b * y * y <= bound for x in side for y in side)


def _points(chance: Random) -> Problem:
    a, b, bound = chance.randint(1, 5), chance.randint(2, 7), chance.randint(100, 600)
    text = f"How many pairs of integers (x, y) satisfy {a}x^2 + {b}y^2 <= {bound}?"
    return Problem(text, count_points, (a, b, bound))


def most_steps(low: int, high: int) -> int:
    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    return max(steps(n) for n in range(low, high + 1))


def _collatz(chance: Random) -> Problem:
    low = chance.randint(50, 2000)
    high = low + chance.randint(5, 30)
    text = (
        "A step halves an even number n and replaces an odd one by 3n + 1. "
        f"Over all numbers from {low} to {high}, what is the largest number of steps needed to reach 1?"
    )
    return Problem(text, most_steps, (low, high))


def count_throws(dice: int, sides: int, least: int) -> int:
    ways = {0: 1}
    for _ in range(dice):
        totals = {total + face for total in ways for face in range(1, sides + 1)}
        ways = {total: sum(ways.get(total - face, 0) for face in range(1, sides + 1)) for total in totals}
    return sum(number for total, number in ways.items() if total >= least)


def _throws(chance: Random) -> Problem:
    dice, sides = chance.randint(3, 12), chance.randint(4, 12)
    least = chance.randint(dice * sides // 2, dice * sides - dice)
    text = (
        f"{dice} distinguishable dice have {sides} sides each, numbered from 1 to {sides}. "
        f"How many of the {sides}^{dice} outcomes have a sum of at least {least}?"
    )
    return Problem(text, count_throws, (dice, sides, least))


def count_paths(width: int, height: int, lead: int) -> int:
    ways = {(0, 0): 1}
    for x in range(width + 1):
        for y in range(min(height, x + lead) + 1):
            if (x, y) != (0, 0):
                ways[x, y] = ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)
    return ways[width, height]


def _paths(chance: Random) -> Problem:
    width, lead = chance.randint(6, 18), chance.randint(1, 5)
    height = chance.randint(lead + 1, width + lead)
    text = (
        f"A path leads from (0, 0) to ({width}, {height}). Each step goes from (x, y) to (x + 1, y) or to (x, y + 1), "
        f"and every point of the path satisfies y <= x + {lead}. How many such paths are there?"
    )
    return Problem(text, count_paths, (width, height, lead))


KINDS: dict[int, tuple[Callable[[Random], Problem], ...]] = {
    1: (_multiples, _digits),
    2: (_primes, _palindromes),
    3: (_partitions, _roots),
    4: (_recurrence, _points, _collatz),
    5: (_throws, _paths),
}
