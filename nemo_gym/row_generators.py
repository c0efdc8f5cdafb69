"""Rows made from a seed, under the path that environments import them from."""

from nemo_gym.data.generate import difficulty_level as difficulty_level
from nemo_gym.data.generate import distinct_rows as distinct_rows


def trivial_numbers(question: str) -> set[Fraction]:
    r"""The answers to a question that need no thought: 0, 1, every number in it, their sum and product, and the sum,
    difference, product and quotient of each two, with either sign. Numbers are digits and `\frac{1}{2}`."""
    given = [Fraction(digits) for digits in re.findall(r"\d+", question)]
    found = {Fraction(0), Fraction(1), *given, sum(given, Fraction(0)), math.prod(given)}
    found |= {Fraction(int(up), int(down)) for up, down in re.findall(r"\\frac\{(\d+)\}\{([1-9]\d*)\}", question)}
    for one, other in combinations(given, 2):
        low, high = sorted((one, other))
        found |= {low + high, high - low, low * high, *((high / low, Fraction(high // low)) if low else ())}
    return found | {-number for number in found}
