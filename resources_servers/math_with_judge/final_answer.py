r"""Find the final answer in the text of a reply.

The last box (`\boxed{4}`) or statement ("The answer is 4", "Wait, it is 4") counts; without any, the last expression
near the end. An answer that the reply denies there or later ("not 4", "4 is wrong") is none. Takes linear time."""

import re
from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from nemo_gym.answers import DENIAL_CHARS, boxes, is_denied, is_taken_back

MAX_ANSWER_CHARS = 10_000
"""A longer answer is none."""

TAIL_CHARS = 1_000
"""Expressions that are neither in a box nor in a statement are looked for in this many last characters."""

MAX_STATEMENTS = 50
"""How many of the last statements are looked at."""

_PLAIN = str.maketrans("\N{MINUS SIGN}\N{RIGHT SINGLE QUOTATION MARK}", "-'")
_FLAGS = re.IGNORECASE | re.VERBOSE

_IS = r"(?: \b(?:is|are|was|be|equals?|becomes)\b | [=:] )"
_STATEMENT = re.compile(
    rf"""
    (?: \b(?:answers?|solutions?|result)\b (?:\s+(?:to|for|of)\b[^.:=\n]{{1,60}}?)? [\s*_]*
        (?:(?:must|should|will|would|has\ to)\s+)?
      | (?:^|[.!?\n(])[\s*_]* (?:wait|actually|correction|sorry|oops|scratch\ that|on\ second\ thought|no(?=[,.!]))\b
        (?: [\s,.!:*_…—-] | \b(?:no|so|sorry|it|that|this|the|i|meant|made|a|mistake|should|must|has\ to|[xyzn])\b )*
    ) {_IS}
    (?: [\s:*_] | (?:therefore|thus|then|exactly|simply|equal\ to|given\ by)\b )*
    (?= [-+$\\(\[{{\d.√π|±<≤] | (?:pi|sqrt|infinity|ln|log|sin|cos|tan)\b | [a-z](?![a-z']) )
    """,
    _FLAGS,
)
_MATH = r"""\$\$[^$]{1,2000}\$\$ | \$[^$\n]{1,2000}\$ | \\\((?:[^\\]|\\(?!\))){1,2000}\\\)
    | \\\[(?:[^\\]|\\(?!\])){1,2000}\\\]"""
_SENTENCE = re.compile(rf"(?: {_MATH} | [^.!?\n] | [.!?](?![\s*_)]|$) )*", _FLAGS)
_NUMBER = r"(?: \d+(?:[ ,]\d{3}(?!\d))*(?:[.,]\d+)? | \.\d+ )"
_EXPRESSION = re.compile(
    rf"""{_MATH} | -?\\[dt]?frac\{{[^{{}}]*\}}\{{[^{{}}]*\}} | (?<=\*\*)[^*\n]+(?=\*\*)
    | (?<![A-Za-z0-9_.\\{{^]) -?\(?-?{_NUMBER} (?:\s*[-+*/^×÷:]\s*\(?-?{_NUMBER}\)?)* \)?
      (?:\s*(?:%|\\?pi\b|π|\\sqrt\{{[^{{}}]*\}}))?""",
    _FLAGS,
)
_DELIMITER = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]|(?<![\w)}])\*\*|\*\*(?![\w({])|__")
_HEDGE = re.compile(r"[\s,;.(]*(?:or|either|maybe|perhaps|possibly|alternatively)\b", re.IGNORECASE)
_GUESS = re.compile(
    r"(?:\b(?:either|between|cannot\ be\ determined|can't\ be\ determined|unknown)\b[^.!?\n]{0,60}"
    r"|\d[\s$]*\bor\s+|\d\s+\d+\s+)[\s$*]*$",
    re.IGNORECASE,
)
"""Before an expression in no statement that is one of several, or a guess."""
_CLAUSE = re.compile(r"[^.!?:;\n]*$")
_SEVERAL_NUMBERS = re.compile(r"\d\s+\d(?!\d*\s*/\s*\d)(?!\d\d(?!\d))")
_WORD = re.compile(r"\\text\w*\s*\{[^{}]*\}|\\[A-Za-z]+|(?P<prose>[^\W\d_]{2,})")
_FORMULA_WORDS = {"and", "or", "pi", "sqrt", "infinity", "ln", "log", "sin", "cos", "tan", "exp", "min", "max"}


class Candidate(NamedTuple):
    """A part of a reply that may be its answer."""

    start: int
    end: int
    content: str


def final_answer(text: str) -> str | None:
    """Return what a reply gives as its answer, without delimiters such as `$`; None if it gives none."""
    text = text.translate(_PLAIN)
    boxed = [Candidate(box.start, box.end, bare(box.content)) for box in boxes(text)]
    explicit = [*boxed, *_statements(text)]
    loose = _expressions(text, max(0, len(text) - TAIL_CHARS))
    denied: set[str] = set()
    for candidate in sorted([*explicit, *loose], key=attrgetter("end"), reverse=True):
        if is_denied(text, candidate.start, candidate.end):
            if candidate in explicit or not explicit or not _is_comparison(text, candidate):
                denied.add(candidate.content)
        elif not explicit and _GUESS.search(text[max(0, candidate.start - DENIAL_CHARS) : candidate.start]):
            return None
        elif candidate.content not in denied and (candidate in explicit or not explicit):
            return candidate.content if _is_final(text, candidate) else None
    return None


def _is_comparison(text: str, candidate: Candidate) -> bool:
    """True if what is denied here is that another number is this one: "8 is not 9"."""
    clause = _CLAUSE.search(text[max(0, candidate.start - DENIAL_CHARS) : candidate.start])
    return clause is not None and any(map(str.isdigit, clause[0]))


def _is_final(text: str, candidate: Candidate) -> bool:
    is_one = 0 < len(candidate.content) <= MAX_ANSWER_CHARS
    return is_one and not is_taken_back(text, candidate.end, candidate.content)


def _statements(text: str) -> Iterator[Candidate]:
    for match in deque(_STATEMENT.finditer(text), MAX_STATEMENTS):
        sentence = _SENTENCE.match(text, match.end(), match.end() + MAX_ANSWER_CHARS)
        if sentence and "\\boxed" not in sentence[0] and (found := _stated(sentence[0])) is not None:
            yield Candidate(match.end(), match.end() + found[1], found[0])


def _stated(sentence: str) -> tuple[str, int] | None:
    """Return the answer at the start of a sentence and its length. The answer is "" if there are several."""
    if is_formula(sentence):
        return bare(sentence), len(sentence)
    found = _EXPRESSION.search(sentence)
    if found is None:
        return None
    is_hedged = _HEDGE.match(sentence, found.end()) or _SEVERAL_NUMBERS.search(sentence)
    return "" if is_hedged else bare(found[0]), found.end()


def is_formula(text: str) -> bool:
    """True if a text has no words but those of formulas, and no numbers side by side."""
    words = (match["prose"] for match in _WORD.finditer(text))
    return all(word is None or word.lower() in _FORMULA_WORDS for word in words) and not _SEVERAL_NUMBERS.search(text)


def _expressions(text: str, start: int) -> Iterator[Candidate]:
    if start == 0 and "\\boxed" not in text and is_formula(text):
        yield Candidate(0, len(text), bare(text))
    else:
        for match in _EXPRESSION.finditer(text, start):
            yield Candidate(match.start(), match.end(), bare(match[0]))


def bare(text: str) -> str:
    """Remove math delimiters, emphasis and closing punctuation."""
    return _DELIMITER.sub(" ", text).strip().rstrip(" \n\t.,;:\\")
