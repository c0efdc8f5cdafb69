"""The tables of an office, and when two offices are equal.

A table never changes: each change makes a new one that shares all other rows. So a session costs a few references, and
comparing two offices looks only at rows that one of them changed. Rows carry labels, as in a pandas data frame: labels
count when tables are compared, and deleting, appending and updating treat them as pandas does."""

import copy
import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from nemo_gym.errors import ConfigError

Row = dict[str, Any]

CASE_SENSITIVE = frozenset(("status", "list_name", "board"))
"""Columns whose cells are compared as they are; all others ignore case."""

COMPARED = ("mails", "events", "plots", "tasks", "customers")

DIRECTORY_FILE = "raw/email_addresses.csv"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in order, each with a label. No row is ever changed in place."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    labels: tuple[int, ...] = ()

    @classmethod
    def numbered(cls, columns: Sequence[str], rows: Iterable[Row]) -> Self:
        """A table as it is loaded: labels from 0."""
        kept = tuple(rows)
        return cls(tuple(columns), kept, tuple(range(len(kept))))

    @property
    def id_column(self) -> str:
        return self.columns[0]

    def find(self, row_id: Any) -> Row | None:
        """The first row with this id."""
        column = self.id_column
        return next((row for row in self.rows if row[column] == row_id), None)

    def next_id(self) -> int:
        """The largest id, compared as text, plus one."""
        return int(max(row[self.id_column] for row in self.rows)) + 1

    def appended(self, row: Row) -> Self:
        """With one more row; all rows are labelled anew."""
        rows = (*self.rows, row)
        return replace(self, rows=rows, labels=tuple(range(len(rows))))

    def appended_as_label_zero(self, row: Row) -> Self:
        """With one more row, labelled 0; the others keep their labels."""
        return replace(self, rows=(*self.rows, row), labels=(*self.labels, 0))

    def without(self, row_id: Any) -> Self:
        """Without the rows with this id; the others keep their labels."""
        kept = [place for place, row in enumerate(self.rows) if row[self.id_column] != row_id]
        return replace(
            self,
            rows=tuple(self.rows[place] for place in kept),
            labels=tuple(self.labels[place] for place in kept),
        )

    def updated(self, row_id: Any, column: str, value: Any) -> Self:
        """With another value in a column of the rows with this id."""
        rows = tuple({**row, column: value} if row[self.id_column] == row_id else row for row in self.rows)
        return replace(self, rows=rows)


@dataclass(slots=True)
class Office:
    """All that the tools read and write."""

    mails: Table
    events: Table
    visits: Table
    tasks: Table
    customers: Table
    directory: tuple[str, ...]
    plots: Table = field(default_factory=lambda: Table(("file_path",)))

    def fork(self) -> "Office":
        """An office of its own with the same tables."""
        return copy.copy(self)


def equal_offices(one: Office, other: Office) -> bool:
    """True if all tables that count are equal."""
    return all(equal_tables(getattr(one, name), getattr(other, name)) for name in COMPARED)


MAX_CHANGES, MAX_CELL = 50, 2000


def changes(before: Office, after: Office) -> dict[str, dict[str, Row | None]]:
    """The rows that differ in each table, by their id, as they are afterwards: None for those that are gone. Of very
    many only the first."""
    found = {name: _changed_rows(getattr(before, name), getattr(after, name)) for name in COMPARED}
    return {name: rows for name, rows in found.items() if rows}


def _changed_rows(before: Table, after: Table) -> dict[str, Row | None]:
    if before is after:
        return {}
    known = {id(row) for row in before.rows}
    kept = {str(row[after.id_column]) for row in after.rows}
    gone = [str(row[before.id_column]) for row in before.rows if str(row[before.id_column]) not in kept]
    changed = [(_cell(row[after.id_column]), row) for row in after.rows if id(row) not in known]
    shown = [(str(key), {name: _cell(value) for name, value in row.items()}) for key, row in changed[:MAX_CHANGES]]
    return {**dict(shown), **dict.fromkeys(gone[: MAX_CHANGES - len(shown)])}


def _cell(value: Any) -> Any:
    """A cell as JSON: models write texts that UTF-8 cannot encode, and numbers of any size."""
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    return str(value)[:MAX_CELL].encode(errors="replace").decode()


def equal_tables(one: Table, other: Table) -> bool:
    """True if columns, labels and cells are equal, row by row."""
    if one is other:
        return True
    if one.columns != other.columns or one.labels != other.labels:
        return False
    pairs = zip(one.rows, other.rows, strict=True)
    return all(left is right or _equal_rows(one.columns, left, right) for left, right in pairs)


def _equal_rows(columns: Sequence[str], one: Row, other: Row) -> bool:
    return all(_equal_cells(column, one[column], other[column]) for column in columns)


def _equal_cells(column: str, one: Any, other: Any) -> bool:
    """Texts are compared as texts and numbers as numbers: 30, "30" and no value are three different cells."""
    if isinstance(one, str) and isinstance(other, str):
        return one == other if column in CASE_SENSITIVE else one.lower() == other.lower()
    try:
        return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
    except RecursionError:
        return False


@cache
def load_office(folder: Path) -> Office:
    """The tables in a folder, read once for each folder."""
    visits = _table(
        folder,
        "processed/analytics_data.csv",
        "date_of_visit visitor_id page_views session_duration_seconds traffic_source user_engaged",
    )
    return Office(
        mails=_table(
            folder, "processed/emails.csv", "email_id inbox/outbox sender/recipient subject sent_datetime body"
        ),
        events=_table(
            folder, "processed/calendar_events.csv", "event_id event_name participant_email event_start duration"
        ),
        visits=replace(visits, rows=tuple(map(_typed_visit, visits.rows))),
        tasks=_table(
            folder, "processed/project_tasks.csv", "task_id task_name assigned_to_email list_name due_date board"
        ),
        customers=_table(
            folder,
            "processed/customer_relationship_manager_data.csv",
            "customer_id assigned_to_email customer_name customer_email customer_phone last_contact_date "
            "product_interest status follow_up_by notes",
        ),
        directory=tuple(line.strip() for line in _text(folder / DIRECTORY_FILE).splitlines() if line.strip()),
    )


def _typed_visit(visit: Row) -> Row:
    """A visit with the length of the session as a number and `user_engaged` as a boolean."""
    seconds = _number(visit["session_duration_seconds"])
    return {**visit, "session_duration_seconds": seconds, "user_engaged": visit["user_engaged"] == "True"}


def _number(cell: str | None) -> float:
    try:
        number = float(cell or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"analytics_data.csv has {cell!r} as session_duration_seconds. Expected a number.")
    return int(number) if number.is_integer() else number


def _table(folder: Path, name: str, columns: str) -> Table:
    """All cells are text; an empty one is missing."""
    header, *rows = csv.reader(_text(folder / name).splitlines(keepends=True))
    if header != columns.split():
        raise ConfigError(f"{folder / name} has the columns {', '.join(header)}. Expected: {columns}.")
    return Table.numbered(header, (dict(zip(header, (cell or None for cell in row), strict=True)) for row in rows))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The tables of workplace_assistant cannot be read: {error}.") from error
