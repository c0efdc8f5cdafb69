"""Instructions about the format of a text: paragraphs, lists, marks. Every check takes time linear in the text, except
that of a postscript, whose marker is a pattern."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

from nemo_gym.answers import says_something, strict_json
from resources_servers.instruction_following.arguments import AtLeast, Count, Exactly, Ordinal, Text, compiled, plain

DIVIDER = re.compile(r"\s?(?:\*\*\*|\* \* \*)\s?")
_HIGHLIGHTS = (re.compile(r"\*([^\n*]*)\*"), re.compile(r"\*\*([^\n*]*)\*\*"))
_FIRST_WORD = re.compile(r"[^\W_][^\s.,?!'\"“”\u2018\u2019«»、。*_`~:;]*")
_NEGATIVE = re.compile(r"\s*-\d[\d.,]*\s*")
_FENCES = tuple(mark + language for mark in ("```", "~~~") for language in ("json", "Json", "JSON", ""))
POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
"""Markers that are not patterns, and the patterns used for them."""


def _postscript(marker: Any) -> Any:
    return compiled(POSTSCRIPTS.get(marker, marker.lower()) if isinstance(marker, str) else marker)


Postscript = Annotated[re.Pattern[str], BeforeValidator(_postscript)]


def has_paragraph_count(text: str, /, *, num_paragraphs: Exactly) -> bool:
    return _count(DIVIDER.split(text)) == num_paragraphs


def has_two_paragraphs(text: str, /) -> bool:
    return _count(DIVIDER.split(text)) == 2


def has_two_paragraphs_between_blank_lines(text: str, /) -> bool:
    return _count(text.split("\n\n")) == 2


def has_two_responses(text: str, /) -> bool:
    pieces = text.split("******")
    return _count(pieces) == 2 and len({piece.strip() for piece in pieces if says_something(piece)}) == 2


def _count(pieces: Sequence[str]) -> int | None:
    """Count the pieces with a letter or digit; None if a piece between others has none."""
    if not all(map(says_something, pieces[1:-1])):
        return None
    return sum(map(says_something, pieces))


def has_first_word_in_paragraph(
    text: str, /, *, num_paragraphs: Exactly, nth_paragraph: Ordinal, first_word: Text
) -> bool:
    """The number of paragraphs, and the first word of the nth one. A blank piece has an index but does not count."""
    pieces = text.split("\n\n")
    count = sum(map(says_something, pieces))
    if count != num_paragraphs or nth_paragraph > count:
        return False
    found = _FIRST_WORD.search(plain(pieces[nth_paragraph - 1]))
    return found is not None and found[0].lower() == first_word.lower()


def has_placeholders(text: str, /, *, num_placeholders: AtLeast) -> bool:
    return sum(map(_brackets, text.split("\n"))) >= num_placeholders


def _brackets(line: str) -> int:
    """The number of `[...]` that are not blank, each as short as possible."""
    count, start = 0, line.find("[")
    while start != -1 and (end := line.find("]", start)) != -1:
        count, start = count + bool(line[start + 1 : end].strip()), line.find("[", end)
    return count


def has_postscript(text: str, /, *, postscript_marker: Postscript) -> bool:
    """The marker, and something after it."""
    found = postscript_marker.search(text.lower())
    return found is not None and says_something(text.lower()[found.end() :])


def has_bullets(text: str, /, *, num_bullets: Count) -> bool:
    return sum(map(_is_bullet, text.split("\n"))) == num_bullets


def _is_bullet(line: str) -> bool:
    """True for a line with a bullet in front. A rule such as `---` says nothing, and `-5` is a number."""
    if _NEGATIVE.fullmatch(line):
        return False
    start = line.lstrip()[:2]
    return (start[:1] == "-" or (start[:1] == "*" and start != "**")) and says_something(line)


def has_highlights(text: str, /, *, num_highlights: AtLeast) -> bool:
    """`***this***` is one highlight, although both marks find it. `2*3*4` is a product."""
    found = (match for mark in _HIGHLIGHTS for match in mark.finditer(text) if not _is_product(text, match))
    return len({match.span(1) for match in found if says_something(match[1])}) >= num_highlights


def _is_product(text: str, match: re.Match[str]) -> bool:
    before, after = text[max(0, match.start() - 1) : match.start()], text[match.end() : match.end() + 1]
    return before.isdigit() and after.isdigit()


def has_sections(text: str, /, *, section_spliter: Text, num_sections: AtLeast) -> bool:
    """The splitter and a number, each with something after it."""
    sections = re.split(rf"{re.escape(section_spliter)}\s?\d+", text)[1:]
    return sum(map(says_something, sections)) >= num_sections


def is_json(text: str, /) -> bool:
    bare = text.strip()
    fence = next((fence for fence in _FENCES if bare.startswith(fence)), "")
    try:
        strict_json(bare.removeprefix(fence).removesuffix(fence[:3]))
    except ValueError:
        return False
    return True


def has_title(text: str, /) -> bool:
    return any(map(_titled, text.split("\n")))


def _titled(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return -1 < start < end and says_something(line[start:end])


CHECKS: dict[str, Callable[..., bool]] = {
    "length_constraints:number_paragraphs": has_paragraph_count,
    "length_constraints:nth_paragraph_first_word": has_first_word_in_paragraph,
    "paragraphs:paragraphs": has_two_paragraphs,
    "paragraphs:paragraphs2": has_two_paragraphs_between_blank_lines,
    "combination:two_responses": has_two_responses,
    "detectable_content:number_placeholders": has_placeholders,
    "detectable_content:postscript": has_postscript,
    "detectable_format:number_bullet_lists": has_bullets,
    "detectable_format:number_highlighted_sections": has_highlights,
    "detectable_format:multiple_sections": has_sections,
    "detectable_format:json_format": is_json,
    "detectable_format:title": has_title,
}
PATTERNED = frozenset(("detectable_content:postscript",))
