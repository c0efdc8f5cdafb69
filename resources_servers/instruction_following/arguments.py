"""Types of the arguments of instructions, and a text as it is shown. A row with a missing, unknown or invalid argument
is refused."""

import re
from typing import Annotated, Any, Literal
from unicodedata import normalize

from pydantic import AfterValidator, BeforeValidator, Field

from nemo_gym.answers import says_something, shown, visible

Relation = Literal["at least", "less than"]

Count = Annotated[float, Field(strict=True, ge=0)]
AtLeast = Annotated[float, Field(strict=True, gt=0)]
"""A number of things that a text must have, or more."""
Exactly = Annotated[float, Field(strict=True, ge=1, multiple_of=1)]
"""A number of things that a text must have, no more and no less."""
Index = Annotated[int, Field(strict=True, ge=0)]
Ordinal = Annotated[int, Field(strict=True, ge=1)]
"""A position, counted from 1."""

_BLANK = re.compile("[\u115f\u3164\uffa0]")
"""Letters that are shown as a space."""
_LINE_BREAK = re.compile("\r\n?|[\v\f\x85\u2028\u2029]")
_NORMALIZED_AT_ONCE = 256
"""Characters. Normalizing a run of combining marks takes quadratic time."""

SENTENCE_ENDS = "。｡\uff0e\uff01\uff1f।॥\u06d4\u0589።؟"
"""Marks at the end of a sentence that are not ASCII."""


def as_shown(text: str) -> str:
    """The text without thoughts and hidden parts, and with `\\n` for every kind of line break."""
    return _LINE_BREAK.sub("\n", shown(_BLANK.sub(" ", text)))


def plain(text: str) -> str:
    """The text with characters such as full-width letters and marks replaced by the usual ones."""
    if text.isascii():
        return text
    starts = range(0, len(text), _NORMALIZED_AT_ONCE)
    return "".join(normalize("NFKC", text[start : start + _NORMALIZED_AT_ONCE]) for start in starts)


def _spoken(text: str) -> str:
    if not says_something(visible(text)):
        raise ValueError("expected a letter or a digit")
    return text


Text = Annotated[str, Field(min_length=1)]
Spoken = Annotated[str, AfterValidator(_spoken)]
"""A text with a letter or a digit in it."""
Letter = Annotated[str, Field(pattern="^[A-Za-z]$"), AfterValidator(str.lower)]

MAX_PLAIN = 100
_SPECIAL = frozenset("\\.^$*+?{}[]|()")


def is_plain(word: str) -> bool:
    """True if a pattern is a plain word: searching for it takes linear time in any text."""
    return len(word) <= MAX_PLAIN and _SPECIAL.isdisjoint(word)


def compiled(pattern: Any) -> Any:
    """A pattern, ignoring case."""
    if not isinstance(pattern, str) or not pattern:
        raise ValueError("expected a pattern that is not empty")
    try:
        return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"invalid pattern: {error}") from error


def _whole_word(pattern: Any) -> Any:
    return compiled(rf"\b{pattern}\b") if pattern and isinstance(pattern, str) else compiled(pattern)


def _stripped(pattern: Any) -> Any:
    return compiled(pattern.strip() if isinstance(pattern, str) else pattern)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


Pattern = Annotated[re.Pattern[str], BeforeValidator(compiled)]
StrippedPattern = Annotated[re.Pattern[str], BeforeValidator(_stripped)]
"""A pattern without leading and trailing white space."""
WholeWord = Annotated[re.Pattern[str], BeforeValidator(_whole_word)]
FirstSpoken = Annotated[Spoken, BeforeValidator(_first)]
"""A text, or the first item of a list."""


def satisfies(count: int, relation: Relation, wanted: float) -> bool:
    """True if `count` is at least, or less than, `wanted`."""
    return count >= wanted if relation == "at least" else count < wanted
