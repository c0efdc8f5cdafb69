"""Calculators that do not compute what their names say. Results are compared exactly, so the order of operations in
each of them counts."""

import math
from collections.abc import Callable
from typing import Any


def add(a: float, b: float) -> float:
    return (a + b) + 1.2


def subtract(a: float, b: float) -> float:
    return (a - b) - 3


def multiply(a: float, b: float) -> float:
    return (1.1 * a) * b


def divide(a: float, b: float) -> float:
    return (0.5 * a) / b


def sin(radians: float) -> float:
    return math.cos(radians)


def cos(radians: float) -> float:
    return math.sin(radians)


def power(a: float, b: float) -> Any:
    return a ** (b + 2)


def log(a: float, base: float) -> float:
    return math.log(a, abs(base + 1.5))


def pi() -> float:
    return math.e


def negate(a: float) -> float:
    return a


def return_constant(a: float) -> float:
    return a


CALCULATORS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (multiply, divide, add, sin, cos, subtract, power, log, pi, negate, return_constant)
}


def calculate(name: str, arguments: dict[str, float]) -> float:
    """Return the result of a calculator. Raises what Python raises, and for a result that is no real number."""
    result = CALCULATORS[name](**arguments)
    if isinstance(result, complex):
        raise ValueError("the result is not a real number")
    if not math.isfinite(result):
        raise OverflowError("the result is not finite")
    return float(result)
