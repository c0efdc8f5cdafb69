"""What a judge is to answer, and how its reply is read: labels, scales, rubrics, JSON, preferences.

The last label of a reply counts. `Markers` breaks up labels and delimiters in the texts that fill in a prompt."""

import html
import itertools
import json
import math
import re
import string
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from nemo_gym.answers import THOUGHT_TAGS, TO_LATIN, is_negated, is_withdrawn, shown
from nemo_gym.errors import ConfigError

Answer = TypeVar("Answer", bound=BaseModel)

EQUAL_LABEL = "[[A=B]]"
NOT_EQUAL_LABEL = "[[A!=B]]"
MAX_OBJECT_STARTS = 200
"""How many braces of a reply, from its end, may start its last JSON object."""
REASONS = "Give your reasons in a few sentences."
BREAK = "\N{OPEN BOX}"
"""Put into a label or delimiter where it must not be one. A model reads it as a blank."""
MAX_ESCAPES = 3
"""How often a text may be HTML-escaped for its labels and delimiters to be found."""
RESERVED = (
    *(f"<{end}{tag}" for tag in THOUGHT_TAGS for end in ("", "/")),
    *("[think]", "[/think]", "◁", "<|", "<s>", "</s>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"),
    *("<extra_id_", "<SPECIAL_"),
)
"""Broken up whatever the template: tags of thoughts, and the special tokens of chat templates."""
_BRACKETS, _SIGNS = (
    "\u2039\u203a\u27e8\u27e9\u276c\u276d\u276e\u276f\u3010\u3011\u3014\u3015\u2772\u2773",
    "\ua78a\u2e40\u01c3\u2215\u2044",
)
_LOOK_ALIKES = TO_LATIN | str.maketrans(_BRACKETS + _SIGNS, "<><><><>[][][]==!//") | {0x27E6: "[[", 0x27E7: "]]"}
"""Characters that are taken for others of labels and delimiters."""
_MARKUP = str.maketrans("", "", "\\*_`~")
_LOOSE = r"[\s\\*_`]*"
"""What may stand within a label in brackets."""
_LABEL_SIGNS = {"!=": rf"(?:[!\uff01]{_LOOSE}[=\uff1d]|≠|\\?neq?)", "=": r"[=\uff1d]{1,2}"}


