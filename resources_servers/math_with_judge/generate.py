"""Rows from a seed: problems with one answer that is known by construction.

No expression or number in a problem, nor a sum, difference, product or quotient of them, equals its answer, and no
answer is 0 or 1: copying is never rewarded."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from nemo_gym.data.generate import distinct_rows, trivial_numbers

ASK = "Solve this problem. Put your final answer, and nothing else, inside \\boxed{}."


class Problem(NamedTuple):
    question: str
    answer: str


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """1: arithmetic. 2: fractions and linear equations. 3: remainders and divisors. 4: quadratic equations, systems.
    5: counting, series and derivatives."""
    return distinct_rows("math_with_judge", _row, seed=seed, count=count, difficulty=difficulty)


def _row(chance: Random, level: int) -> dict[str, Any]:
    problem = chance.choice(KINDS[level])(chance)
    while problem.answer in map(latex, trivial_numbers(problem.question)):
        problem = chance.choice(KINDS[level])(chance)
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"{ASK}\n\n{problem.question}"}]},
        "question": problem.question,
        "expected_answer": problem.answer,
    }


def latex(number: Fraction) -> str:
    """A whole number, or a fraction in lowest terms."""
    if number.denominator == 1:
        return str(number.numerator)
    sign = "-" if number < 0 else ""
    return rf"{sign}\frac{{{abs(number.numerator)}}}{{{number.denominator}}}"


def _arithmetic(chance: Random) -> Problem:
    a, b, c = chance.randint(11, 99), chance.randint(3, 29), chance.randint(101, 999)
    return Problem(f"Multiply ${a}$ by ${b}$, then subtract ${c}$. What is the result?", str(a * b - c))


def _powers(chance: Random) -> Problem:
    a, b, c = chance.randint(2, 12), chance.randint(2, 4), chance.randint(2, 99)
    return Problem(f"Raise ${a}$ to the power of ${b}$, then add ${c}$. What is the result?", str(a**b + c))


def _fractions(chance: Random) -> Problem:
    one, other = (Fraction(chance.randint(1, 20), chance.randint(2, 15)) for _ in range(2))
    text = f"What is the sum of ${latex(one)}$ and ${latex(other)}$? Give a fraction in lowest terms."
    return Problem(text, latex(one + other))


def _linear(chance: Random) -> Problem:
    a, b, c = chance.randint(2, 15), chance.randint(-30, 30), chance.randint(-50, 50)
    sign = "+" if b >= 0 else "-"
    return Problem(f"Solve ${a}x {sign} {abs(b)} = {c}$ for $x$. Give a number.", latex(Fraction(c - b, a)))


def _remainder(chance: Random) -> Problem:
    base, exponent, modulus = chance.randint(2, 30), chance.randint(20, 500), chance.randint(40, 199)
    text = f"What is the remainder when ${base}^{{{exponent}}}$ is divided by ${modulus}$?"
    return Problem(text, str(pow(base, exponent, modulus)))


def _divisors(chance: Random) -> Problem:
    divisor = chance.randint(2, 12)
    a, b = divisor * chance.randint(10, 70), divisor * chance.randint(10, 70)
    return Problem(f"What is the least common multiple of ${a}$ and ${b}$?", str(math.lcm(a, b)))


def _quadratic(chance: Random) -> Problem:
    low, gap = chance.randint(-15, 12), chance.randint(1, 12)
    b, c = -(2 * low + gap), low * (low + gap)
    terms = f"x^2 {'+' if b >= 0 else '-'} {abs(b)}x {'+' if c >= 0 else '-'} {abs(c)}"
    return Problem(f"What is the larger solution of ${terms} = 0$?", str(low + gap))


def _system(chance: Random) -> Problem:
    x, y = chance.randint(-20, 20), chance.randint(-20, 20)
    a, b = chance.randint(2, 9), chance.randint(2, 9)
    text = f"If ${a}x + {b}y = {a * x + b * y}$ and $x - y = {x - y}$, what is $x + y$?"
    return Problem(text, str(x + y))


def _counting(chance: Random) -> Problem:
    group, chosen, apart = chance.randint(6, 15), chance.randint(3, 5), chance.randint(1, 2)
    text = (
        f"A team of {chosen} is chosen from {group} people. {apart + 1} of these people refuse to be in the team "
        "together, all of them at once. How many teams are possible?"
    )
    return Problem(text, str(math.comb(group, chosen) - math.comb(group - apart - 1, chosen - apart - 1)))


def _series(chance: Random) -> Problem:
    first, step, count = chance.randint(1, 30), chance.randint(2, 15), chance.randint(20, 200)
    terms = rf"{first}, {first + step}, {first + 2 * step}, \dots"
    text = f"What is the sum of the first ${count}$ terms of the arithmetic progression ${terms}$?"
    return Problem(text, str(count * (2 * first + (count - 1) * step) // 2))


def _derivative(chance: Random) -> Problem:
    a, b, c, x = (chance.randint(2, 9) for _ in range(4))
    text = f"Let $f(x) = {a}x^3 - {b}x^2 + {c}x$. What is $f'({x})$?"
    return Problem(text, str(3 * a * x * x - 2 * b * x + c))


KINDS: dict[int, tuple[Callable[[Random], Problem], ...]] = {
    1: (_arithmetic, _powers),
    2: (_fractions, _linear),
    3: (_remainder, _divisors),
    4: (_quadratic, _system),
    5: (_counting, _series, _derivative),
}
