"""Types of the arguments of instructions, and what a text says. A row with a missing, unknown or invalid argument is
refused."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

Relation = Literal["at least", "less than"]

Count = Annotated[float, Field(strict=True, ge=0)]
Exactly = Annotated[float, Field(strict=True, ge=1, multiple_of=1)]
"""A number of things that a text must have, no more and no less."""
Index = Annotated[int, Field(strict=True, ge=0)]
Ordinal = Annotated[int, Field(strict=True, ge=1)]
"""A position, counted from 1."""

_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_INVISIBLE = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
"""Characters that are not shown, such as zero-width spaces. Some of them are letters."""


def visible(text: str) -> str:
    """The text without characters that are not shown."""
    return _INVISIBLE.sub("", text)


def says_something(text: str) -> bool:
    """True if there is a letter or a digit in the text."""
    return _LETTER_OR_DIGIT.search(text) is not None


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
