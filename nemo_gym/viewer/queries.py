"""Queries of an index for the page: rows, statistics, groups of repeats, failures, comparison of two files, search."""

import json
import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from nemo_gym.common.paths import nearest
from nemo_gym.common.statistics import mean_interval, pass_at_k
from nemo_gym.errors import ConfigError
from nemo_gym.viewer.index import Index, Source
from nemo_gym.viewer.records import MAX_PARSED_BYTES, parse_line

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
"""Fields that are columns of the index. All others are in `details.fields`."""

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
    """Part of an SQL query: its text, and the values of its parameters."""

    text: str
    values: tuple[Any, ...] = ()


def parse_filter(text: str) -> Clause:
    """Convert a filter to an SQL condition."""
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
    """Return the fields in a valid filter that are not columns."""
    names = [match["field"] or match["quoted_field"] for match in _CONDITION.finditer(text)]
    return [name for name in dict.fromkeys(names) if name not in COLUMNS]


def column_of(name: str) -> Clause:
    """Return the SQL expression of a field."""
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
    """Read a bare word as JSON, otherwise as text."""
    literals = {"true": 1, "false": 0, "null": None}
    if word.lower() in literals:
        return literals[word.lower()]
    try:
        return int(word) if re.fullmatch(r"-?\d{1,18}", word) else float(word)
    except ValueError:
        return word


MAX_PAGE = 500
BINS = 20
POINTS = 1500
"""Maximum points of a scatter plot. Of more rows, evenly spaced ones are used."""
MAX_REWARDS = 64
TASK_SORTS = ("task", "count", "mean", "spread", "low", "high", "passed", "tokens", "seconds")
COMPARE_SORTS = ("task", "change", "size", *(f"mean{side}" for side in range(8)))

_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{12,}|\d+", re.I)
_FROM = "FROM rows JOIN details ON details.id = rows.id"
_COLUMNS = (
    *("id", "length", "outcome", "reward", "task", "repeat", "task_key", "input_tokens", "output_tokens"),
    *("turns", "tool_calls", "seconds", "attempt"),
)

Page = dict[str, Any]


def rows_page(
    connection: sqlite3.Connection, *, where: str, sort: str, offset: int, limit: int, columns: list[str]
) -> Page:
    """Return one page of the table: its rows with the requested extra fields, and the total number of rows."""
    condition, order = parse_filter(where), _order(sort)
    if where.strip():
        total = connection.execute(f"SELECT count(*) {_FROM} WHERE {condition.text}", condition.values).fetchone()[0]
    else:
        total = connection.execute("SELECT rows FROM state").fetchone()[0]
    # details only of the rows on the page, so that sorting moves no text
    ids = f"SELECT rows.id {_FROM} WHERE {condition.text} ORDER BY {order.text} LIMIT ? OFFSET ?"
    if not where.strip() and "details" not in order.text:
        ids = f"SELECT id FROM rows ORDER BY {order.text} LIMIT ? OFFSET ?"
    values = (*condition.values, *order.values, min(limit, MAX_PAGE), offset)
    found = [row for (row,) in connection.execute(ids, values)]
    hint = None if total or not where.strip() else _unknown_field(connection, fields_in(where))
    hint = hint or _unknown_field(connection, [sort.removeprefix("-") or "row"])
    return {"total": total, "rows": [_row(connection, row, columns) for row in found], "hint": hint}


def _unknown_field(connection: sqlite3.Connection, names: Iterable[str]) -> str | None:
    """Return a hint if one of the names is a field that no row has."""
    known = [name for (name,) in connection.execute("SELECT name FROM fields")]
    missing = next((name for name in names if name not in COLUMNS and name not in known), None)
    return missing and f"No row has a field '{missing}'.{nearest(missing, [*COLUMNS, *known])}"


