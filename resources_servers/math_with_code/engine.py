"""Find the final answer in what a model wrote and compare it with the expected one, in time linear in the texts."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from nemo_gym.answers import last_box, shown, without_fonts

MAX_NUMBER_CHARS = 1000
"""Longer answers are compared as text only."""

_SEPARATOR = re.compile(r"(?<=[0-9])(?:,|\{,\}|\\[,;: ]|[ \u00a0\u2009\u202f])(?=[0-9]{3}(?![0-9]))")
"""Between thousands."""
_NAMED = re.compile(r"(?:(?:[A-Za-z]|\\[A-Za-z]{2,10})(?:_[A-Za-z0-9])?\s*)?(?:=|\\approx(?![A-Za-z])|≈)\s*")
_SPACES = re.compile(r"^(?:\s|\\[,;:! ]|~)+|(?:\s|\\[,;:! ]|\\$|~)+$")
_WRAPPERS = {"{": "}", "(": ")"}
"""Around a whole number."""
_POWER_OF_TEN = re.compile(
    r"\s*(?:\\times|\\cdot|[×·*x])\s*10\s*(?:\^|\*\*)\s*(?:\{\s*([+-]?[0-9]{1,4})\s*\}|([+-]?[0-9]{1,4}))"
)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


class Checked(NamedTuple):
    """The final answer as it was written, if there is one, and whether it is right."""

    answer: str | None
    is_right: bool


def check(messages: Sequence[str], expected: str) -> Checked:
    """Read the last box of all messages. Thoughts, which end with their message, are not read."""
    answer = last_box("\n\n".join(map(shown, messages)))
    return Checked(answer, answer is not None and _is_same(_plain(answer), _plain(expected)))


def _is_same(one: str, other: str) -> bool:
    """True for the same text and for the same number: 349.0 is 349."""
    if one == other:
        return True
    number = _number(one)
    return number is not None and number == _number(other)


def _plain(answer: str) -> str:
    """The answer without font commands and without the delimiters of a formula."""
    text = without_fonts(answer).replace("\N{MINUS SIGN}", "-").strip().strip("$").strip()
    return text[2:-2].strip() if text.startswith(r"\(") and text.endswith(r"\)") else text


def _number(text: str) -> Decimal | None:
    """The decimal number that is the whole text, with or without a name (`x = 4`), separators between thousands and a
    power of ten."""
    if len(text) > MAX_NUMBER_CHARS:
        return None
    named = _NAMED.match(text)
    bare = _SPACES.sub("", text[named.end() :] if named else text)
    while bare and _WRAPPERS.get(bare[0]) == bare[-1]:
        bare = bare[1:-1].strip()
    bare = _SEPARATOR.sub("", bare)
    bare = _POWER_OF_TEN.sub(lambda power: f"e{power[1] or power[2]}", bare, count=1)
    return Decimal(bare) if _DECIMAL.fullmatch(bare) else None
