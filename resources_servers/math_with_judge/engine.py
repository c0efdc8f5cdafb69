"""Compare the final answer of a reply with the expected one, by the rules of math-verify.

Runs in a compute worker. The server imports this module too, so the library, which is slow to import, is only imported
inside the functions."""

import logging
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from nemo_gym.answers import plain_letters, shown
from resources_servers.math_with_judge.final_answer import MAX_ANSWER_CHARS, NUMBER_WORDS, bare, final_answer


class LibraryCheck(NamedTuple):
    """The library's reward, 1.0 or 0.0, and the answer that it extracted from the reply, as text."""

    reward: float
    extracted: str | None
    is_gold_readable: bool = True


NOTHING = LibraryCheck(0.0, None)
UNREADABLE_GOLD = LibraryCheck(0.0, None, is_gold_readable=False)

FORMS = (
    "-12.5",
    r"9\pi",
    r"-\frac{3\sqrt{2}}{4}",
    "x(x+1)^2 - 2x",
    r"2^{10} \cdot 3!",
    "(-1, 3]",
    r"(-\infty, 2) \cup [3, \infty)",
    r"\{1, 2\}",
    "x=2, y=-1",
    r"x=2 \text{ or } x=3",
    r"1 < x \le 3",
    r"\sin(x) + \log_2 8",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    r"50\%",
    r"30^\circ",
)
"""Common kinds of answers."""

RELATIVE_TOLERANCE = 1e-4
"""The library rounds to six decimals, so that all tiny numbers are equal to it. They must agree in this way, too."""

AS_FRACTION, AS_NUMBER = r"\\frac{\1}{100}", r"\1"
"""Ways to read a percentage. One without counterpart is compared in both ways, as math-verify 0.9.0 does."""

POWERS = {"thousand": 3, "million": 6, "billion": 9}

