"""Instructions about the format of a text: paragraphs, lists, marks. Every check takes time linear in the text, except
that of a postscript, whose marker is a pattern."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

from resources_servers.instruction_following.arguments import Count, Ordinal, Text, compiled

DIVIDER = re.compile(r"\s?\*\*\*\s?")
_HIGHLIGHTS = (re.compile(r"\*([^\n*]*)\*"), re.compile(r"\*\*([^\n*]*)\*\*"))
_FENCES = ("```json", "```Json", "```JSON", "```")
POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
"""Markers that are not patterns, and the patterns used for them."""


def _postscript(marker: Any) -> Any:
    return compiled(POSTSCRIPTS.get(marker, marker.lower()) if isinstance(marker, str) else marker)


Postscript = Annotated[re.Pattern[str], BeforeValidator(_postscript)]


def has_paragraph_count(text: str, /, *, num_paragraphs: Count) -> bool:
    return _count(DIVIDER.split(text)) == num_paragraphs


def has_two_paragraphs(text: str, /) -> bool:
    return _count(DIVIDER.split(text)) == 2


def has_two_paragraphs_between_blank_lines(text: str, /) -> bool:
    return _count(text.split("\n\n")) == 2


def has_two_responses(text: str, /) -> bool:
    pieces = text.split("******")
    return _count(pieces) == 2 and len({piece.strip() for piece in pieces if piece.strip()}) == 2


def _count(pieces: Sequence[str]) -> int | None:
    """How many pieces there are, not counting a blank one at either end; None if one between is blank."""
    if not all(map(str.strip, pieces[1:-1])):
        return None
    return sum(1 for piece in pieces if piece.strip())


def has_first_word_in_paragraph(
    text: str, /, *, num_paragraphs: Count, nth_paragraph: Ordinal, first_word: Text
) -> bool:
    """The number of paragraphs, and the first word of the nth one. A blank piece has an index but does not count."""
    pieces = text.split("\n\n")
    count = sum(1 for piece in pieces if piece.strip())
    if count != num_paragraphs or nth_paragraph > count:
        return False
    words = pieces[nth_paragraph - 1].split(maxsplit=1)
    return bool(words) and re.split("[.,?!'\"]", words[0].lstrip("'\""))[0].lower() == first_word.lower()


def has_placeholders(text: str, /, *, num_placeholders: Count) -> bool:
    return sum(map(_brackets, text.split("\n"))) >= num_placeholders


def _brackets(line: str) -> int:
    """The number of `[...]`, each as short as possible."""
    count, start = 0, line.find("[")
    while start != -1 and (end := line.find("]", start)) != -1:
        count, start = count + 1, line.find("[", end)
    return count


def has_postscript(text: str, /, *, postscript_marker: Postscript) -> bool:
    return postscript_marker.search(text.lower()) is not None


def has_bullets(text: str, /, *, num_bullets: Count) -> bool:
    return sum(map(_is_bullet, text.split("\n"))) == num_bullets


def _is_bullet(line: str) -> bool:
    start = line.lstrip()[:2]
    return start.startswith("-") or (len(start) == 2 and start[0] == "*" and start[1] != "*")


def has_highlights(text: str, /, *, num_highlights: Count) -> bool:
    insides = (inside for mark in _HIGHLIGHTS for inside in mark.findall(text))
    return sum(1 for inside in insides if inside.strip()) >= num_highlights


def has_sections(text: str, /, *, section_spliter: Text, num_sections: Count) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", text)) >= num_sections


def is_json(text: str, /) -> bool:
    bare = text.strip()
    fence = next((fence for fence in _FENCES if bare.startswith(fence)), "")
    try:
        json.loads(bare.removeprefix(fence).removesuffix("```"))
    except (ValueError, RecursionError):
        return False
    return True


def has_title(text: str, /) -> bool:
    return any(map(_titled, text.split("\n")))


def _titled(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return -1 < start < end and bool(line[start:end].lstrip("<").rstrip(">").strip())


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
