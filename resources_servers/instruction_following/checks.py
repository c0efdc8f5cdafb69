"""The 54 instructions, by their ids."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from nemo_gym.answers import is_blank, says_something, visible
from nemo_gym.compute import LONG_TEXT
from resources_servers.instruction_following.arguments import as_shown, is_plain
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
    **WORD_CHECKS,
    **LAYOUT_CHECKS,
    **SENTENCE_CHECKS,
    **TOKEN_CHECKS,
    **LANGUAGE_CHECKS,
}
SLOW = frozenset((*TOKEN_CHECKS, *LANGUAGE_CHECKS))
PATTERNED = PATTERNED_WORDS | PATTERNED_LAYOUT
IMPOSSIBLE: dict[str, Callable[..., bool]] = {
    "length_constraints:nth_paragraph_first_word": lambda num_paragraphs, nth_paragraph, first_word: (
        nth_paragraph > num_paragraphs
    ),
    "new:copy_span_idx": lambda prompt_to_repeat, n_start, n_end: (
        not says_something(visible(prompt_to_repeat[n_start:n_end]))
    ),
    "count:count_increment_word": lambda keyword1, keyword2: (
        is_plain(keyword1.pattern)
        and keyword1.pattern.lower() in keyword2.pattern.lower()
        and is_plain(keyword2.pattern)
    ),
}
"""When no text can follow an instruction, although each of its arguments is valid."""
LEAST = {"length_constraints:number_words": 1, "length_constraints:number_sentences": 1}
"""The least count of a text with a letter or a digit; 0 for other instructions."""


def _arguments_model(check: Callable[..., bool]) -> type[BaseModel]:
    """A model with a field for each argument of a check."""
    parameters = [each for each in inspect.signature(check).parameters.values() if each.kind is each.KEYWORD_ONLY]
    fields: dict[str, Any] = {each.name: (each.annotation, ...) for each in parameters}
    return create_model(check.__name__, __config__=ConfigDict(extra="forbid"), **fields)


ARGUMENTS = {name: _arguments_model(check) for name, check in CHECKS.items()}


def warm_up() -> None:
    """Load the models for languages and tokens before the first check and its time limit."""
    language_of("A few plain words.")
    tokens("A few plain words.")


def parsed_arguments(name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a check, without nulls. Raises a ValueError if no text can follow the instruction."""
    if name not in CHECKS:
        raise ValueError(f"unknown instruction '{name}'")
    try:
        model = ARGUMENTS[name].model_validate(
            {key: value for key, value in (given or {}).items() if value is not None}
        )
    except ValidationError as error:
        wrong = [f"'{'.'.join(map(str, one['loc']))}': {one['msg']}" for one in error.errors(include_url=False)]
        raise ValueError(f"instruction '{name}': {'; '.join(wrong)}") from error
    arguments = dict(model)
    if name in IMPOSSIBLE and IMPOSSIBLE[name](**arguments):
        raise ValueError(f"instruction '{name}': no text can follow it with {given}")
    counts = [value for value in arguments.values() if isinstance(value, float)]
    has_relation = any(key.endswith("relation") for key in arguments)
    if has_relation and counts and counts[0] <= LEAST.get(name, 0):
        raise ValueError(f"instruction '{name}': every text or none follows it with {given}")
    return arguments


def followed(text: str, instructions: Iterable[Instruction]) -> list[bool]:
    """Check the text against each of the instructions. A text that shows no letter or digit follows none."""
    shown = as_shown(text)
    has_words = says_something(shown) and not is_blank(shown)
    return [has_words and CHECKS[name](shown, **parsed_arguments(name, arguments)) for name, arguments in instructions]


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