_CHARACTERS = str.maketrans(
    dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}", "-")
    | dict.fromkeys("€£¥°", " ")
    | {
        "\N{FRACTION SLASH}": "/",
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "√": r"\sqrt ",
        "∅": r"\emptyset ",
    }
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "\N{UNION}": r"\cup ", "∩": r"\cap ", "∈": r"\in "}
    | {"²": "^{2}", "³": "^{3}", "½": r" \frac{1}{2}", "¼": r" \frac{1}{4}", "¾": r" \frac{3}{4}"}
)
_UNIT = (
    r"(?:[kcm]?m|mi|ft|[km]?g|[km]?[Ll]|h|hr|min|s|sec|(?:kilo|centi|milli)?(?:meters?|metres?|grams?|liters?|litres?)"
    r"|seconds?|minutes?|hours?|days?|weeks?|months?|years?|miles?|feet|foot|inch(?:es)?|yards?|pounds?|dollars?"
    r"|cents?|euros?|USD|EUR|degrees?|units?)"
)
_FONT = r"\\(?:(?:text|math)(?:bf|it|rm|sf|tt|normal|up)?|mbox|operatorname)\s*"
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\nicefrac(?![A-Za-z])", r"\\frac"),
        (r"\\([lr])brace(?![A-Za-z])", lambda side: r"\{" if side[1] == "l" else r"\}"),
        (r"(\\\\)\[\d{1,2}(?:pt|em|ex|mm)\]", r"\1 "),
        (r"\\log_\{?e\}?(?![A-Za-z])", r"\\ln "),
        (r"^P\([^()]{1,60}\)\s*(?==)", ""),
        (rf"^{_FONT}\{{\s*(-?\d[\d,]*(?:\.\d+)?)\s*\}}$", r"\1"),
        (r"(?<=\d)_(?:10|\{10\})$", ""),
        (r"(?<=\d)\{,\}(?=\d{3}(?!\d))", ""),
        (r"_\{(\d{1,3})\}", r"_\1"),
        (r"(?:\\left)?\s*\\langle(?![A-Za-z])", "("),
        (r"(?:\\right)?\s*\\rangle(?![A-Za-z])", ")"),
        (r"^\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?::|\||\\mid(?![A-Za-z]))([^{}]+)\\\}$", r"\1"),
        (
            r"\^\s*(?:\{\s*(-?\d{0,3}\.\d{1,6})\s*\}|(\d{0,3}\.\d{1,6}))",
            lambda power: _as_fraction(power[1] or power[2]),
        ),
        (
            rf"(?<=[\d}}\s]){_FONT}\{{(?:\\?\s)*(?!{NUMBER_WORDS}\b)[A-Za-z]{{1,12}}\s?/\s?[A-Za-z]{{1,12}}\s*\}}(?:\^\{{?\d\}}?)?",
            " ",
        ),
        (rf"(?<=\d)\s+{_UNIT}(?:\^\{{?\d\}}?)?(?:\s?/\s?{_UNIT}(?:\^\{{?\d\}}?)?)?\s*$", ""),
        (rf"({_FONT}\{{[^{{}}]*?)\.\s*\}}$", r"\1}"),
        (r"\\(?:textcolor|color)\s*\{[A-Za-z]{1,20}\}", ""),
        (r"\\(?:[bB]igg?[lrm]?|tiny|small|large|Large|LARGE|huge|Huge)(?![A-Za-z])", ""),
        (rf"{_FONT}\{{\s*,\s*\}}", ", "),
        (r"\\(?:lor|vee)(?![A-Za-z])", r"\\text{ or }"),
        (rf"\(\s*{_FONT}\{{\s*mod\s*\}}(?:\\?\s)*\d+\s*\)", ""),
        (r"^\](-?[^\[\]]+,[^\[\]]+)([\[\]])$", lambda ends: f"({ends[1]}{']' if ends[2] == ']' else ')'}"),
        (rf"(?<=[\d}})]){_FONT}\{{\s*((?:[\d^+*/.-]|\\pi)[^{{}}A-Za-z]*|[ie]|\\pi)\s*\}}", r"\1 "),
        (r"^\s*(?:=|\\approx(?![A-Za-z])|≈)", ""),
        (r"\\(?:boxed|fbox|underline|boldsymbol|bm|bf|rm|it)(?![A-Za-z])", ""),
        (r"\^\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?|\\degree(?![A-Za-z])", " "),
        (r"\^\s*\{\s*\\(?:text|mathrm)\{\s*(?:st|nd|rd|th)\s*\}\s*\}", ""),
        (r"(?<!\\)\\[,;:! ]|~|\\q?quad(?![A-Za-z])", " "),
        (r"(?<=\d)\s+i$", "i"),
        (r"(?<![\d.])\d{1,3}(?: \d{3})+(?![\d/])", lambda number: number[0].replace(" ", "")),
        (r"(?<![\d.,(\[{])\d{1,3}(?:,\d{3})+(?=,\s|\s*$)", lambda number: number[0].replace(",", "")),
        (r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", r"(\1+\\frac{\2}{\3})"),
        (r"(\d)\.?[eE]([-+]?\d+)(?![\d.])", r"\1 \\cdot 10^{\2}"),
        (r"(\d)\.(?!\d)", r"\1"),
        (r"\\pmod\s*\{[^{}]*\}|\(\s*\\?b?mod\s*\d+\s*\)", ""),
        (r"(?<![A-Za-z\\])(pi|ln|log|sin|cos|tan)(?![A-Za-z])", r"\\\1 "),
        (r"\\?(?<![A-Za-z])sqrt\s*(?:\(([^()]*)\)|(\d+))", lambda root: rf"\sqrt{{{root[1] or root[2]}}}"),
        (r"\*\*", "^"),
        (r"\*", r" \\cdot "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"!=", r"\\ne "),
        (
            r"(?:\\text\{\s*|(?<=\d)\s*)(thousand|million|billion)\b\s*\}?",
            lambda word: rf" \cdot 10^{POWERS[word[1]]}",
        ),
        (r"\\varnothing", r"\\emptyset"),
        (r"\\text\{\s*(?:percent|\\?%)\s*\}|\bpercent\b|\\%", "%"),
    )
]
_ANOTHER_UNIT = re.compile(r"\d\s*(?:_|\^?\s*\{?\s*(?:'|\\prime(?![A-Za-z])))")
"""A number in another base, minutes or seconds of arc."""
_TUPLE = re.compile(r"(?:\\left)?\((?P<inside>[^()\[\]]*,[^()\[\]]*)(?:\\right)?\)")
_ASSIGNMENT = re.compile(r"([A-Za-z])\s*=\s*([^=,]+)")
_ROW_END = "\\\\"
_COLUMN = re.compile(r"\\begin\{[bp]matrix\}([^&]+)\\end\{[bp]matrix\}")
_NAME = re.compile(r"^[A-Z]\s*(?=\()")
"""Matches the name of a point, as in `P(1, 2)`."""
_BARE_LIST = re.compile(r"[^()\[\]{}=<>]*,[^()\[\]{}=<>]*")
_ROOT = r"(?:\\sqrt\{\d{1,9}\}|\\pi)"
_TERM = rf"(?:\d{{1,30}}(?:\.\d{{1,30}})?{_ROOT}?|{_ROOT}|\\[dt]?frac\{{\d{{1,30}}\}}\{{[1-9]\d{{0,29}}\}})"
_PLAIN = re.compile(rf"-?{_TERM}(?:\s?[-+]\s?{_TERM}){{0,4}}")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_DENIAL = re.compile(r"\\n(?:eq?|ot)(?![A-Za-z])|\b(?:not|no|never|wrong|incorrect|false|except)\b", re.IGNORECASE)
_CHANGING_TEXT = re.compile(
    rf"""(?<=[\d}})\s]){_FONT}\{{ [^{{}}]{{0,200}}
    (?: [\d+*/^=<>?~|] | \b(?: {NUMBER_WORDS} | or\s+\w+ | and\s+\w+ )\b ) [^{{}}]{{0,200}} \}}""",
    re.IGNORECASE | re.VERBOSE,
)
"""Words behind a number that make it another one. Anything else is a unit."""
_IMPLICATION = re.compile(r"\\(?:[Rr]ightarrow|implies|to|iff|Leftrightarrow)(?![A-Za-z])|⇒|→|=>")
_EQUALS = re.compile(r"=|\\equiv(?![A-Za-z])|≡")
_LETTER = re.compile(
    r"\\(?:[dt]?frac|sqrt|pi|cdot|times|left|right|infty)(?![A-Za-z])|(?P<letter>[A-Za-z\u0370-\u03ff])"
)
_LISTED = re.compile(r"\b(?:and|or)\b")
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|lt|gt|leq|geq)(?![A-Za-z])")
_PRIMED_LETTER = re.compile(r"\W*[A-Za-z]\W*['\u2032]\W*")
_ALL_OF = re.compile(r"\band\b|\\(?:land|wedge)(?![A-Za-z])|∧")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def warm_up() -> None:
    """Import the library and parse common forms once: the first time is slow for each of them."""
    for form in FORMS:
        check(form, f"\\boxed{{{form}}}")


