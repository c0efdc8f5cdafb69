r"""Find the final answer in the text of a reply.

The last box (`\boxed{4}`) or statement ("The answer is 4", "Wait, it is 4") counts; without any, the last expression
near the end. `final_declaration` has the rule for answers that are negated or withdrawn. Takes linear time."""

import re
from collections import deque
from collections.abc import Iterator
from operator import attrgetter

from nemo_gym.answers import NEAR_CHARS, Declaration, boxes, final_declaration

MAX_ANSWER_CHARS = 10_000
"""A longer answer is none."""

TAIL_CHARS = 1_000
"""Expressions that are neither in a box nor in a statement are looked for in this many last characters."""

MAX_STATEMENTS = 50
"""Number of the last statements that are read."""

_PLAIN = str.maketrans({"\N{MINUS SIGN}": "-", "\N{RIGHT SINGLE QUOTATION MARK}": "'", "²": "^{2}", "³": "^{3}"})
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
    (?= [-+$\\(\[{{\d.√π|±<≤] | (?:yes|no|true|false)[\s.!*_]*$
      | (?:pi|sqrt|infinity|ln|log|sin|cos|tan)\b | [a-z](?![a-z']) )
    """,
    _FLAGS,
)
_MATH = r"""\$\$[^$]{1,2000}\$\$ | \$[^$\n]{1,2000}\$ | \\\((?:[^\\]|\\(?!\))){1,2000}\\\)
    | \\\[(?:[^\\]|\\(?!\])){1,2000}\\\]"""
_SENTENCE = re.compile(rf"(?: {_MATH} | [^.!?\n] | [.!?](?![\s*_)]|$) )*", _FLAGS)
_NUMBER = r"(?: \d+(?:[ ,]\d{3}(?!\d))*(?:[.,]\d+)? | \.\d+ )"
_DECIMAL = r"\d++(?:\.\d++)?"
_THOUSANDS = r"\d{1,3}(?:,\d{3})+"
_POWER = r"(?:\s*(?:thousand|million|billion)\b)"
_FUNCTION = r"(?<!\w)[a-z]\([a-z]\)\s*=\s*(?:[-+*/^(){}\s\d.]|(?<![a-z])[a-z](?![a-z]))+"
_EXPRESSION = re.compile(
    rf"""(?:{_MATH}){_POWER}? | -?\\[dt]?frac\{{[^{{}}]*\}}\{{[^{{}}]*\}} | (?<=\*\*)[^*\n]+(?=\*\*)
    | {_FUNCTION} | (?<=\(){_THOUSANDS}(?=\))
    | (?<![\w)]) \((?!{_THOUSANDS}\)) (?:\s*-?{_DECIMAL}\s*,){{1,9}}+ \s*-?{_DECIMAL}\s*\)
    | (?<![A-Za-z0-9_.\\{{^]) -?(?:\((?!{_THOUSANDS}\)))?-?{_NUMBER} (?:\s*[-+*/^×÷:]\s*\(?-?{_NUMBER}\)?)* \)?
      (?:\s*(?:%|\\?pi\b|π|\\sqrt\{{[^{{}}]*\}})|{_POWER})?""",
    _FLAGS,
)
_DELIMITER = re.compile(
    r"`+|\\?\$|(?<!\\)\\[()\[\]]|(?<![\w)}])\*\*|\*\*(?![\w({])|__|</?(?:b|i|u|s|em|strong|code|span|p|div|sup|answer)>"
)
NUMBER_WORDS = (
    r"(?:plus|minus|times|over|divided|more|less|half|third|quarter|doubled?|twice|squared|cubed|negative|factorial"
    r"|dozens?|hundreds?|trillions?|tens|at\s+(?:least|most)|maybe|perhaps|one|two|three|four|five|six|seven|eight|nine"
    r"|ten|eleven|twelve|thirteen|fifteen|(?:four|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)"
)
"""Words beside a number that make it another one."""
_OTHER = re.compile(rf"[\s*]*{NUMBER_WORDS}\b|\.[\s*]*or\b", re.IGNORECASE)
_CLOSING = " \n\t.,;:\\*_\u220e" + "".join(map(chr, [*range(0x2600, 0x27C0), *range(0x1F300, 0x1FB00)]))
_DANGLING = re.compile(r"[\s,;]{0,5}\b(?:or|and)\s*$", re.IGNORECASE)
_HEDGE = re.compile(r"[\s,;.(]*(?:or|either|maybe|perhaps|possibly|alternatively)\b", re.IGNORECASE)
_GUESS = re.compile(
    r"(?:\b(?:either|between|cannot be determined|can't be determined|unknown|unclear|uncertain|whether)\b"
    r"[^.!?\n]{0,60}"
    r"|\b(?:at (?:least|most)|(?:more|less|greater|fewer) than(?:\s+or\s+equal\s+to)?|exceeds?|near"
    rf"|close to|above|below|{NUMBER_WORDS}(?:\s+of)?)\s+"
    r"|\\boxed\s*\{\s*\}|\d[\s$]*\bor\s+|\d\s+\d+\s+)[\s$*]*$",
    re.IGNORECASE,
)
"""Before an expression in no statement that is a bound, one of several, or a guess."""
_QUESTION = re.compile(r"[^.!?\n]{0,60}\?(?!\s*(?:yes|indeed|correct)\b)", re.IGNORECASE)
_SEVERAL_NUMBERS = re.compile(r"\d\s+\d(?!\d*\s*/\s*\d)(?!\d\d(?!\d))")
_WORD = re.compile(r"\\text\w*\s*\{[^{}]*\}|\\[A-Za-z]+|(?P<prose>[^\W\d_]{2,})")
_FORMULA_WORDS = {"and", "or", "pi", "sqrt", "infinity", "ln", "log", "sin", "cos", "tan", "exp", "min", "max"}


def final_answer(text: str) -> str | None:
    """Return what a reply gives as its answer, without delimiters such as `$`; None if it gives none."""
    text = text.translate(_PLAIN)
    boxed = (box._replace(content=bare(box.content)) for box in boxes(text))
    explicit = sorted([*boxed, *_statements(text)], key=attrgetter("end"))
    found = final_declaration(text, explicit or list(_expressions(text, max(0, len(text) - TAIL_CHARS))))
    if found is None or not 0 < len(found.content) <= MAX_ANSWER_CHARS:
        return None
    before = text[max(0, found.start - NEAR_CHARS) : found.start]
    after = (_QUESTION, _HEDGE, _OTHER)
    is_guess = not explicit and (_GUESS.search(before) or any(each.match(text, found.end) for each in after))
    return None if is_guess else found.content


def _statements(text: str) -> Iterator[Declaration]:
    for match in deque(_STATEMENT.finditer(text), MAX_STATEMENTS):
        sentence = _SENTENCE.match(text, match.end(), match.end() + MAX_ANSWER_CHARS)
        said = _DANGLING.sub("", sentence[0]) if sentence else ""
        if said and "\\boxed" not in said and (found := _stated(said)) is not None:
            end = match.end() + found[1]
            content = "" if _OTHER.match(text, end) else found[0]
            yield Declaration(match.end(), end, content, outer=(match.start(), end))


def _stated(sentence: str) -> tuple[str, int] | None:
    """Return the answer at the start of a sentence and its length. The answer is "" if there are several."""
    if _is_verdict(sentence) or is_formula(sentence):
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


def _is_verdict(text: str) -> bool:
    return bare(text).strip("*_! ").lower() in ("yes", "no", "true", "false")


def _expressions(text: str, start: int) -> Iterator[Declaration]:
    if start == 0 and "\\boxed" not in text and (_is_verdict(text) or is_formula(text)):
        yield Declaration(0, len(text), bare(text))
    else:
        for match in _EXPRESSION.finditer(text, start):
            yield Declaration(match.start(), match.end(), bare(match[0]))


def bare(text: str) -> str:
    """Remove math delimiters, emphasis, tags, closing punctuation and pictures behind an answer."""
    return _DELIMITER.sub(" ", text).strip().rstrip(_CLOSING)
