"""The viewer in the terminal: metrics of a file, its rows, a search, or one conversation."""

import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson

from nemo_gym.common.redaction import one_line, printable
from nemo_gym.common.words import count_of, shorten
from nemo_gym.viewer import queries
from nemo_gym.viewer.display import RecordView, read_row
from nemo_gym.viewer.files import Files, files_for_text
from nemo_gym.viewer.queries import Hit, search
from nemo_gym.viewer.records import failed_row, output_items, parse_line, participants_of
from nemo_gym.viewer.server import ViewerConfig

WIDTH = 100
"""Width of the table outside of a terminal."""
BAR = 40
INDEX_TIMEOUT_S = 7 * 86400.0
MAX_VALUE = 20_000
_ENDS = ("turns", "ended_by")
_COLUMNS = {
    "row": "id",
    "outcome": "outcome",
    "reward": "reward",
    "task": "task",
    "repeat": "repeat",
    "tokens": "output_tokens",
    "turns": "turns",
    "seconds": "seconds",
}


def text_report(config: ViewerConfig) -> Iterator[str]:
    """Yield the lines that `--text` prints, without control characters."""
    with Files(files_for_text(config.jsonl_fpath)) as files:
        for key in files.keys:
            index = files.index(key)
            if config.row is not None:
                index.wait_for(config.row + 1, timeout_s=INDEX_TIMEOUT_S)
                yield from map(printable, _row(read_row(index, config.row)))
                continue
            index.wait_for(2**62, timeout_s=INDEX_TIMEOUT_S)
            yield one_line(f"{index.path}: {count_of(index.rows, 'row')}")
            progress = index.progress()
            yield from (one_line(said) for said in (progress["error"], progress["note"]) if said)
            if not index.rows:
                continue
            if config.search is not None:
                yield from _hits(files, key, config)
            else:
                yield from _statistics(files, key, config)
                yield from _rows(files, key, config)


def _statistics(files: Files, key: str, config: ViewerConfig) -> Iterator[str]:
    summary = partial(queries.summary, where=config.where, pass_threshold=config.pass_threshold)
    found = files.query(key, summary)
    if found["outcomes"]:
        yield "outcomes: " + ", ".join(f"{name} {count:,}" for name, count in found["outcomes"].items())
    if not found["scored"]:
        return
    yield (
        f"mean reward {found['reward']['mean']:.4g}, pass rate {found['passed'] / found['scored']:.1%} "
        f"(reward >= {found['pass_threshold']:g}), {count_of(found['tasks'], 'task')}"
    )
    if found["groups"]:
        groups = count_of(found["groups"], "group")
        yield f"{found['groups_without_variance']:,} of {groups} of repeats without variance"
    yield "pass@k: " + ", ".join(f"{k}: {value:.4g}" for k, value in found["pass_at_k"])
    yield from _histogram(found["histogram"])


def _histogram(histogram: dict[str, Any]) -> Iterator[str]:
    counts, low = histogram["counts"], histogram["low"]
    width = (histogram["high"] - low) / max(1, len(counts))
    for number, count in enumerate(counts):
        if count:
            bar = "█" * max(1, round(BAR * count / max(counts)))
            yield f"{low + number * width:>9.3g} .. {low + (number + 1) * width:<9.3g} {bar} {count:,}"


def _rows(files: Files, key: str, config: ViewerConfig) -> Iterator[str]:
    page = partial(queries.rows_page, where=config.where, sort=config.sort, offset=0, limit=config.limit, columns=[])
    found = files.query(key, page)
    if found["hint"]:
        yield one_line(found["hint"])
    yield from map(one_line, _table(found["rows"]))
    if found["total"] > len(found["rows"]):
        yield f"... {count_of(found['total'] - len(found['rows']), 'more row')} (--limit, --where, --sort)"


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of the columns that have values, and as much of the prompt as fits."""
    used = {title: name for title, name in _COLUMNS.items() if any(row[name] is not None for row in rows)}
    cells = [[_shown(row[name]) for name in used.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(list(used), *cells, strict=True)]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    prompt_width = max(20, columns - sum(widths) - 2 * len(widths))
    for line, prompt in zip([list(used), *cells], ["prompt", *(row["prompt"] for row in rows)], strict=True):
        placed = (f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        yield "  ".join([*placed, shorten(prompt, prompt_width)]) if rows else "no rows"


def _hits(files: Files, key: str, config: ViewerConfig) -> Iterator[str]:
    found = search(files.index(key), config.search or "", is_cancelled=lambda: False)
    hits = (event for event in found if isinstance(event, Hit))
    for hit in itertools.islice(hits, config.limit):
        yield one_line(f"row {hit.row}  {hit.path}: {hit.before[-40:]}[{hit.match}]{hit.after[:40]}")


def _row(line: bytes) -> Iterator[str]:
    try:
        record = parse_line(line)
    except ValueError as error:
        yield f"The line is not JSON: {error}"
        yield line[:MAX_VALUE].decode(errors="replace").rstrip()
        return
    yield from _conversation(record)


def _conversation(record: Any) -> Iterator[str]:
    """Yield a record as text: its messages, those of other participants, then its other fields."""
    if not isinstance(record, dict):
        yield str(record)
        return
    yield from _items(failed_row(record) or record, record)
    for name, other in participants_of(record).items():
        yield f"════ the conversation of {name} ════\n"
        yield from _items(other, other)
    ends = record.get("response")
    if isinstance(ends, dict):
        yield from (f"response.{name}: {_text(ends[name])}" for name in _ENDS if ends.get(name) is not None)
    left = {
        name: value for name, value in record.items() if name not in ("responses_create_params", "response", "row")
    }
    for name, value in left.items():
        yield f"{name}: {_text(value)[:2000]}"


def _items(row: dict[str, Any], record: dict[str, Any]) -> Iterator[str]:
    """Yield the prompt of a row or of a participant, and the output items."""
    params = row.get("responses_create_params")
    given = params.get("input") if isinstance(params, dict) else row.get("messages")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
    for item in [*items, *output_items(record)]:
        yield from _item(item if isinstance(item, dict) else {"content": item})


def _item(item: dict[str, Any]) -> Iterator[str]:
    kind = item.get("type", "message")
    if kind == "function_call":
        yield f"── tool call {item.get('name')}{_thread(item)} ──"
        yield _indented(_text(item.get("arguments")))
    elif kind == "function_call_output":
        yield f"── result{_thread(item)} ──"
        yield _indented(_text(item.get("output")))
    elif kind == "reasoning":
        yield "── reasoning ──"
        yield _indented(_text(item.get("summary") or item.get("content")))
    else:
        source = f", by {item['produced_by']}" if item.get("produced_by") else ""
        yield f"── {item.get('role', kind)}{source}{_thread(item)} ──"
        yield _indented(_text(item.get("content")))
    yield ""


def _thread(item: dict[str, Any]) -> str:
    return f", thread {item['thread']}" if item.get("thread") else ""


def _text(value: Any) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, list) and value and all(isinstance(part, dict) and "text" in part for part in value):
        text = "\n".join(str(part["text"]) for part in value)
    else:
        text = orjson.dumps(RecordView().view(value), option=orjson.OPT_INDENT_2).decode()
    rest = len(text) - MAX_VALUE
    return text if rest <= 0 else f"{text[:MAX_VALUE]} ... {rest:,} more characters"


def _indented(text: str) -> str:
    return textwrap.indent(text, "  ")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