def _row(connection: sqlite3.Connection, row: int, columns: list[str]) -> dict[str, Any]:
    names = ", ".join(f"rows.{name}" for name in _COLUMNS)
    query = f"SELECT {names}, details.prompt, details.answer, details.fields {_FROM} WHERE rows.id = ?"
    *values, fields = connection.execute(query, (row,)).fetchone()
    found = dict(zip((*_COLUMNS, "prompt", "answer"), values, strict=True))
    extra: Mapping[str, Any] = orjson.loads(fields) if columns else {}
    return found | {"fields": {name: extra.get(name) for name in columns if name in extra}}


def _order(sort: str) -> Clause:
    """Return the order of a sort key; `-reward` is descending. Rows without the value come last, ties in file
    order."""
    name, direction = (sort[1:], "DESC") if sort.startswith("-") else (sort, "ASC")
    if name in ("", "row"):
        return Clause(f"rows.id {direction}")
    column = column_of(name)
    return Clause(f"{column.text} IS NULL, {column.text} {direction}, rows.id", column.values * 2)


def neighbours(connection: sqlite3.Connection, row: int) -> Page:
    """Return the repeats of a row's task."""
    found = connection.execute("SELECT task_key FROM rows WHERE id = ?", (row,)).fetchone()
    if found is None or found[0] is None:
        return {"repeats": []}
    query = "SELECT id, repeat, reward, outcome FROM rows WHERE task_key = ? ORDER BY repeat, id LIMIT ?"
    repeats = connection.execute(query, (found[0], MAX_PAGE)).fetchall()
    return {"repeats": [dict(zip(("id", "repeat", "reward", "outcome"), each, strict=True)) for each in repeats]}