# What a judge may be asked for


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply says."""

    score: float
    label: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    """Of the criteria of a rubric."""
    reason: str | None = None


class UnreadableError(Exception):
    """A reply has no verdict. `kind` says why."""

    def __init__(self, kind: Literal["ambiguous", "no_label"]) -> None:
        super().__init__(kind)
        self.kind = kind


class VerdictForm(Protocol):
    """What a judge is asked for, and how its reply is read."""

    @property
    def markers(self) -> Sequence[str]:
        """The texts that answers must not contain."""

    @property
    def instruction(self) -> str:
        """How to answer, appended to the prompt. Empty if the prompt says so itself."""

    def read(self, reply: str) -> Reading:
        """Read a complete reply. Raises UnreadableError."""


@dataclass(frozen=True)
class Equality:
    """Whether two answers are equal, by two labels that the prompt names. No label means not equal."""

    equal: str = EQUAL_LABEL
    not_equal: str = NOT_EQUAL_LABEL
    instruction: str = ""

    def __post_init__(self) -> None:
        for label in (self.equal, self.not_equal):
            if len(folded(label)) < 2 or len(label.splitlines()) > 1:
                raise ConfigError(f"The judge's label {label!r} has to be of two characters or more, in one line.")
        if self.equal == self.not_equal:
            raise ConfigError(f"Both labels of the judge are {self.equal!r}; expected different ones.")

    @property
    def markers(self) -> Sequence[str]:
        return (self.equal, self.not_equal)

    def read(self, reply: str) -> Reading:
        label = _last_label(reply, self.markers, best=(self.equal,))
        return Reading(float(label == self.equal), label)


class Labels:
    """Named labels, each with the score that it is worth: `Labels({"good": 1, "fair": 0.5, "poor": 0})`. The judge
    writes them in brackets, as `[[good]]`."""

    def __init__(self, scores: Mapping[str, float], *, meanings: Mapping[str, str] | None = None) -> None:
        """`meanings` are explanations for the judge, by label."""
        self.scores, self.meanings = dict(scores), dict(meanings or {})
        _check_names(list(self.scores), "label")
        if unknown := self.meanings.keys() - self.scores.keys():
            raise ConfigError(f"There is a meaning of {', '.join(sorted(unknown))}, but no such label.")
        if len(self.scores) < 2 or not all(map(math.isfinite, self.scores.values())):
            raise ConfigError(f"The labels are {self.scores}; expected two or more, each with a finite score.")

    def marks(self, criterion: str = "") -> dict[str, str]:
        """The names of the labels by what the judge writes."""
        return {f"[[{criterion}: {name}]]" if criterion else f"[[{name}]]": name for name in self.scores}

    @property
    def markers(self) -> Sequence[str]:
        return tuple(self.marks())

    @property
    def instruction(self) -> str:
        lines = [f"{mark}{self._meaning(name)}" for mark, name in self.marks().items()]
        return "\n".join([f"{REASONS} Then end with exactly one of these labels:", *lines])

    def _meaning(self, name: str) -> str:
        return f" {self.meanings[name]}" if name in self.meanings else ""

    def read(self, reply: str, criterion: str = "") -> Reading:
        marks, most = self.marks(criterion), max(self.scores.values())
        best = [mark for mark, name in marks.items() if self.scores[name] == most]
        label = _last_label(reply, tuple(marks), best=best)
        if label is None:
            raise UnreadableError("no_label")
        return Reading(self.scores[marks[label]], marks[label])


class Scale(Labels):
    """A graded scale of whole numbers, such as `Scale(1, 5)`. The lowest is worth 0, the highest 1."""

    def __init__(self, low: int, high: int, *, meanings: Mapping[int, str] | None = None) -> None:
        if not low < high or high - low > 100:
            raise ConfigError(f"The scale is from {low} to {high}; expected up to 101 grades, the lowest first.")
        self.low, self.high = low, high
        grades = {str(grade): (grade - low) / (high - low) for grade in range(low, high + 1)}
        super().__init__(grades, meanings={str(grade): text for grade, text in (meanings or {}).items()})

    @property
    def instruction(self) -> str:
        lines = [f"[[{name}]]{self._meaning(name)}" for name in self.scores if name in self.meanings]
        ends = f"from [[{self.low}]], the worst, to [[{self.high}]], the best"
        return "\n".join([f"{REASONS} Then end with exactly one grade, {ends}.", *lines])


@dataclass(frozen=True)
class Criterion:
    """One criterion of a rubric: `Criterion("short", "It has at most two sentences.", weight=2)`."""

    name: str
    text: str
    """The text for the judge."""
    weight: float = 1.0
    verdict: Labels = field(default_factory=lambda: Labels({"yes": 1.0, "no": 0.0}))
    """Labels or a scale. By default `yes`, worth 1, and `no`, worth 0."""

    def line(self) -> str:
        """Return the criterion as the judge sees it."""
        marks = list(self.verdict.marks(self.name))
        ends = f"from {marks[0]} to {marks[-1]}" if isinstance(self.verdict, Scale) else " or ".join(marks)
        meanings = "".join(f"\n  {name}: {text}" for name, text in self.verdict.meanings.items())
        return f"- {self.name}: {self.text} Answer {ends}.{meanings}"


class Rubric:
    """Several weighted criteria, judged in one reply. The score is their weighted mean."""

    def __init__(self, *criteria: Criterion) -> None:
        self.criteria = criteria
        _check_names([each.name for each in criteria], "criterion")
        weights = [each.weight for each in criteria]
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not sum(weights) > 0:
            raise ConfigError(f"The weights of the rubric are {weights}; expected numbers of 0 or more, not all 0.")

    @property
    def markers(self) -> Sequence[str]:
        return [mark for each in self.criteria for mark in each.verdict.marks(each.name)]

    @property
    def instruction(self) -> str:
        lines = (each.line() for each in self.criteria)
        return "\n".join(["Judge by these criteria, each by itself:", *lines, "", f"{REASONS} {self._ending()}"])

    def _ending(self) -> str:
        first = next(iter(self.markers))
        return f"Then end with one label for each criterion, each in a line of its own, such as {first}."

    def read(self, reply: str) -> Reading:
        scores = {each.name: each.verdict.read(reply, each.name).score for each in self.criteria}
        weights = sum(each.weight for each in self.criteria)
        return Reading(sum(each.weight * scores[each.name] for each in self.criteria) / weights, scores=scores)


class JsonVerdict(Generic[Answer]):
    """A JSON object that fits a pydantic model: the last one of the reply. `score` computes the score from it; a
    field `reason` is kept."""

    def __init__(self, model: type[Answer], *, score: Callable[[Answer], float]) -> None:
        self.model, self.score = model, score

    @property
    def markers(self) -> Sequence[str]:
        return [f'"{name}"' for name in self.model.model_json_schema()["properties"]]

    @property
    def instruction(self) -> str:
        schema = json.dumps(self.model.model_json_schema())
        return f"{REASONS} Then end with exactly one JSON object that fits this schema:\n{schema}"

    def read(self, reply: str) -> Reading:
        try:
            answer = self.model.model_validate(last_object(shown(reply)))
        except ValidationError as error:
            raise UnreadableError("no_label") from error
        reason = getattr(answer, "reason", None)
        return Reading(float(self.score(answer)), reason=reason if isinstance(reason, str) else None)


class Preference(Labels):
    """Which of two answers is better. The prompt has `{answer_a}` and `{answer_b}`; `prefer` asks in both orders."""

    def __init__(self, *, allows_tie: bool = True) -> None:
        tie = {"tie": 0.5} if allows_tie else {}
        meanings = {"A": "if answer A is better", "B": "if answer B is better", "tie": "if neither is"}
        scores = {"A": 1.0, **tie, "B": 0.0}
        super().__init__(scores, meanings={name: meanings[name] for name in scores})


def _check_names(names: Sequence[str], what: str) -> None:
    if wrong := [name for name in names if not re.fullmatch(r"\w([\w .+-]*\w)?|[+-]?\d+", name)]:
        raise ConfigError(f"The {what} {wrong[0]!r} has to be words or a number, without punctuation.")
    if not names or len({folded(name) for name in names}) < len(names):
        raise ConfigError(f"There is no {what}, or two look the same: {', '.join(names) or 'none'}.")


def _last_label(reply: str, labels: Sequence[str], *, best: Iterable[str]) -> str | None:
    """The last label of a reply; None if it has none, or denies the best one."""
    found = final_labels(reply, *labels)
    if len(found) > 1:
        raise UnreadableError("ambiguous")
    label = next(iter(found), None)
    is_denied = label is not None and label in best and is_label_denied(reply, label)
    return None if is_denied else label


def last_object(text: str) -> Any:
    """The JSON object that ends last in a text; None if there is none."""
    decoder, end, found = json.JSONDecoder(), 0, None
    starts = itertools.islice((each.start() for each in re.finditer(r"\{", text[::-1])), MAX_OBJECT_STARTS)
    for start in (len(text) - 1 - place for place in starts):
        try:
            value, its_end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if its_end >= end:
            end, found = its_end, value
    return found


# Labels in a reply


def final_labels(text: str, *labels: str) -> set[str]:
    """The labels in the last line that has any. Thoughts, hidden text and quoted lines (`> …`) are not read.

    A label within a longer one or within a word does not count: `INCORRECT` is not `CORRECT`. A label in brackets may
    be written a little differently: `[[A ≠ B]]` and `\\[\\[a != b\\]\\]` are `[[A!=B]]`.
    """
    patterns = {label: _label_pattern(label, labels) for label in labels}
    for line in reversed(_lines(text)):
        if found := {label for label, pattern in patterns.items() if pattern.search(line)}:
            return found
    return set()


def is_label_denied(text: str, label: str) -> bool:
    """True if the last line with the label says that it is not the verdict: "It should not be [[A=B]]."."""
    pattern = _label_pattern(label, ())
    line = next((line for line in reversed(_lines(text)) if pattern.search(line)), "")
    return any(
        is_negated(line, found.start()) or is_withdrawn(line, found.end(), label) for found in pattern.finditer(line)
    )


def _lines(text: str) -> list[str]:
    return [line for line in shown(text).splitlines() if not line.lstrip().startswith(">")]


def _label_pattern(label: str, others: Iterable[str]) -> re.Pattern[str]:
    """Finds a label where it is not a part of a longer one."""
    if label.startswith("[") and label.endswith("]"):
        parts = [_LABEL_SIGNS.get(part, re.escape(part)) for part in re.findall(r"!=|[^\s\[\]]", label)]
        return re.compile(
            _LOOSE.join([*(len(label) - len(label.lstrip("["))) * [r"\["], *parts, r"\]"]), re.IGNORECASE
        )
    longer = "".join(rf"(?!{re.escape(other[other.find(label) :])})" for other in others if label in other != label)
    starts, ends = (r"\b" if re.match(r"\w", edge) else "" for edge in (label[0], label[-1]))
    return re.compile(rf"{starts}{longer}{re.escape(label)}{ends}")


# Labels and delimiters in the texts that a prompt is filled with


def delimiters(template: str) -> Iterator[str]:
    """What tells the parts of a prompt template apart: tags, words in brackets, and the lines around its fields.

    Lines without punctuation are left out: they may be words of any answer.
    """
    for name in re.findall(r"</?([^\s<>/]+)[^<>\n]*>", template):
        yield from (f"<{name}", f"</{name}")
    yield from re.findall(r"\[+[^\[\]\n]+\]+", template)
    for literal, *_ in string.Formatter().parse(template):
        lines = list(filter(str.strip, literal.splitlines()))
        for line in lines[:1] + lines[-1:]:
            if len(bare := folded(line)) > 1 and not bare.isalnum():
                yield line


class Markers:
    """Texts that must not occur in others, nor anything that may be taken for them."""

    def __init__(self, markers: Iterable[str]) -> None:
        self._markers = sorted({folded(marker) for marker in markers})
        bare = {marker.translate(_MARKUP) for marker in self._markers}
        self._markers_without_markup = sorted(each for each in bare if len(each) > 1 and not each.isalnum())

    def broken_up(self, text: str) -> str:
        """The text with a visible `BREAK` in each marker, and otherwise as it is.

        Found are also markers in another case, of look-alike characters (full width, accents, Cyrillic), with white
        space, invisible characters, backslashes or emphasis in them, and HTML-escaped ones; in a text with the latter,
        all escapes are resolved.
        """
        plain = _unescaped(text)
        places = self._places(plain)
        if plain != text and not places:
            plain, places = text, self._places(text)
        return BREAK.join(plain[start:end] for start, end in itertools.pairwise([0, *places, len(plain)]))

    def _places(self, text: str) -> list[int]:
        """Where to put a break: behind the first character of each marker."""
        folds = {ord(character): folded(character) for character in set(text)}
        bare = {each: fold.translate(_MARKUP) for each, fold in folds.items()}
        return sorted({*_breaks(text, folds, self._markers), *_breaks(text, bare, self._markers_without_markup)})


def _breaks(text: str, folds: dict[int, str], markers: Sequence[str]) -> set[int]:
    bare = text.translate(folds)
    found = [(at, at + len(marker) - 1) for marker in markers for at in _occurrences(marker, bare)]
    if not found:
        return set()
    ends = list(itertools.accumulate(len(folds[ord(character)]) for character in text))
    spans = ((bisect_right(ends, first), bisect_right(ends, last)) for first, last in found)
    return {first + 1 for first, last in spans if first < last and _is_apart(text, first, last)}


def folded(text: str) -> str:
    """The text without differences that a reader may overlook, such as those of case, form and white space."""
    characters = unicodedata.normalize("NFKD", text).casefold().translate(_LOOK_ALIKES)
    return "".join(each for each in characters if unicodedata.category(each)[0] not in "CMZ")


def _unescaped(text: str) -> str:
    for _ in range(MAX_ESCAPES):
        text = html.unescape(text)
    return text


def _occurrences(part: str, text: str) -> Iterator[int]:
    at = text.find(part)
    while at != -1:
        yield at
        at = text.find(part, at + 1)


def _is_apart(text: str, first: int, last: int) -> bool:
    """True if the characters from `first` to `last` are not a part of a longer word."""
    edges = (text[max(first - 1, 0) : first + 1], text[last : last + 2])
    return not any(len(edge) == 2 and all(map(_is_word, edge)) for edge in edges)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
