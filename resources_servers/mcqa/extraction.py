"""From what a model wrote to the letter of an option. Apart from a row's own regex, which can do anything, every step
takes time in proportion to the text."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from nemo_gym.answers import first_box, last_match

GradingMode = Literal["strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon"]

_BOXED_LETTER = re.compile(r"\\boxed\{[^A-Za-z]*([A-Z])[^A-Za-z]*\}")
_ANSWER_COLON = re.compile(r"answer\s*:\s*([^\n]*)", re.IGNORECASE)
_TEXT = "\\text{"
_CAPITALS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def lettered(options: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The text of each option by its letter."""
    found: dict[str, str] = {}
    if {*map(len, options)} == {1}:
        for option in options:
            found.update(option)
        if _CAPITALS.issuperset(found):
            return found
        found.clear()
    for option in options:
        for key, text in option.items():
            letter = key if key in _CAPITALS else one_letter(key)
            if letter:
                found[letter] = text
            break  # only the first pair of an option counts
    return found


def extracted(text: str, mode: GradingMode, options: Mapping[str, str], output_regex: str | None) -> str | None:
    """The letter that the text answers with, by the row's regex if it finds something, else by the grading mode."""
    by_regex = None if output_regex is None else _by_regex(text, options, output_regex)
    return by_regex or _BY_MODE[mode](text, options)


def normalised(text: str) -> str:
    """Lower case, white space runs as one space, trimmed."""
    return " ".join(text.lower().split())


def one_letter(text: str) -> str | None:
    """The text as an upper-case letter, if that is all there is to it."""
    upper = text.strip().upper()
    return upper if len(upper) == 1 and upper.isalpha() else None


def _by_regex(text: str, options: Mapping[str, str], pattern: str) -> str | None:
    """What the last match says: a letter, even one that is not an option, or the text of an option."""
    match = last_match(pattern, text, re.IGNORECASE)
    if match is None:
        return None
    found = next(filter(None, match.groups()), "") if match.groups() else match[0]
    return one_letter(found) or _option_called(found, options)


def _strict(text: str, options: Mapping[str, str]) -> str | None:
    """The first box with one upper-case letter and no other letter. The filler may cross braces and lines."""
    found = _BOXED_LETTER.search(text)
    return found[1] if found and found[1] in options else None


def _lenient_boxed(text: str, options: Mapping[str, str]) -> str | None:
    r"""As strict; else the one option whose text is in the first box. A `\text{` around it does no harm there."""
    strict, box = _strict(text, options), first_box(text)
    if strict or box is None:
        return strict
    inside = normalised(box)
    named = [letter for letter, option in options.items() if (told := normalised(option)) and told in inside]
    return named[0] if len(named) == 1 else None


def _lenient_answer_colon(text: str, options: Mapping[str, str]) -> str | None:
    """The rest of the line after the first `answer:`, a letter or the text of an option."""
    found = _ANSWER_COLON.search(text)
    if not found:
        return None
    told = _unwrapped(found[1].strip())
    letter = one_letter(told)
    return letter if letter in options else _option_called(told, options)


def _unwrapped(text: str) -> str:
    while text.startswith(_TEXT) and text.endswith("}"):
        text = text[len(_TEXT) : -1].strip()
    return text


def _option_called(text: str, options: Mapping[str, str]) -> str | None:
    wanted = normalised(text)
    return (
        next((letter for letter, option in options.items() if normalised(option) == wanted), None) if wanted else None
    )


_BY_MODE: dict[GradingMode, Callable[[str, Mapping[str, str]], str | None]] = {
    "strict_single_letter_boxed": _strict,
    "lenient_boxed": _lenient_boxed,
    "lenient_answer_colon": _lenient_answer_colon,
}
