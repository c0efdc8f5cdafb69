"""What one part of a file says about its rows. Runs in a worker; only the figures travel back."""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

import orjson

from nemo_gym.data.digests import digest, packed
from nemo_gym.data.lines import lines_of
from nemo_gym.data.names import SAMPLING_PARAMETERS, TEMPERATURE, TOKENS, TOOLS, TURNS, WORDS
from nemo_gym.data.near_duplicates import sketch
from nemo_gym.data.numbers import AvgMinMax
from nemo_gym.data.row_check import AGENT_REF_KEY, BadRowError, EnvironmentCode, RowCheck
from nemo_gym.data.tokens import token_counter
from nemo_gym.llm_api.base import JsonObject

MAX_FIELDS = 1000
"""How many fields of rows have statistics. A file whose keys are data would otherwise have as many as rows."""
OFFSET_BYTES = 8

_NOT_FIELDS = frozenset(("response", AGENT_REF_KEY))
_MEASURED = {"tools": TOOLS, "temperature": TEMPERATURE, **SAMPLING_PARAMETERS}
_SPACES = re.compile(rb" +")


class ChunkTask(NamedTuple):
    """A part of a file, and what to find out about it."""

    path: str
    start: int
    end: int
    max_row_bytes: int
    count_tokens: bool = False
    find_near_duplicates: bool = False
    environment: EnvironmentCode | None = None


Packed = dict[int, bytes]


@dataclass(slots=True)
class ChunkFigures:
    """What was found, in a form that can be merged."""

    rows: int = 0
    """Lines that are not blank, bad ones included."""
    bad: dict[str, list[int]] = field(default_factory=dict)
    """The places of bad rows in this part, counted from 0, by reason."""
    is_plain: bool = True
    """Every line is one row without anything around it, and has no agent yet."""
    numbers: dict[str, AvgMinMax] = field(default_factory=dict)
    """By the name of a built-in statistic."""
    field_numbers: dict[str, AvgMinMax] = field(default_factory=dict)
    field_texts: dict[str, int] = field(default_factory=dict)
    """How many texts each field has."""
    field_digests: dict[str, Packed] = field(default_factory=dict)
    params: Packed = field(default_factory=dict)
    """The digest of each row's parameters, and where in the file the row starts."""
    user_messages: Packed = field(default_factory=dict)
    near: Packed = field(default_factory=dict)
    """What nearly equal prompts have in common, and where in the file the row starts."""


def examine(task: ChunkTask) -> ChunkFigures:
    """Check and measure every row of a part."""
    observer = _Observer(task)
    with open(task.path, "rb") as file:
        for start, line in lines_of(file, task.start, task.end, max_row_bytes=task.max_row_bytes):
            observer.observe(start, line)
    return observer.figures()


class _Observer:
    """Collects the figures of one part."""

    def __init__(self, task: ChunkTask) -> None:
        self._task, self._found = task, ChunkFigures()
        self._read = RowCheck(task.environment).read
        self._count_tokens: Callable[[JsonObject], int] | None = token_counter() if task.count_tokens else None
        self._numbers: dict[str, list[float]] = defaultdict(list)
        self._field_numbers: dict[str, list[float]] = {}
        self._field_texts: dict[str, list[str]] = {}
        self._words, self._turns = self._numbers[WORDS], self._numbers[TURNS]
        self._params: list[bytes] = []
        self._user_messages: list[bytes] = []
        self._near: list[bytes] = []

    def observe(self, start: int, line: bytes | None) -> None:
        if line is None:
            self._refuse(f"longer than {self._task.max_row_bytes} bytes")
            return
        if not line.endswith(b"}"):
            if not line:
                return
            self._found.is_plain = False
            line = line.strip()
            if not line:
                return
        try:
            fields, params, compact, separators = self._read(line)
        except BadRowError as error:
            self._refuse(str(error))
            return
        self._found.rows += 1
        self._words.append(1 + separators + _space_runs(compact))
        self._observe_params(params, compact, start.to_bytes(OFFSET_BYTES, "big"))
        for name, value in fields.items():
            if name in _NOT_FIELDS:
                self._found.is_plain = self._found.is_plain and name != AGENT_REF_KEY
            elif type(value) is str and (texts := self._field_texts.get(name)) is not None:
                texts.append(value)
            else:
                self._observe_field(name, value)

    def _refuse(self, reason: str) -> None:
        self._found.bad.setdefault(reason, []).append(self._found.rows)
        self._found.rows += 1
        self._found.is_plain = False

    def _observe_params(self, params: JsonObject, compact: bytes, place: bytes) -> None:
        self._params.append(digest(compact) + place)
        messages = user_messages(params["input"])
        if messages:
            self._turns.append(len(messages))
            self._user_messages += map(digest, messages)
        if self._count_tokens is not None:
            self._numbers[TOKENS].append(self._count_tokens(params))
        if self._task.find_near_duplicates:
            self._near += [key + place for key in sketch(b"\n".join(messages))]
        for name, value in params.items():
            if name in _MEASURED and value is not None:
                number = len(value) if name == "tools" else value if type(value) is float else float(value)
                if isfinite(number):
                    self._numbers[_MEASURED[name]].append(number)

    def _observe_field(self, name: str, value: Any) -> None:
        kind = type(value)
        if kind is str:
            self._texts_of(name).append(value)
        elif kind is int or kind is float or kind is bool:
            if isfinite(value):
                self._numbers_of(name).append(value)
        elif kind is list:
            for element in value:
                if type(element) is not list:
                    self._observe_field(name, element)

    def _texts_of(self, name: str) -> list[str]:
        found = self._field_texts.get(name)
        return self._new_list(self._field_texts, name) if found is None else found

    def _numbers_of(self, name: str) -> list[float]:
        found = self._field_numbers.get(name)
        return self._new_list(self._field_numbers, name) if found is None else found

    def _new_list(self, fields: dict[str, list[Any]], name: str) -> list[Any]:
        return fields.setdefault(name, []) if len(fields) < MAX_FIELDS else []

    def figures(self) -> ChunkFigures:
        found = self._found
        found.numbers = {name: AvgMinMax.of(values) for name, values in self._numbers.items() if values}
        found.field_numbers = {name: AvgMinMax.of(values) for name, values in self._field_numbers.items()}
        found.field_texts = {name: len(texts) for name, texts in self._field_texts.items()}
        found.field_digests = {
            name: packed([digest(text.encode()) for text in set(texts)]) for name, texts in self._field_texts.items()
        }
        found.params, found.near = packed(self._params), packed(self._near)
        found.user_messages = packed(self._user_messages)
        return found


def user_messages(asked: Any) -> list[bytes]:
    """The messages of the user in the `input` of a row, as text."""
    if type(asked) is str:
        return [asked.encode()]
    contents = [item.get("content") for item in asked if item.get("role") == "user"]
    return [content.encode() if type(content) is str else orjson.dumps(content) for content in contents]


def _space_runs(compact: bytes) -> int:
    """How many runs of spaces there are in JSON that has none outside of texts."""
    if compact.rfind(b"  ") < 0:
        return compact.count(b" ")
    return len(_SPACES.findall(compact))