def check(expected: str, *messages: str) -> LibraryCheck:
    """Compare the final answer in the messages of a reply with the expected answer.

    The library's own time limits are off: they need signals and turn into a silent 0.0. The caller limits the time.
    """
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    gold, answer = normalized(expected), normalized(final_answer(spoken(messages)) or "")
    golds = _parsed(gold, percent=AS_FRACTION)
    if not _is_readable(golds):
        return UNREADABLE_GOLD
    if any(sign.search(answer) and not sign.search(gold) for sign in (_DENIAL, _PRIMED_LETTER)):
        return NOTHING
    try:
        if not (_is_one_value(answer) or gold == answer):
            return NOTHING
        return _compared(gold, golds, answer)
    except (MemoryError, SystemError):  # failures of this process, which say nothing about the answer
        raise
    except Exception:
        return NOTHING


def spoken(messages: Iterable[str]) -> str:
    """The text of a reply without what is hidden and without thoughts, which end with their message."""
    return "".join(map(shown, messages))


def unreadable_gold(expected: str) -> str | None:
    """Return why the library cannot compare answers with the expected one; None if it can."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    is_readable = _is_readable(_parsed(normalized(expected), percent=AS_FRACTION))
    return None if is_readable else f"math-verify cannot parse expected_answer: {expected!r:.200}"


def _is_one_value(answer: str) -> bool:
    """False for numbers that text, a base or a prime changes, for conclusions, and for `7=12`."""
    if any(pattern.search(answer) for pattern in (_CHANGING_TEXT, _ANOTHER_UNIT, _IMPLICATION)):
        return False
    *names, value = _EQUALS.split(answer) if not re.search(r"[,;<>]|\\(?:text|le|ge|ne)", answer) else [answer]
    numbers = [name for name in names if not any(token["letter"] for token in _LETTER.finditer(name))]
    values = _parsed(value, percent=AS_FRACTION)
    return all(_are_equal(values, _parsed(number.strip(), percent=AS_FRACTION)) for number in numbers)


def _compared(gold: str, golds: Sequence[Any], answer: str) -> LibraryCheck:
    if _TUPLE.fullmatch(gold):
        answer = _as_tuple(answer)
    predictions = _parsed(answer, percent=AS_FRACTION)
    is_equal = _are_equal(golds, predictions) and not _differ_in_order(gold, answer)
    if not is_equal and ("%" in gold) != ("%" in answer):
        is_equal = _are_equal(_parsed(gold, percent=AS_NUMBER), _parsed(answer, percent=AS_NUMBER))
    return LibraryCheck(float(is_equal), _extracted(golds, predictions))


def _as_tuple(answer: str) -> str:
    """A list without brackets as a tuple, in its own order or in that of the names: `y=2, x=1` is `(1, 2)`."""
    if _BARE_LIST.fullmatch(answer):
        return f"({answer})"
    if column := _COLUMN.fullmatch(answer):
        return f"({', '.join(column[1].split(_ROW_END))})"
    answer = _NAME.sub("", answer, count=1)
    named = dict(_ASSIGNMENT.findall(answer))
    is_named = len(named) > 1 and not _ASSIGNMENT.sub("", answer).strip(" ,")
    return f"({', '.join(named[name] for name in sorted(named))})" if is_named else answer


def _differ_in_order(gold: str, answer: str) -> bool:
    """True if one is a point, whose numbers have an order, and the other a set or a list, whose numbers have none."""
    if _TUPLE.fullmatch(gold):
        return _is_set(answer) or answer.startswith(("[", r"\left["))
    return _BARE_LIST.fullmatch(gold) is not None and _TUPLE.fullmatch(answer) is not None


def _is_set(answer: str) -> bool:
    """True for a list in braces or with "and", which has no order."""
    return (_LISTED.search(answer) is not None and _RELATION.search(answer) is None) or (
        answer.startswith(("{", r"\{", r"\left\{")) and answer.endswith("}")
    )


def _as_fraction(decimal: str) -> str:
    """An exponent such as 0.5 as a fraction: the library takes decimal powers for inexact."""
    power = Fraction(decimal)
    return rf"^{{\frac{{{power.numerator}}}{{{power.denominator}}}}}"


def normalized(text: str) -> str:
    """Rewrite notations that the library does not read, or reads as something else, into LaTeX."""
    text = bare(plain_letters(text)).translate(_CHARACTERS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip()


def is_plain(expected: str) -> bool:
    """True for sums of numbers, fractions and square roots, which the library can surely parse."""
    return _PLAIN.fullmatch(expected) is not None


def is_balanced(text: str) -> bool:
    """True if every brace has its counterpart."""
    depth = 0
    for token in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth < 0:
            return False
    return depth == 0


def _parsed(text: str, *, percent: str) -> list[Any]:
    """Parse a normalized answer: an expression and its text, or only one of them; nothing if it is no LaTeX."""
    from math_verify import LatexExtractionConfig, parse  # type: ignore[import-untyped]

    if not 0 < len(text) <= MAX_ANSWER_CHARS or not is_balanced(text):
        return []
    boxed = f"\\boxed{{{_PERCENT.sub(percent, text)}}}"
    try:
        found = parse(boxed, [LatexExtractionConfig()], parsing_timeout=None, raise_on_error=True)
        return [_with_inequalities_as_set(each, all_hold=_ALL_OF.search(text) is not None) for each in found]
    except (MemoryError, SystemError):
        raise
    except Exception:
        return []


def _with_inequalities_as_set(parsed: Any, *, all_hold: bool) -> Any:
    """Return the set that inequalities (`x < 2 or x > 3`, `x > 2 and x < 3`) describe, and anything else as it is."""
    from sympy import And, Eq, FiniteSet, Or, Rel  # type: ignore[import-untyped]

    parts = parsed.args if isinstance(parsed, FiniteSet) else ()
    if not parts or not all(isinstance(each, Rel) and not isinstance(each, Eq) and _is_solved(each) for each in parts):
        return parsed
    return (And if all_hold else Or)(*parts).as_set()


def _is_solved(relation: Any) -> bool:
    """True for `x < 3` and `3 > x`, but not for `2x < 6`, which may be copied from the problem."""
    sides = sorted((relation.lhs, relation.rhs), key=lambda side: bool(side.is_Symbol))
    return bool(sides[1].is_Symbol) and not sides[0].free_symbols


def _is_readable(golds: Sequence[Any]) -> bool:
    """True if there is an expression that is equal to itself, which what is not a number is not."""
    from math_verify import verify
    from sympy import Basic, MatrixBase

    expressions = [gold for gold in golds if isinstance(gold, Basic | MatrixBase)]
    return any(verify(gold, gold, timeout_seconds=None) for gold in expressions)


def _are_equal(golds: Sequence[Any], predictions: Sequence[Any]) -> bool:
    return any(_is_equal(gold, prediction) for gold in golds for prediction in predictions)


def _is_equal(gold: Any, prediction: Any) -> bool:
    from math_verify import verify
    from sympy import And, Eq, FiniteSet, Rel, Set

    relations = prediction.atoms(Rel) - prediction.atoms(Eq) if isinstance(prediction, Rel | And) else ()
    if not all(map(_is_solved, relations)) and (isinstance(gold, Set) or _is_solution(gold)):
        return False
    if relations and isinstance(gold, FiniteSet) and not gold.atoms(Rel):
        return False
    is_equal = verify(gold, prediction, timeout_seconds=None, allow_set_relation_comp=True)
    return is_equal and _agree_if_tiny(gold, prediction)


def _is_solution(gold: Any) -> bool:
    from sympy import And, Rel

    return isinstance(gold, Rel | And) and all(map(_is_solved, gold.atoms(Rel)))


def _agree_if_tiny(gold: Any, prediction: Any) -> bool:
    """False for decimal numbers that are equal only because the library rounds both to six decimals."""
    from sympy import Expr, Float

    numbers = [each for each in (gold, prediction) if isinstance(each, Expr) and each.is_number]
    if len(numbers) < 2 or not any(each.has(Float) for each in numbers):
        return True
    one, other = (each.evalf() for each in numbers)
    return bool(abs(one - other) <= RELATIVE_TOLERANCE * max(abs(one), abs(other)))


def _extracted(golds: Sequence[Any], predictions: Sequence[Any]) -> str | None:
    """The first printed prediction that equals a printed gold answer as text, else the first one."""
    from math_verify import verify

    printed_golds, printed = [str(gold) for gold in golds], [str(prediction) for prediction in predictions]
    for text in printed:
        if any(verify(gold, text, timeout_seconds=None) for gold in printed_golds):
            return text
    return printed[0] if printed else None
