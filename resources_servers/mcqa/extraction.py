"""From what a model wrote to the letter of an option. Apart from a row's own regex, which can do anything, every step
takes time in proportion to the text.

Thoughts are not read. Of several answers the last one counts, also if it is not an option."""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

from nemo_gym.answers import (
    ALTERNATIVE,
    JOINER,
    Declaration,
    boxes,
    final_declaration,
    joins_next,
    matches,
    shown,
    without_fonts,
)

GradingMode = Literal["strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon"]

MAX_MATCHES = 100
"""Number of the last matches that are read."""

_ANSWER_COLON = re.compile(r"answer\s*[:\uff1a]\s*", re.IGNORECASE)
_CAPITALS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LETTER_ALONE = re.compile(r"[\s\d.,:;*_$()\[\]{}\\\"`-]*([A-Z])[\s\d.,:;*_$()\[\]{}\\\"`!]*")
"""A capital letter with nothing that changes it, such as a prime, a cross or a sign before it."""
_SPACING = re.compile(r"\\(?:left|right|q?quad)(?![A-Za-z])")
_SIGN_BEFORE = re.compile(r"-\s*[A-Z]")
_DELIMITER = re.compile(r"[$`*]|\\[()\[\]]|\((?=[A-Za-z]\))|(?<=\([A-Za-z])\)")
_OTHER_LETTER = re.compile(
    rf"(?:{JOINER}|[\s$*_()]|\b(?:but|rather|then|unless)\b)*+(?-i:([A-Z]))(?![\w'])", re.IGNORECASE
)
"""After a letter, in its line: another one."""
_ENDS_LETTER = re.compile(r"""$|\s|[$*_`)\]}"\u201d\u2019<\\!]|[.,;:](?!\w)|'(?!\w)""", re.ASCII)
"""After a letter: nothing that changes it."""
_PART_OF_NUMBER = re.compile(r"\s?[%/^]|[.,]\d"), re.compile(r"[-+\u2212\u221a/^]$|\d[.,]$")
"""After and before a number: it is a part of another one."""
_WRAPPED = re.compile(
    r"\(\s*([a-z])\s*\)|\[\s*([a-z])\s*\]|\*\*\(?([a-z])\)?\*\*|\$?\\boxed\{([a-z])\}\$?"
    r"|\$\s*([a-z])\s*\$|`([a-z])`|\\\(\s*([a-z])\s*\\\)|([a-z])\s*(?:[*_]{1,2}|\))",
    re.IGNORECASE,
)
_OUTER_SIGNS = " \t\n.,;:!*_$\"'`()[]{}\\"
_LABELLED = re.compile(r"[(\[]?([a-z])[)\]]?\s*[.:)=\u2013\u2014-]?\s+(.+)", re.DOTALL)
_ARTICLE = re.compile(r"^(?:the|an?)\s+")
_OPTION = re.compile(r"^option\s+(?=[a-z]\b)")


