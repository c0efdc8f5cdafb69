"""Rollouts as HTML for notebooks. What models and tools said is hostile: every text is escaped; there is no script."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import NamedTuple

from nemo_gym.common.words import shorten

MAX_ROWS = 50
MAX_CELL, MAX_TEXT = 160, 20_000
"""Longest text of a cell, and of one turn of a conversation."""

_LINE_BREAK = "\n"
_CELL = "padding:4px 10px;text-align:left;vertical-align:top;border-bottom:1px solid #8884"
_WHO = "min-width:6em;opacity:.65;padding:4px 10px;text-align:right;vertical-align:top"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;text-align:left;padding:4px 10px"


class TableRow(NamedTuple):
    """A rollout in the table of an evaluation."""

    task: int
    reward: float
    prompt: str
    answer: str
    turns: Sequence[tuple[str, str]]


def conversation_html(turns: Iterable[tuple[str, str]], reward: float) -> str:
    """A conversation with its reward."""
    lines = [*turns, ("reward", f"{reward:g}")]
    rows = "".join(
        f'<tr><td style="{_WHO}">{_shown(who, MAX_CELL)}</td><td style="{_TEXT}">{_shown(text, MAX_TEXT)}</td></tr>'
        for who, text in lines
    )
    return f'<table style="border-collapse:collapse">{rows}</table>'


def result_html(title: str, rollouts: Iterable[TableRow], count: int, failures: Sequence[str]) -> str:
    """The first of `count` rollouts as a table, each with its conversation to unfold."""
    header = "".join(f'<th style="{_CELL}">{name}</th>' for name in ("task", "reward", "prompt", "answer"))
    rows = "".join(map(_row, islice(rollouts, MAX_ROWS)))
    more = f"<p>and {count - MAX_ROWS} more</p>" if count > MAX_ROWS else ""
    failed = f'<pre style="white-space:pre-wrap">{escape(_LINE_BREAK.join(failures))}</pre>' if failures else ""
    table = f'<table style="border-collapse:collapse"><tr>{header}</tr>{rows}</table>'
    return f"<div><p><b>{escape(title)}</b></p>{failed}{table}{more}</div>"


def _row(row: TableRow) -> str:
    inside = conversation_html(row.turns, row.reward)
    answer = f"<details><summary>{_shown(row.answer, MAX_CELL)}</summary>{inside}</details>"
    cells = (str(row.task), f"{row.reward:g}", _shown(row.prompt, MAX_CELL), answer)
    inner = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
    return f"<tr>{inner}</tr>"


def _shown(text: str, length: int) -> str:
    return escape(shorten(text, length))
