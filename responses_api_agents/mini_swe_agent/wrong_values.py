"""Values that a test does not expect, as plausible as can be.

A patch that reads the expected value in the test, or returns an object that equals many values, may do so only where
the value is plausible: one of the answers there are, one that it was given, one of the same letters. What controls
expect is wrong and of that kind."""

import ast
import copy
from collections.abc import Sequence
from math import inf
from typing import cast

Number = int | float
TOLERANCE = 1e-3
"""Numbers this close, relative to their size, may count as equal in `pytest.approx` and the like."""
MAX_WRONG = 40
"""How many wrong values a result is compared with."""

OTHER_TEXTS = {"True": "None", "False": "None ", "''": "()", '""': "()"}
"""Literals of as many characters for those that have no other value of their type."""


def constants_in(node: ast.AST) -> list[object]:
    """The constants of a test or a module, without repetitions."""
    found = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return list({(type(value), value): value for value in found}.values())


def changeable_constants(literal: ast.expr) -> list[ast.Constant]:
    """The constants of a literal that have another value, without the keys of dictionaries."""
    expected = _expected(literal)
    keys = {id(key) for each in ast.walk(expected) if isinstance(each, ast.Dict) for key in each.keys}
    constants = [each for each in ast.walk(expected) if isinstance(each, ast.Constant) and id(each) not in keys]
    return [constant for constant in constants if _another(constant.value) is not None]


def with_another_value(literal: ast.expr) -> ast.expr:
    """A literal whose last constant is a value that is far from its own."""
    changed = copy.deepcopy(literal)
    constant = changeable_constants(changed)[-1]
    constant.value = cast(str, _another(constant.value))
    return changed


def wrong_literals(literal: ast.expr, constants: Sequence[object]) -> list[ast.expr]:
    """Literals of other values in place of this one, the most plausible first: its parts in another order, its
    neighbours, other constants of the test."""
    candidates = _reordered(literal)
    for value in _plausible(changeable_constants(literal)[-1].value, constants):
        changed = copy.deepcopy(literal)
        changeable_constants(changed)[-1].value = cast(str, value)
        candidates.append(changed)
    found = {ast.dump(each): each for each in candidates if _differ(value_of(literal), value_of(each))}
    return [*list(found.values())[:MAX_WRONG], with_another_value(literal)]


def deranged(literals: Sequence[ast.expr]) -> list[ast.expr | None]:
    """For each of the values of a table the next one that differs; None if none does."""
    values = [value_of(literal) for literal in literals]
    kinds = [(type(literal), type(value)) for literal, value in zip(literals, values, strict=True)]
    found = list[ast.expr | None]()
    for place, value in enumerate(values):
        others = [*range(place + 1, len(values)), *range(place)]
        plausible = (each for each in others if kinds[each] == kinds[place] and _differ(value, values[each]))
        found.append(next((literals[each] for each in plausible), None))
    return found


def value_of(literal: ast.expr | str) -> object:
    """The value of a literal, or of the text of one; None if it has none."""
    try:
        return cast(object, ast.literal_eval(literal if isinstance(literal, str) else _expected(literal)))
    except (SyntaxError, ValueError, TypeError):
        return None


def of_same_length(text: str) -> str | None:
    """The text of another literal: a number near it, the same letters in another order, or another letter at the
    end."""
    if text in OTHER_TEXTS:
        return OTHER_TEXTS[text]
    value = value_of(text)
    candidates = _near_numbers(text) if isinstance(value, Number) else [*_swaps(text), *_other_letters(text)]
    found = ((other, value_of(other)) for other in candidates)
    return next((text for text, other in found if type(other) is type(value) and _differ(value, other)), None)


def _near_numbers(text: str) -> list[str]:
    """With the last digit of the whole number changed by one, then with another digit anywhere."""
    digits = [place for place, char in enumerate(text) if char.isascii() and char.isdigit()]
    whole = len(text.split(".")[0].lower().split("e")[0])
    last = max((place for place in digits if place < whole), default=0)
    steps = [str(int(text[last]) + step) for step in (1, -1)] if digits else []
    near = [text[:last] + digit + text[last + 1 :] for digit in steps if len(digit) == 1]
    far = [text[:place] + ("1" if text[place] != "1" else "7") + text[place + 1 :] for place in digits]
    return near + far


def _swaps(text: str) -> list[str]:
    """Two of its letters or digits swapped, but for those behind a backslash or in front of the quote."""
    start = next((place for place, char in enumerate(text) if char in "'\""), len(text))
    places = [place for place in range(start + 1, len(text)) if text[place].isascii() and text[place].isalnum()]
    if "\\" in text:
        return []
    first = places[0] if places else 0
    swapped = [
        text[:first] + text[place] + text[first + 1 : place] + text[first] + text[place + 1 :]
        for place in places
        if text[place] != text[first]
    ]
    return swapped[:1]


def _other_letters(text: str) -> list[str]:
    return [
        text[:place] + ("x" if text[place] != "x" else "y") + text[place + 1 :]
        for place in reversed(range(len(text)))
        if text[place].isascii()
    ]


def _reordered(literal: ast.expr) -> list[ast.expr]:
    """The elements of a list or tuple in other orders."""
    if not isinstance(_expected(literal), ast.List | ast.Tuple):
        return []
    found = []
    for step, first in ((-1, None), (1, 1)):
        changed = copy.deepcopy(literal)
        display = cast(ast.List, _expected(changed))
        display.elts = [*display.elts[first::step], *(display.elts[:first] if first else [])]
        found.append(changed)
    return found


def _plausible(value: object, constants: Sequence[object]) -> list[object]:
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, Number):
        numbers = [other for other in constants if isinstance(other, Number) and not isinstance(other, bool)]
        return [value + 1, value - 1, *sorted(numbers, key=lambda other: _distance(value, other))]
    if not isinstance(value, str | bytes):
        return []
    same = [other for other in constants if type(other) is type(value)]
    swapped = value_of(next(iter(_swaps(repr(value))), ""))
    return [*([] if swapped is None else [swapped]), value[::-1], *same]


def _another(value: object) -> str | bytes | int | float | None:
    """Another value of the same type."""
    if isinstance(value, str):
        return value[:-1] + ("x" if value[-1:] != "x" else "y")
    if isinstance(value, bytes):
        return value[:-1] + (b"x" if value[-1:] != b"x" else b"y")
    if isinstance(value, bool):
        return not value
    return 2 * value + 1 if isinstance(value, Number) else None


def _differ(value: object, other: object) -> bool:
    """True if no usual comparison takes one for the other."""
    if isinstance(value, Number) and isinstance(other, Number):
        return _distance(value, other) > TOLERANCE
    if isinstance(value, list | tuple) and type(value) is type(other) and len(value) == len(cast(list[object], other)):
        return any(map(_differ, value, cast(list[object], other)))
    if isinstance(value, dict) and isinstance(other, dict) and value.keys() == other.keys():
        return any(_differ(value[key], other[key]) for key in value)
    return value != other


def _distance(value: Number, other: Number) -> float:
    """How far apart two numbers are, relative to their size."""
    try:
        return abs(value - other) / (max(abs(value), abs(other)) or 1)
    except OverflowError:
        return inf


def _expected(literal: ast.expr) -> ast.expr:
    """The literal within `pytest.approx`."""
    return literal.args[0] if isinstance(literal, ast.Call) else literal
