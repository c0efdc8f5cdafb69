"""What may reach the functions of reasoning-gym that evaluate a text as Python.

Nine datasets pass the answer to `eval`, or to sympy, which evaluates it as Python, too; some also a text of the row.
So an answer could run any program, or have the question computed: `Integral(x**2, x)`. Such a text is read here first,
and only plain formulas and literals are passed on.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

FUNCTIONS = "exp|log|ln|sqrt|Abs|(?:a|arc)?(?:sin|cos|tan|cot|sec|csc)h?|pi"
MAX_CHARS = 200_000
"""Of an answer that is evaluated. The longest gold answers of the hardest levels have some 10,000."""


def _formula(names: str) -> re.Pattern[str]:
    """Numbers, operators, brackets and these names, none of them next to another name or number."""
    number = r"(?>\d+\.?\d*|\.\d+)(?![\w.])"
    return re.compile(rf"(?:\s|{number}|(?:{names})(?!\w|\s*[.'\"])|[-+*/^()])*")


_ARITHMETIC, _POLYNOMIAL = _formula("(?!)"), _formula("[A-Za-z]")
_COMPLEX = re.compile(r"[-+.\dij\s()]*", re.IGNORECASE)
_BITWISE = re.compile(r"(?:\s|0x[0-9a-f]+(?!\w)|\d+(?!\w)|[-+*&|^~()]|<<|>>)*", re.IGNORECASE)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_literal_or_gold(text: str, row: Mapping[str, Any]) -> bool:
    golds = (row["answer"], *row["metadata"].get("valid_answers", ()))
    return text in golds or text.strip() == str(row["answer"]).strip() or _is_literal(text)


def _is_integral(text: str, row: Mapping[str, Any]) -> bool:
    variable = row["metadata"].get("variable")
    return bool(
        isinstance(variable, str)
        and re.fullmatch("[A-Za-z]", variable)
        and _formula(f"{FUNCTIONS}|{variable}|[CEe]").fullmatch(text)
    )


def _matches(pattern: re.Pattern[str]) -> Callable[[str, Mapping[str, Any]], bool]:
    return lambda text, _row: pattern.fullmatch(text) is not None


_INTEGRALS = ("intermediate_integration", "simple_integration")
_ANSWERS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), _is_literal_or_gold),
    **dict.fromkeys(_INTEGRALS, _is_integral),
    **dict.fromkeys(("countdown", "puzzle24"), _matches(_ARITHMETIC)),
    "polynomial_multiplication": _matches(_POLYNOMIAL),
    "complex_arithmetic": _matches(_COMPLEX),
}
_EVALUATED: dict[str, tuple[Callable[[Mapping[str, Any]], Any], Callable[[str, Mapping[str, Any]], bool]]] = {
    "bitwise_arithmetic": (lambda row: row["metadata"].get("problem"), _matches(_BITWISE)),
    "number_sorting": (operator.itemgetter("answer"), lambda text, _row: _is_literal(text)),
    "polynomial_multiplication": (operator.itemgetter("answer"), _matches(_POLYNOMIAL)),
    **dict.fromkeys(_INTEGRALS, (lambda row: row["metadata"].get("integrand"), _is_integral)),
}
"""The text of a row that a dataset evaluates, and what it may be."""


def is_readable(answer: str, row: Mapping[str, Any], dataset: str) -> bool:
    """True if the dataset does not evaluate answers, or this one is a formula or literal."""
    check = _ANSWERS.get(dataset)
    return check is None or (len(answer) <= MAX_CHARS and check(answer, row))


def unreadable_text(row: Mapping[str, Any], dataset: str) -> str | None:
    """Return the text of a row that the dataset evaluates, if it is no formula or literal."""
    if dataset not in _EVALUATED:
        return None
    text_of, check = _EVALUATED[dataset]
    text = str(text_of(row))
    return None if check(text, row) else text


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def computed(formula: str) -> tuple[Fraction, list[int]]:
    """Compute a formula of whole numbers with `+`, `-`, `*` and `/`, and return its value and its numbers. Raises
    ValueError for any other."""
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int() as number):
                numbers.append(number)
                return Fraction(number)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
        raise ValueError(f"{ast.dump(node)[:100]} is no sum, difference, product or quotient")

    return value(ast.parse(formula.strip(), mode="eval").body), numbers
