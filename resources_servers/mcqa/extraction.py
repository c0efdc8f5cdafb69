"""From what a model wrote to the letter of an option. Apart from a row's own regex, which can do anything, every step
takes time in proportion to the text.

Thoughts are not read. Of several answers the last one counts, also if it is not an option."""

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from nemo_gym.answers import (
    Box,
    answer_boxes,
    has_alternative,
    is_denied,
    is_taken_back,
    matches,
    shown,
    without_fonts,
)

GradingMode = Literal["strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon"]

MAX_MATCHES = 100
"""How many of the last matches are read."""

_ANSWER_COLON = re.compile(r"answer\s*[:\uff1a]\s*", re.IGNORECASE)
_CAPITALS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DENIAL_SIGNS = frozenset("\u2260\u00ac\u2209\u2262\u2717\u2718\u274c\u274e\u2612\u00d7\u2715\u2716\U0001f6ab")
"""Not equal, not, crosses."""
_NOT_LETTER = re.compile(r"[!~\u2212\u2013-]\s*[A-Z]|~~|[?%]")
_WRAPPED = re.compile(
    r"\(\s*([a-z])\s*\)|\[\s*([a-z])\s*\]|\*\*\(?([a-z])\)?\*\*|\$?\\boxed\{([a-z])\}\$?", re.IGNORECASE
)
_OUTER_SIGNS = " \t\n.,;:!?*_$\"'`()[]{}\\"
_LABELLED = re.compile(r"[(\[]?([a-z])[)\]]?\s*[.:)=-]?\s+(.+)", re.DOTALL)
_ARTICLE = re.compile(r"^(?:the|an?)\s+")


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


def extracted(
    messages: Sequence[str], mode: GradingMode, options: Mapping[str, str], output_regex: str | None
) -> str | None:
    """The letter that the messages answer with, by the row's regex if it finds something, else by the grading mode."""
    spoken = "\n".join(map(shown, messages)).strip()
    by_regex = None if output_regex is None else _last_choice(_by_regex(spoken, options, output_regex), options)
    return by_regex or _last_choice(_BY_MODE[mode](spoken, options), options)


def normalised(text: str) -> str:
    """Without font commands, lower case, white space runs as one space, trimmed."""
    return " ".join(without_fonts(text).lower().split())


def one_letter(text: str) -> str | None:
    """The text as an upper-case letter, if that is all there is to it."""
    upper = without_fonts(text).strip().upper()
    return upper if len(upper) == 1 and upper.isalpha() else None


def _last_choice(answers: Iterable[str | None], options: Mapping[str, str]) -> str | None:
    """The last of several answers. None if they name each option: two may be a correction, three or more are not."""
    named, last = set[str | None](), None
    for last in answers:
        named.add(last)
    return None if len(options) > 2 and named.issuperset(options) else last


def _by_regex(text: str, options: Mapping[str, str], pattern: str) -> Iterator[str | None]:
    """What each match that the text does not deny says: a letter, even one that is not an option, or the text of an
    option."""
    letters, searched = _letters_by_text(options), without_fonts(text)
    found_matches = deque(matches(pattern, searched, re.IGNORECASE), MAX_MATCHES)
    for match in found_matches:
        group = next(
            (index for index, found in enumerate(match.groups(), 1) if found), 0 if not match.groups() else None
        )
        found = "" if group is None else match[group]
        if group is None or not any(is_denied(searched, *match.span(each)) for each in {0, group}):
            letter = one_letter(found) or letters.get(normalised(found)) or _unwrapped(found)
            yield None if match is found_matches[-1] and _is_not_final(searched, match.end(), letter) else letter


def _strict(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    """In each box: its letter, if it has one upper-case letter and no other letter."""
    return (_capital(box, options) for box in answer_boxes(text))


def _lenient_boxed(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    """As strict; else the option whose whole text is in the box, with or without its letter before it."""
    letters = {letter: _bare(option) for letter, option in options.items()}
    for box in answer_boxes(text):
        yield _capital(box, options) or _named(_bare(box.content), letters)


def _named(said: str, letters: Mapping[str, str]) -> str | None:
    """The one option that has this text, if no other option is part of it. An article before it does not matter."""
    for text in {said: None, _ARTICLE.sub("", said, count=1): None}:
        if any(option and option == text for option in letters.values()):
            parts = [letter for letter, option in letters.items() if option and _has_words(text, option)]
            return parts[0] if len(parts) == 1 else None
    return _labelled(said, letters)


def _labelled(said: str, letters: Mapping[str, str]) -> str | None:
    """The option whose letter and text are said: `b) square`."""
    labelled = _LABELLED.fullmatch(said)
    letter = labelled[1].upper() if labelled else ""
    return letter if labelled and letters.get(letter) and letters[letter] == labelled[2].strip(_OUTER_SIGNS) else None


def _has_words(text: str, words: str) -> bool:
    """True if these words are in the text. A sign or a decimal point belongs to its number."""
    return re.search(rf"(?<![\w.+-]){re.escape(words)}(?!\w|[.,]\w)", text) is not None


def _bare(text: str) -> str:
    """Normalised, without quotes, brackets and punctuation around it."""
    return normalised(text).lstrip(_OUTER_SIGNS.replace("!", "")).rstrip(_OUTER_SIGNS)


def _lenient_answer_colon(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    """The rest of the line after each `answer:` that is not denied, a letter or the text of an option."""
    letters, bare = _letters_by_text(options), {letter: _bare(option) for letter, option in options.items()}
    colons = deque(_ANSWER_COLON.finditer(text), MAX_MATCHES)
    for colon in colons:
        end = text.find("\n", colon.end())
        end = len(text) if end < 0 else end
        if is_denied(text, colon.start(), end) or is_denied(text, colon.end(), end):
            continue
        said = _ANSWER_COLON.split(text[colon.end() : end])[0]
        letter = one_letter(said) or _unwrapped(said, "")
        found = letter if letter in options else letters.get(normalised(said)) or _labelled(normalised(said), bare)
        yield None if colon is colons[-1] and _is_not_final(text, end, found) else found


def _unwrapped(text: str, end: str = ".") -> str | None:
    r"""The letter in brackets, in bold or in a box that is all there is to the text: `(B)`, `**B**`, `\boxed{B}`."""
    bare = text.strip().removesuffix(end)
    found = _WRAPPED.fullmatch(bare)
    return found[found.lastindex or 0].upper() if found else one_letter(bare)


def _is_not_final(text: str, end: int, letter: str | None) -> bool:
    """True if an answer that ends here has an alternative ("A or B") or is taken back later."""
    return letter is not None and (has_alternative(text, end) or is_taken_back(text, end, letter))


def _capital(box: Box, options: Mapping[str, str]) -> str | None:
    r"""The letter in a box that has no other letter, no accent and no sign of denial. `\boxed {B}` has none."""
    content = without_fonts(box.content)
    if not box.opening.endswith("\\boxed{") or _NOT_LETTER.search(content) or not _DENIAL_SIGNS.isdisjoint(content):
        return None
    letters = [char for char in content if char.isalpha() or unicodedata.category(char).startswith("M")]
    return letters[0] if len(letters) == 1 and letters[0] in options and letters[0] in _CAPITALS else None


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
