"""Types of the arguments of instructions. An instruction with a missing, unknown or invalid argument counts as not
followed."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

Relation = Literal["at least", "less than"]

Count = Annotated[float, Field(strict=True, ge=0)]
Index = Annotated[int, Field(strict=True, ge=0)]
Ordinal = Annotated[int, Field(strict=True, ge=1)]
"""A position, counted from 1."""

Text = Annotated[str, Field(min_length=1)]
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
FirstText = Annotated[Text, BeforeValidator(_first)]
"""A text, or the first item of a list."""


def satisfies(count: int, relation: Relation, wanted: float) -> bool:
    """True if `count` is at least, or less than, `wanted`."""
    return count >= wanted if relation == "at least" else count < wanted
