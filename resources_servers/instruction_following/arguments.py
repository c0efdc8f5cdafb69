"""What a row may say about an instruction. What does not fit (missing, misspelt, of another kind, empty, below zero)
makes the instruction count as not followed."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

Relation = Literal["at least", "less than"]

Count = Annotated[float, Field(strict=True, ge=0)]
Index = Annotated[int, Field(strict=True, ge=0)]
Ordinal = Annotated[int, Field(strict=True, ge=1)]
"""A place counted from 1."""

Text = Annotated[str, Field(min_length=1)]
Letter = Annotated[str, Field(pattern="^[A-Za-z]$"), AfterValidator(str.lower)]

MAX_PLAIN = 100
_SPECIAL = frozenset("\\.^$*+?{}[]|()")


def is_plain(word: str) -> bool:
    """Whether a pattern is just a word, which no text can make slow to look for."""
    return len(word) <= MAX_PLAIN and _SPECIAL.isdisjoint(word)


def compiled(pattern: Any) -> Any:
    """A pattern as all of them are meant: without regard to case."""
    if not isinstance(pattern, str) or not pattern:
        raise ValueError("a pattern is a text, and not empty")
    try:
        return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a pattern: {error}") from error


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
"""A text, or a list of which the first counts."""


def stands_in(count: int, relation: Relation, wanted: float) -> bool:
    """Whether a count is at least, or less than, what is wanted."""
    return count >= wanted if relation == "at least" else count < wanted
