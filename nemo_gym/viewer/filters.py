"""The filter language of the table: `reward < 1 and response.usage.total_tokens > 500 and model ~ qwen`.

A condition is a field, an operator and a value; conditions are joined by `and` and `or`, of which `and` binds more
tightly. Values are only ever parameters of a query, never part of its text."""

import re
from typing import Any, NamedTuple

from nemo_gym.common.paths import nearest
from nemo_gym.errors import ConfigError

COLUMNS = {
    "row": "rows.id",
    "bytes": "rows.length",
    "prompt": "details.prompt",
    "answer": "details.answer",
    "_task_index": "rows.task",
    "_repeat_index": "rows.repeat",
    "_seconds": "rows.seconds",
    "_attempts": "rows.attempt",
    **{
        name: f"rows.{name}"
        for name in (
            *("outcome", "reward", "task", "repeat", "task_key", "input_tokens", "output_tokens", "turns"),
            *("tool_calls", "seconds", "attempt"),
        )
    },
}
"""The fields with a column of their own. All others are in `details.fields`."""

MAX_CONDITIONS = 20
MAX_TEXT = 2000
_OPERATORS = {"=": "=", "==": "=", "!=": "IS NOT", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CONDITION = re.compile(
    r"""\s*(?:(?P<field>[\w.$@/\[\]-]+)|`(?P<quoted_field>[^`"]+)`)
    (?:\s+(?P<test>exists|missing)\b|\s*(?P<operator>==|!=|<=|>=|=|<|>|!~|~)\s*
    (?:"(?P<text>[^"]*)"|'(?P<text2>[^']*)'|(?P<word>[^\s"']+)))\s*(?P<joint>and\b|or\b|&&|\|\||$)?""",
    re.VERBOSE | re.IGNORECASE,
)


class FilterError(ConfigError):
    """A filter or a sort key cannot be read."""


class Clause(NamedTuple):
    """Part of a query: its text, and the values of its parameters."""

    text: str
    values: tuple[Any, ...] = ()


def parse_filter(text: str) -> Clause:
    """The condition of a query that selects the rows which the filter describes."""
    if len(text) > MAX_TEXT:
        raise FilterError(f"The filter has {len(text)} characters; expected at most {MAX_TEXT}.")
    position, found = 0, 0
    alternatives: list[list[Clause]] = [[]]
    while text[position:].strip():
        match = _CONDITION.match(text, position)
        if match is None or (match["joint"] is None and text[match.end() :].strip()):
            rest = text[match.end() if match else position :].strip()
            raise FilterError(
                f"Cannot read the filter at '{rest[:40]}'. Expected a condition such as reward < 1, or several "
                "joined by 'and' and 'or'."
            )
        alternatives[-1].append(_condition(match))
        if (match["joint"] or "").lower() in ("or", "||"):
            alternatives.append([])
        position, found = match.end(), found + 1
        if found > MAX_CONDITIONS:
            raise FilterError(f"The filter has more than {MAX_CONDITIONS} conditions.")
    if not found:
        return Clause("1")
    if not alternatives[-1]:
        raise FilterError("The filter ends with 'or'. Expected one more condition.")
    texts = [" AND ".join(clause.text for clause in each) for each in alternatives]
    values = tuple(value for each in alternatives for clause in each for value in clause.values)
    return Clause(f"({' OR '.join(f'({text})' for text in texts)})", values)


def fields_in(text: str) -> list[str]:
    """The fields that a valid filter names, without those that have a column of their own."""
    names = [match["field"] or match["quoted_field"] for match in _CONDITION.finditer(text)]
    return [name for name in dict.fromkeys(names) if name not in COLUMNS]


def column_of(name: str) -> Clause:
    """The value of a field in a query."""
    if name in COLUMNS:
        return Clause(COLUMNS[name])
    if '"' in name:
        raise FilterError(f"There is no field '{name[:40]}'.{nearest(name, COLUMNS)}")
    return Clause("json_extract(details.fields, ?)", (f'$."{name}"',))


def _condition(match: "re.Match[str]") -> Clause:
    column = column_of(match["field"] or match["quoted_field"])
    if match["test"]:
        return Clause(f"{column.text} IS {'NOT ' if match['test'].lower() == 'exists' else ''}NULL", column.values)
    quoted = match["text"] if match["text"] is not None else match["text2"]
    text = match["word"] if quoted is None else quoted
    operator = match["operator"]
    if operator in ("~", "!~"):
        test = "=" if operator == "!~" else ">"
        return Clause(f"instr(lower(ifnull({column.text}, '')), ?) {test} 0", (*column.values, text.lower()))
    value = text if quoted is not None else _value(text)
    if value is None:
        return Clause(f"{column.text} IS {'NOT ' if operator == '!=' else ''}NULL", column.values)
    return Clause(f"{column.text} {_OPERATORS[operator]} ?", (*column.values, value))


def _value(word: str) -> Any:
    """A bare word as JSON would read it, otherwise as text."""
    literals = {"true": 1, "false": 0, "null": None}
    if word.lower() in literals:
        return literals[word.lower()]
    try:
        return int(word) if re.fullmatch(r"-?\d{1,18}", word) else float(word)
    except ValueError:
        return word
