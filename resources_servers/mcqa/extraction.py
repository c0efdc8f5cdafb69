"""From what a model wrote to the letter of an option. Apart from a row's own regex, which can do anything, every step
takes time in proportion to the text.

Thoughts in `<think>` tags are not read. Of several answers the last one counts, also if it is not an option."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from nemo_gym.answers import boxes, matches, without_fonts, without_thinking

GradingMode = Literal["strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon"]

_ONE_CAPITAL = re.compile(r"[^A-Za-z]*([A-Z])[^A-Za-z]*")
_ANSWER_COLON = re.compile(r"answer\s*:\s*", re.IGNORECASE)
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
    spoken = without_thinking(text)
    by_regex = None if output_regex is None else _last_choice(_by_regex(spoken, options, output_regex), options)
    return by_regex or _last_choice(_BY_MODE[mode](spoken, options), options)


def normalised(text: str) -> str:
    """Without font commands, lower case, white space runs as one space, trimmed."""
    return " ".join(without_fonts(text).lower().split())


def one_letter(text: str) -> str | None:
    """The text as an upper-case letter, if that is all there is to it."""
    upper = text.strip().upper()
    return upper if len(upper) == 1 and upper.isalpha() else None


def _last_choice(answers: Iterable[str | None], options: Mapping[str, str]) -> str | None:
    """The last of several answers. None if they name each option: two may be a correction, three or more are not."""
    named, last = set[str | None](), None
    for last in answers:
        named.add(last)
    return None if len(options) > 2 and named.issuperset(options) else last


def _by_regex(text: str, options: Mapping[str, str], pattern: str) -> Iterator[str | None]:
    """What each match says: a letter, even one that is not an option, or the text of an option."""
    letters = _letters_by_text(options)
    for match in matches(pattern, without_fonts(text), re.IGNORECASE):
        found = next(filter(None, match.groups()), "") if match.groups() else match[0]
        yield one_letter(found) or letters.get(normalised(found))


def _strict(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    """In each box: its letter, if it has one upper-case letter and no other letter."""
    return (_capital(box, options) for box in filter(str.strip, boxes(text)))


def _lenient_boxed(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    """As strict; else the one option whose text is in the box."""
    texts = {letter: told for letter, option in options.items() if (told := normalised(option))}
    for box in filter(str.strip, boxes(text)):
        inside = normalised(box)
        named = [letter for letter, option in texts.items() if option in inside]
        yield _capital(box, options) or (named[0] if len(named) == 1 else None)


def _lenient_answer_colon(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    """The rest of the line after each `answer:`, a letter or the text of an option."""
    letters = _letters_by_text(options)
    for rest in _ANSWER_COLON.split(text)[1:]:
        said = without_fonts(rest.partition("\n")[0])
        letter = one_letter(said)
        yield letter if letter in options else letters.get(normalised(said))


def _capital(box: str, options: Mapping[str, str]) -> str | None:
    found = _ONE_CAPITAL.fullmatch(without_fonts(box))
    return found[1] if found and found[1] in options else None


def _letters_by_text(options: Mapping[str, str]) -> dict[str, str]:
    """The letter of each option by its text; of the first one, if several have the same text."""
    letters: dict[str, str] = {}
    for letter, option in options.items():
        if told := normalised(option):
            letters.setdefault(told, letter)
    return letters


_BY_MODE: dict[GradingMode, Callable[[str, Mapping[str, str]], Iterator[str | None]]] = {
    "strict_single_letter_boxed": _strict,
    "lenient_boxed": _lenient_boxed,
    "lenient_answer_colon": _lenient_answer_colon,
}
