"""The 54 instructions, by their ids."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError, validate_call

from nemo_gym.answers import LONG_TEXT
from resources_servers.instruction_following.arguments import is_plain
from resources_servers.instruction_following.languages import CHECKS as LANGUAGE_CHECKS
from resources_servers.instruction_following.languages import language_of
from resources_servers.instruction_following.layout import CHECKS as LAYOUT_CHECKS
from resources_servers.instruction_following.layout import PATTERNED as PATTERNED_LAYOUT
from resources_servers.instruction_following.layout import POSTSCRIPTS
from resources_servers.instruction_following.sentences import CHECKS as SENTENCE_CHECKS
from resources_servers.instruction_following.tokens import CHECKS as TOKEN_CHECKS
from resources_servers.instruction_following.tokens import tokens
from resources_servers.instruction_following.words import CHECKS as WORD_CHECKS
from resources_servers.instruction_following.words import PATTERNED as PATTERNED_WORDS

Instruction = tuple[str, Mapping[str, Any] | None]
"""An id and its arguments."""

CHECKS: dict[str, Callable[..., bool]] = {
    name: validate_call(check)
    for family in (WORD_CHECKS, LAYOUT_CHECKS, SENTENCE_CHECKS, TOKEN_CHECKS, LANGUAGE_CHECKS)
    for name, check in family.items()
}
SLOW = frozenset((*TOKEN_CHECKS, *LANGUAGE_CHECKS))
PATTERNED = PATTERNED_WORDS | PATTERNED_LAYOUT


def warm_up() -> None:
    """Load the models for languages and tokens before the first check and its time limit."""
    language_of("A few plain words.")
    tokens("A few plain words.")


def followed(text: str, instructions: Iterable[Instruction]) -> list[bool]:
    """Whether the text follows each of the instructions."""
    return [_is_followed(text, name, arguments or {}) for name, arguments in instructions]


def _is_followed(text: str, name: str, arguments: Mapping[str, Any]) -> bool:
    """An unknown id, or invalid arguments, count as not followed."""
    check = CHECKS.get(name)
    if check is None:
        return False
    given = {key: value for key, value in arguments.items() if value is not None}
    try:
        return check(text, **given)
    except ValidationError:
        return False


def may_take_long(text: str, instructions: Iterable[Instruction]) -> bool:
    """True if checking may block the event loop or never finish, so that it must run in a process to be killed."""
    return len(text) > LONG_TEXT or any(
        name in SLOW or (name in PATTERNED and not all(map(_is_harmless, _texts(arguments or {}))))
        for name, arguments in instructions
    )


def _is_harmless(pattern: str) -> bool:
    return is_plain(pattern) or pattern in POSTSCRIPTS


def _texts(arguments: Mapping[str, Any]) -> Iterable[str]:
    """The texts in arguments, including those in lists."""
    for value in arguments.values():
        yield from (text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))