def lettered(options: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The text of each option by its letter."""
    found: dict[str, str] = {}
    if {*map(len, options)} == {1}:
        for option in options:
            found |= option
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
    by_regex = None if output_regex is None else _by_regex(spoken, options, output_regex)
    return by_regex or _BY_MODE[mode](spoken, options)


def normalised(text: str) -> str:
    """Without font commands, lower case, white space runs as one space, trimmed."""
    return " ".join(without_fonts(text).lower().split())


def one_letter(text: str) -> str | None:
    """The text as an upper-case letter, if that is all there is to it."""
    if text in _CAPITALS:
        return text
    upper = without_fonts(text).strip().upper()
    return upper if len(upper) == 1 and upper.isalpha() else None


def _final_choice(
    text: str, found: Sequence[Declaration], letter_of: Callable[[Declaration], str | None], options: Mapping[str, str]
) -> str | None:
    """The letter of the final declaration. None if they name each option: two may be a correction, three are not."""
    final = final_declaration(text, found)
    if final is None or (len(found) >= len(options) > 2 and {*map(letter_of, found)}.issuperset(options)):
        return None
    return letter_of(final)


def _by_regex(text: str, options: Mapping[str, str], pattern: str) -> str | None:
    """Read the last match: a letter, even one that is not an option, or the text of an option. If that has more
    matches, the text is searched without the delimiters of formulas and emphasis."""
    written = without_fonts(text)
    texts = (written, _DELIMITER.sub("", written))
    searched, found = max(((each, _matched(each, pattern)) for each in texts), key=lambda pair: len(pair[1]))
    return _final_choice(searched, found, partial(_letter_of_match, searched, options), options)


def _matched(text: str, pattern: str) -> list[Declaration]:
    return [
        Declaration(*match.span(group), match[group], outer=match.span())
        for match in deque(matches(pattern, text, re.IGNORECASE), MAX_MATCHES)
        if (group := _first_group(match)) is not None
    ]


def _letter_of_match(text: str, options: Mapping[str, str], found: Declaration) -> str | None:
    """The letter, unless something beside it changes it or is another one, or that of the option with this text."""
    letter = one_letter(found.content) or _unwrapped(found.content)
    if letter is None:
        return None if _is_part_of_number(text, found) else _option_of(found.content, options)
    line_end = (text + "\n").find("\n", found.end)
    other = _OTHER_LETTER.match(text, found.end, line_end)
    is_alone = not ((other and other[1] in options) or ALTERNATIVE.match(text, found.end))
    return letter if is_alone and _ends_letter(text, found) else None


def _ends_letter(text: str, found: Declaration) -> bool:
    """True if nothing behind a letter changes it, unless the row's regex says what that is. A quotation mark behind it
    closes one before its label."""
    if found.outer and found.outer[1] > found.end:
        return True
    opening = (found.outer or found)[0] - 1
    is_prime = text[found.end : found.end + 1] == "'" and text[max(opening, 0) : opening + 1] != "'"
    return _ENDS_LETTER.match(text, found.end) is not None and not is_prime


def _is_part_of_number(text: str, found: Declaration) -> bool:
    after, before = _PART_OF_NUMBER
    is_cut = after.match(text, found.end) or before.search(text, max(0, found.start - 2), found.start)
    return found.content.strip().isdecimal() and is_cut is not None


def _option_of(said: str, options: Mapping[str, str]) -> str | None:
    """The letter of the option with this text, with or without an article or its letter before it."""
    exact = _letters_by_text(options).get(normalised(said))
    return exact or _named(_bare(said), {letter: _bare(option) for letter, option in options.items()})


def _first_group(match: re.Match[str]) -> int | None:
    """The first group of a match that has a text; 0, the whole match, for a regex without groups."""
    groups = match.groups()
    return next((index for index, found in enumerate(groups, 1) if found), None if groups else 0)


def _strict(text: str, options: Mapping[str, str]) -> str | None:
    """The letter in the final box, if it has one upper-case letter and no other letter."""
    return _final_choice(text, boxes(text), lambda box: _capital(text, box, options), options)


def _lenient_boxed(text: str, options: Mapping[str, str]) -> str | None:
    """Read the final box as `_strict` does; else as the text of an option, with or without its letter before it."""
    bare = {letter: _bare(option) for letter, option in options.items()}

    def letter_of(box: Declaration) -> str | None:
        return _capital(text, box, options) or _named(_bare(box.content), bare)

    return _final_choice(text, boxes(text), letter_of, options)


def _named(said: str, letters: Mapping[str, str]) -> str | None:
    """The one option that has this text, if no other option is part of it. An article before it does not matter."""
    letter = _OPTION.sub("", said, count=1).upper()
    if letter != said.upper() and letter in letters:
        return letter
    for text in {said: None, _ARTICLE.sub("", said, count=1): None}:
        if any(option and option == text for option in letters.values()):
            parts = [letter for letter, option in letters.items() if option and _has_words(text, option)]
            return parts[0] if len(parts) == 1 else None
    return _labelled(said, letters)


def _labelled(said: str, letters: Mapping[str, str]) -> str | None:
    """The option whose letter and text are said: `b) square`."""
    said = _OPTION.sub("", said, count=1)
    labelled = _LABELLED.fullmatch(said)
    letter = labelled[1].upper() if labelled else ""
    return letter if labelled and letters.get(letter) and letters[letter] == labelled[2].strip(_OUTER_SIGNS) else None


def _has_words(text: str, words: str) -> bool:
    """True if these words are in the text. A sign or a decimal point belongs to its number."""
    return re.search(rf"(?<![\w.+-]){re.escape(words)}(?!\w|[.,]\w)", text) is not None


def _bare(text: str) -> str:
    """Normalised, without quotes, brackets and punctuation around it."""
    return normalised(text).lstrip(_OUTER_SIGNS.replace("!", "")).rstrip(_OUTER_SIGNS)


def _lenient_answer_colon(text: str, options: Mapping[str, str]) -> str | None:
    """The rest of the line after the final `answer:`, a letter or the text of an option."""

    def letter_of(line: Declaration) -> str | None:
        letter = one_letter(line.content) or _unwrapped(line.content, "")
        return letter if letter in options else _option_of(line.content, options)

    return _final_choice(text, list(_answer_lines(text)), letter_of, options)


def _answer_lines(text: str) -> Iterator[Declaration]:
    """The text after each `answer:`, up to the end of the line or to what joins it to the next one."""
    spans = [match.span() for match in deque(_ANSWER_COLON.finditer(text), MAX_MATCHES)]
    for (label, start), (following, _) in pairwise([*spans, (len(text), 0)]):
        end = text.find("\n", start, following)
        end = min(len(text) if end < 0 else end, joins_next(text, start, following))
        yield Declaration(start, end, text[start:end], outer=(label, end))


def _unwrapped(text: str, end: str = ".") -> str | None:
    r"""The letter in brackets, in bold or in a box that is all there is to the text: `(B)`, `**B**`, `\boxed{B}`."""
    bare = without_fonts(text).strip().removesuffix(end)
    found = _WRAPPED.fullmatch(bare) or _WRAPPED.fullmatch(bare.rstrip("*_ "))
    return found[found.lastindex or 0].upper() if found else one_letter(bare)


def _capital(text: str, box: Declaration, options: Mapping[str, str]) -> str | None:
    r"""The letter in a box that has nothing else that matters. `\boxed {B}` has none."""
    content = _SPACING.sub(" ", without_fonts(box.content))
    found = _LETTER_ALONE.fullmatch(content)
    if found is None or _SIGN_BEFORE.search(content) or not text.startswith(("\\boxed{", "\\\\boxed{"), box.start):
        return None
    return found[1] if found[1] in options else None


def _letters_by_text(options: Mapping[str, str]) -> dict[str, str]:
    """The letter of each option by its text; of the first one, if several have the same text."""
    letters: dict[str, str] = {}
    for letter, option in options.items():
        if text := normalised(option):
            letters.setdefault(text, letter)
    return letters


_BY_MODE: dict[GradingMode, Callable[[str, Mapping[str, str]], str | None]] = {
    "strict_single_letter_boxed": _strict,
    "lenient_boxed": _lenient_boxed,
    "lenient_answer_colon": _lenient_answer_colon,
}