def fields(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the names of all small fields, most common first."""
    query = "SELECT name, count FROM fields ORDER BY count DESC, name LIMIT 500"
    return [{"name": name, "count": count} for name, count in connection.execute(query)]


def summary(connection: sqlite3.Connection, *, where: str, pass_threshold: float) -> Page:
    """Return the statistics of the rows that a filter selects."""
    condition = parse_filter(where)
    source, values = f"{_FROM} WHERE {condition.text}", condition.values
    if not where.strip():
        source = "FROM rows WHERE 1"
    count, scored, mean, low, high, passed = connection.execute(
        f"""SELECT count(*), count(reward), avg(reward), min(reward), max(reward), sum(reward >= ?) {source}""",
        (pass_threshold, *values),
    ).fetchone()
    outcomes = connection.execute(f"SELECT outcome, count(*) {source} GROUP BY outcome ORDER BY 2 DESC", values)
    averages = connection.execute(
        f"SELECT avg(input_tokens), avg(output_tokens), avg(turns), avg(tool_calls), avg(seconds) {source}", values
    ).fetchone()
    return {
        "rows": count,
        "scored": scored,
        "reward": {"mean": mean, "min": low, "max": high},
        "passed": passed or 0,
        "pass_threshold": pass_threshold,
        "outcomes": dict(outcomes.fetchall()),
        "means": dict(zip(("input_tokens", "output_tokens", "turns", "tool_calls", "seconds"), averages, strict=True)),
        "histogram": _histogram(connection, source, values, low, high),
        "scatter": _scatter(connection, source, values, scored),
        **_group_statistics(connection, source, values, pass_threshold),
    }


def _histogram(connection: sqlite3.Connection, source: str, values: tuple[Any, ...], low: Any, high: Any) -> Page:
    """Return how many rewards fall into each of `BINS` equal intervals."""
    if low is None:
        return {"low": 0, "high": 1, "counts": []}
    low, high = (min(low, 0.0), max(high, 1.0)) if -1 <= low <= high <= 1 else (low, high)
    width = (high - low) / BINS or 1.0
    query = (
        f"""SELECT min(CAST((reward - ?) / ? AS INTEGER), ?), count(*) {source} AND reward IS NOT NULL GROUP BY 1"""
    )
    found = dict(connection.execute(query, (low, width, BINS - 1, *values)).fetchall())
    return {"low": low, "high": high, "counts": [found.get(number, 0) for number in range(BINS)]}


def _scatter(connection: sqlite3.Connection, source: str, values: tuple[Any, ...], scored: int) -> list[list[float]]:
    step = max(1, scored // POINTS)
    query = f"""SELECT output_tokens, reward, rows.id {source} AND reward IS NOT NULL AND output_tokens IS NOT NULL
        AND rows.id % ? = 0 LIMIT ?"""
    return [list(point) for point in connection.execute(query, (*values, step, POINTS))]


def _group_statistics(connection: sqlite3.Connection, source: str, values: tuple[Any, ...], threshold: float) -> Page:
    """Return the number of tasks, of groups, and of groups without variance, and pass@k."""
    groups = connection.execute(
        f"""SELECT n, c, count(*), sum(flat) FROM (
            SELECT count(reward) AS n, sum(reward >= ?) AS c, max(reward) = min(reward) AS flat {source}
            AND reward IS NOT NULL AND task_key IS NOT NULL GROUP BY task_key) GROUP BY n, c""",
        (threshold, *values),
    ).fetchall()
    repeated = [group for group in groups if group[0] > 1]
    most = max((n for n, *_ in groups), default=0)
    ks = [1 << power for power in range(most.bit_length())]
    return {
        "tasks": sum(count for _, _, count, _ in groups),
        "groups": sum(count for _, _, count, _ in repeated),
        "groups_without_variance": sum(flat for *_, flat in repeated),
        "pass_at_k": [[k, _pass_at(k, groups)] for k in ks],
    }


def _pass_at(k: int, groups: list[tuple[int, int, int, int]]) -> float:
    known = [(pass_at_k(n, c, k), count) for n, c, count, _ in groups if n >= k]
    return sum(value * count for value, count in known) / sum(count for _, count in known)


def tasks_page(
    connection: sqlite3.Connection, *, where: str, sort: str, offset: int, limit: int, pass_threshold: float
) -> Page:
    """Return one page of groups of repeats with their spread."""
    condition = parse_filter(where)
    name = sort.removeprefix("-") or "task"
    if name not in TASK_SORTS:
        raise FilterError(f"Groups cannot be sorted by '{name[:40]}'. Expected one of: {', '.join(TASK_SORTS)}.")
    direction = "DESC" if sort.startswith("-") else "ASC"
    source = f"{_FROM} WHERE {condition.text}" if where.strip() else "FROM rows WHERE 1"
    groups = f"""SELECT task_key, min(task) AS task, min(rows.id) AS first, count(*) AS count, count(reward) AS scored,
        avg(reward) AS mean, max(0, avg(reward * reward) - avg(reward) * avg(reward)) AS spread, min(reward) AS low,
        max(reward) AS high, avg(reward >= ?) AS passed, avg(output_tokens) AS tokens, avg(seconds) AS seconds
        {source} AND task_key IS NOT NULL GROUP BY task_key"""
    values = (pass_threshold, *condition.values)
    query = f"{groups} ORDER BY {name} IS NULL, {name} {direction}, first LIMIT ? OFFSET ?"
    cursor = connection.execute(query, (*values, min(limit, MAX_PAGE), offset))
    names = [column[0] for column in cursor.description]
    found = [_group(connection, dict(zip(names, group, strict=True))) for group in cursor.fetchall()]
    total = connection.execute(
        f"SELECT count(DISTINCT task_key) {source} AND task_key IS NOT NULL", condition.values
    ).fetchone()[0]
    return {"total": total, "groups": found}


def _group(connection: sqlite3.Connection, group: dict[str, Any]) -> dict[str, Any]:
    prompt = connection.execute("SELECT prompt FROM details WHERE id = ?", (group["first"],)).fetchone()[0]
    query = "SELECT id, reward, outcome FROM rows WHERE task_key = ? ORDER BY repeat, id LIMIT ?"
    repeats = connection.execute(query, (group["task_key"], MAX_REWARDS)).fetchall()
    flat = group["scored"] > 1 and group["low"] == group["high"]
    spread = None if group["spread"] is None else math.sqrt(group["spread"])
    return {**group, "spread": 0.0 if flat else spread, "no_variance": flat, "prompt": prompt, "repeats": repeats}


def failures(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return failed attempts by cause, code, server and message, each with an example row. Messages that differ
    only in numbers are grouped."""
    connection.create_function("kind", 1, lambda text: _VARYING.sub("#", text or ""), deterministic=True)
    query = """SELECT outcome, json_extract(fields, '$.code'), json_extract(fields, '$.server'), count(*),
        sum(json_extract(fields, '$.is_final') = 1), min(rows.id), answer
        FROM rows JOIN details ON details.id = rows.id WHERE outcome NOT IN ('scored', 'row', 'no reward')
        GROUP BY 1, 2, 3, kind(answer) ORDER BY 4 DESC LIMIT 200"""
    names = ("cause", "code", "server", "count", "final", "row", "message")
    return [dict(zip(names, found, strict=True)) for found in connection.execute(query)]


def has_rows_without_task(connection: sqlite3.Connection) -> bool:
    """True if some row has no task index, as in files of the public NeMo Gym."""
    return connection.execute("SELECT 1 FROM rows WHERE task IS NULL LIMIT 1").fetchone() is not None


def compare_page(
    connection: sqlite3.Connection, others: Sequence[str], *, sort: str, offset: int, limit: int, by_prompt: bool
) -> Page:
    """Compare a file with others task by task: the mean reward of each task in all of them, and for each other file
    the change against the first."""
    name = sort.removeprefix("-") or "size"
    if name not in COMPARE_SORTS:
        raise FilterError(f"Tasks cannot be sorted by '{name[:40]}'. Expected one of: {', '.join(COMPARE_SORTS)}.")
    for number, other in enumerate(others, 1):
        connection.execute(f"ATTACH DATABASE ? AS side{number}", (other,))
    key = "prompt_key" if by_prompt else "task_key"
    joined = _tasks_of_all(len(others) + 1, key)
    statistics = [_change_statistics(connection, joined, side) for side in range(len(others) + 1)]
    direction = "DESC" if sort.startswith("-") or not sort else "ASC"
    cursor = connection.execute(
        f"SELECT * FROM ({joined}) ORDER BY {name} {direction}, row0 LIMIT ? OFFSET ?", (min(limit, MAX_PAGE), offset)
    )
    names = [column[0] for column in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    tasks = [_compared_task(connection, task, len(others) + 1, by_prompt=by_prompt) for task in found]
    return {"total": statistics[0]["total"], "sides": statistics, "tasks": tasks}


def _tasks_of_all(sides: int, key: str) -> str:
    """Return the SQL of the tasks that all files have, with their statistics in each."""
    by_task = f"""(SELECT {key} AS key, min(task) AS task, min(id) AS row, count(reward) AS count, avg(reward) AS mean
        FROM {{}}.rows WHERE reward IS NOT NULL AND {key} IS NOT NULL GROUP BY {key}) AS s{{}}"""
    schemas = ["main", *(f"side{number}" for number in range(1, sides))]
    tables = [by_task.format(schema, number) for number, schema in enumerate(schemas)]
    joins = [f"JOIN {table} ON s{number}.key = s0.key" for number, table in enumerate(tables) if number]
    values = ", ".join(
        f"s{number}.row AS row{number}, s{number}.count AS count{number}, s{number}.mean AS mean{number}"
        for number in range(sides)
    )
    means = ", ".join(f"s{number}.mean" for number in range(sides))
    numbers = ", ".join(f"s{number}.task" for number in range(sides))
    last = sides - 1
    return f"""SELECT s0.key AS key, coalesce({numbers}) AS task, {values}, s{last}.mean - s0.mean AS change,
        max({means}) - min({means}) AS size FROM {tables[0]} {" ".join(joins)}"""


def _compared_task(connection: sqlite3.Connection, task: Page, sides: int, *, by_prompt: bool) -> Page:
    query = "SELECT prompt FROM details WHERE id = ?"
    prompt = connection.execute(query, (task["row0"],)).fetchone()[0]
    shown = [{name: task[f"{name}{side}"] for name in ("row", "count", "mean")} for side in range(sides)]
    if not by_prompt and task["size"]:
        for side, each in enumerate(shown):
            each["row"] = _row_of_change(connection, task["key"], side, shown) or each["row"]
    return {**{name: task[name] for name in ("task", "change", "size")}, "prompt": prompt, "sides": shown}


def _row_of_change(connection: sqlite3.Connection, key: int, side: int, shown: list[Page]) -> int | None:
    """Return the rollout that shows how a task differs: the worst of the worst file, the best of the best one."""
    means = [each["mean"] for each in shown]
    if means[side] not in (min(means), max(means)):
        return None
    order = "ASC" if means[side] == min(means) else "DESC"
    schema = f"side{side}" if side else "main"
    query = (
        f"SELECT id FROM {schema}.rows WHERE task_key = ? AND reward IS NOT NULL ORDER BY reward {order}, id LIMIT 1"
    )
    row: int = connection.execute(query, (key,)).fetchone()[0]
    return row


def _change_statistics(connection: sqlite3.Connection, joined: str, side: int) -> Page:
    """Return the mean of a file, and its paired change against the first."""
    count, up, down, mean, change, squares = connection.execute(
        f"""SELECT count(*), sum(diff > 1e-9), sum(diff < -1e-9), avg(mean{side}), avg(diff), avg(diff * diff)
        FROM (SELECT mean{side}, mean{side} - mean0 AS diff FROM ({joined}))"""
    ).fetchone()
    error = math.sqrt(max(0.0, squares - change * change) / (count - 1)) if count and count > 1 else 0.0
    is_known = error > 1e-12  # unknown if all tasks differ equally
    return {
        "total": count,
        "up": up or 0,
        "down": down or 0,
        "mean": mean,
        "change": change,
        "interval_95": list(mean_interval(change, error, count)) if is_known else None,
    }


CHUNK = 1 << 22
SNIPPET = 80
MAX_HITS = 1000
PROGRESS_BYTES = 1 << 28
WAIT_S = 0.2
_CONSTANTS = frozenset(("type", "object", "status", "role"))
"""Fields whose values belong to the format, not to a message."""


class Hit(NamedTuple):
    """A row that contains the text."""

    row: int
    path: str
    before: str
    match: str
    after: str
    values: int
    """Number of values of the row that contain it."""


class Span(NamedTuple):
    """The part of a file to search, and the chunk size."""

    start: int
    end: int
    chunk_bytes: int


class Progress(NamedTuple):
    """Progress of a search."""

    searched_bytes: int
    total_bytes: int | None
    hits: int
    is_done: bool


def search(
    index: Index, text: str, *, is_cancelled: Callable[[], bool], chunk_bytes: int = CHUNK
) -> Iterator[Hit | Progress]:
    """Yield hits as they are found, with progress between them. Waits for an index that is being built."""
    needles, position, reported, hits = spellings(text), 0, 0, 0
    while not is_cancelled() and hits < MAX_HITS:
        span = Span(position, index.indexed_bytes, chunk_bytes)
        for start, end in _candidates(index.source, needles, span, is_cancelled):
            position = end
            hit = None if start is None else _hit_in(index, start, position - start, text)
            if hit is not None:
                hits += 1
                yield hit
            if hit is not None or position - reported >= PROGRESS_BYTES:
                reported = position
                yield Progress(position, index.source.total(), hits, False)
            if hits >= MAX_HITS:
                break
        if position >= index.indexed_bytes:
            if index.is_complete:
                break
            yield Progress(position, index.source.total(), hits, False)
            index.wait_for(index.rows + 1, timeout_s=WAIT_S)
    yield Progress(position, index.source.total(), hits, True)


def spellings(text: str) -> list[bytes]:
    """Return the possible spellings of a text in a JSON string, in lower case."""
    forms = (json.dumps(text, ensure_ascii=escaped)[1:-1] for escaped in (False, True))
    lowered = (form.encode(errors="replace").lower() for form in forms)
    return list(dict.fromkeys(lowered))


def _candidates(
    source: Source, needles: list[bytes], span: Span, is_cancelled: Callable[[], bool]
) -> Iterator[tuple[int | None, int]]:
    """Yield the start and end of each line that contains a spelling, and (None, position) after each chunk."""
    overlap, position, end = max(map(len, needles)) - 1, span.start, span.end
    while position < end and not is_cancelled():
        chunk = source.read(position, min(span.chunk_bytes + overlap, end - position)).lower()
        if not chunk:
            return
        searched = 0
        for at in _matches(chunk, needles):
            if at < searched:
                continue
            start = position + chunk.rfind(b"\n", 0, at) + 1
            start = start if start > position else _line_start(source, position)
            searched = chunk.find(b"\n", at) + 1 or _line_end(source, position + len(chunk), end) - position
            yield start, position + searched
        is_last = position + len(chunk) >= end
        position = max(position + searched, end if is_last else position + len(chunk) - overlap)
        yield None, position


def _matches(chunk: bytes, needles: list[bytes]) -> Iterator[int]:
    """Yield the positions of the needles in order."""
    following = {needle: chunk.find(needle) for needle in needles}
    while found := {needle: at for needle, at in following.items() if at >= 0}:
        needle, at = min(found.items(), key=lambda item: item[1])
        yield at
        following[needle] = chunk.find(needle, at + 1)


def _line_start(source: Source, offset: int) -> int:
    while offset > 0:
        size = min(65536, offset)
        newline = source.read(offset - size, size).rfind(b"\n")
        if newline >= 0:
            return offset - size + newline + 1
        offset -= size
    return 0


def _line_end(source: Source, offset: int, end: int) -> int:
    while offset < end:
        chunk = source.read(offset, 65536)
        newline = chunk.find(b"\n")
        if newline >= 0 or not chunk:
            return offset + newline + 1 if chunk else end
        offset += len(chunk)
    return end


def _hit_in(index: Index, offset: int, length: int, text: str) -> Hit | None:
    """Return the hit in a line, if one of its values contains the text."""
    if length > MAX_PARSED_BYTES:
        return _whole_line_hit(index, offset, text, f" in a line of {length:,} bytes")
    try:
        record = parse_line(index.source.read(offset, length))
    except ValueError:
        return _whole_line_hit(index, offset, text, " in a line that is not JSON")
    found = [
        (path, value, at)
        for path, value in _strings(record)
        if (at := value.lower().find(text.lower())) >= 0 and path.rpartition(".")[2] not in _CONSTANTS
    ]
    row = row_at(index, offset) if found else None
    if row is None:
        return None
    path, value, at = found[0]
    after = at + len(text)
    return Hit(
        row, path, value[max(0, at - SNIPPET) : at], value[at:after], value[after : after + SNIPPET], len(found)
    )


def _whole_line_hit(index: Index, offset: int, text: str, where: str) -> Hit | None:
    row = row_at(index, offset)
    return None if row is None else Hit(row, "", "", text, where, 1)


def row_at(index: Index, offset: int) -> int | None:
    """Return the number of the row at an offset, by binary search."""
    low, high = 0, index.rows - 1
    with index.reading() as connection:
        while low <= high:
            middle = (low + high) // 2
            (found,) = connection.execute("SELECT offset FROM rows WHERE id = ?", (middle,)).fetchone()
            if found == offset:
                return middle
            low, high = (middle + 1, high) if found < offset else (low, middle - 1)
    return None


def _strings(value: Any) -> Iterator[tuple[str, str]]:
    """Yield every string in a value with its path. Not recursive, since a record may be nested deeply."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            yield path, item
        elif isinstance(item, dict):
            stack.extend((f"{path}.{name}" if path else str(name), each) for name, each in reversed(item.items()))
        elif isinstance(item, list):
            stack.extend((f"{path}[{number}]", each) for number, each in reversed(list(enumerate(item))))
