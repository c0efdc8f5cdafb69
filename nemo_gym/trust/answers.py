"""What a right answer consists of: its value, what kind of value that is, and the text around it."""

import re
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from nemo_gym.analysis.gold import Gold, prompt_texts, text_of
from nemo_gym.llm_api.base import JsonObject

AnswerKind = Literal["number", "quantity", "letter", "list", "words", "json", "code", "text", "calls", "none"]
"""A quantity is a number with a unit. `text` is prose that many other texts could replace."""
VALUES = frozenset(("number", "quantity", "letter", "list", "words"))
"""Kinds with one right value, so that another value is wrong."""
MAX_VALUE_CHARS = 80
MAX_WORDS = 8

NUMBER = re.compile(r"[-+\u2212]?(?:\d[\d,]*\.?\d*|\.\d+)(?:/\d+)?")
_QUANTITY = re.compile(rf"({NUMBER.pattern})(\s*)(%|[A-Za-z°µ][A-Za-z°/²³^0-9]*)")
_STATED = re.compile(r"(?i)(?:final |correct )?answer(?: is)?:?\s+(?P<value>[^\n]+?)\.?\s*$")
_TAGGED = re.compile(r"(?s)<(answer|final|result)>(?P<value>.*?)</\1>")
_CASE_WORDS = re.compile(
    r"(?i)case[- ]sensitiv|upper[- ]?case|lower[- ]?case|capital letter|capitali[sz]|exactly as|keep the case"
)
_ROUGH_WORDS = re.compile(r"(?i)approximat|round|nearest|within|toleran|significant|decimal|estimate|about\b|roughly")
_ORDER_WORDS = re.compile(r"(?i)\border|sort|ascending|descending|sequence|first to last|reverse|rank|alphabetical")
_ANY_ORDER_WORDS = re.compile(r"(?i)any order|order does not matter|regardless of order|\bset of\b")


@dataclass(frozen=True, slots=True)
class Answer:
    """A right answer that scores, taken apart: `before + value + after` is what the model says."""

    gold: Gold
    kind: AnswerKind
    value: str = ""
    before: str = ""
    after: str = ""
    parsed: Any = None
    """The value of JSON."""

    def text(self, value: str) -> str:
        """What the model would say if this were the value."""
        return f"{self.before}{value}{self.after}"

    @property
    def has_value(self) -> bool:
        return self.kind in VALUES

    @property
    def key(self) -> str:
        """Equal for right answers that are the same up to notation."""
        return normalized(self.value) if self.has_value else orjson.dumps(_without_ids(self.gold.items)).decode()


def normalized(value: str) -> str:
    """A value without case, blanks and punctuation at its ends."""
    return re.sub(r"[\s,$]+", "", value).strip(".\\{}()[]\"'").lower()


def answer_of(row: JsonObject, gold: Gold | None) -> Answer | None:
    """Take a right answer apart; None if there is none."""
    if gold is None:
        return None
    if any(item["type"] == "function_call" for item in gold.items):
        return Answer(gold, "calls")
    text = text_of(gold.items)
    before, value, after = _parts(text, gold.bare)
    parsed = _json(value)
    if isinstance(parsed, dict | list) and parsed:
        return Answer(gold, "json", value, before, after, parsed)
    if "```" in text:
        return Answer(gold, "code", text)
    is_whole = not before and not after
    return Answer(gold, _kind(row, value, is_whole=is_whole and gold.bare is None), value, before, after)


def _parts(text: str, bare: str | None) -> tuple[str, str, str]:
    if bare is not None and (at := text.rfind(bare)) >= 0:
        return text[:at], bare, text[at + len(bare) :]
    if _json(text) is not None:
        return "", text, ""
    if (box := text.rfind("\\boxed{")) >= 0 and (end := text.find("}", text.rfind("{", box))) > 0:
        start = box + len("\\boxed{")
        end = _closing(text, start) or end
        return text[:start], text[start:end], text[end:]
    for pattern in (_TAGGED, _STATED):
        if found := pattern.search(text):
            return text[: found.start("value")], found["value"], text[found.end("value") :]
    return "", text, ""


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return None


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _kind(row: JsonObject, value: str, *, is_whole: bool) -> AnswerKind:
    stripped = value.strip()
    if NUMBER.fullmatch(stripped):
        return "number"
    if _QUANTITY.fullmatch(stripped):
        return "quantity"
    if len(stripped) == 1 and stripped.isalpha() and (row.get("options") or stripped.isupper()):
        return "letter"
    if not stripped or len(stripped) > MAX_VALUE_CHARS or "\n" in stripped:
        return "text"
    if "," in stripped and len(stripped.split(",")) > 1 and all(part.strip() for part in stripped.split(",")):
        return "list"
    if is_whole and len(stripped.split()) > MAX_WORDS:
        return "text"
    return "words"


def quantity_parts(value: str) -> tuple[str, str, str] | None:
    """The number, the blank and the unit of a quantity."""
    found = _QUANTITY.fullmatch(value.strip())
    return None if found is None else (found[1], found[2], found[3])


def mentions_case(row: JsonObject) -> bool:
    """True if the prompt says that the case of letters matters."""
    return _says(row, _CASE_WORDS)


def allows_rounding(row: JsonObject) -> bool:
    """True if the prompt speaks of rounding or of a tolerance."""
    return _says(row, _ROUGH_WORDS)


def fixes_order(row: JsonObject) -> bool:
    """True if the prompt asks for an order."""
    return _says(row, _ORDER_WORDS) and not _says(row, _ANY_ORDER_WORDS)


def _says(row: JsonObject, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(text) for text in prompt_texts(row))


def _without_ids(items: list[JsonObject]) -> list[JsonObject]:
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]
