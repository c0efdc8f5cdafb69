"""Our tables against data frames: random calls, and the same equality of texts. Runs where pandas 2 is installed."""

from functools import reduce
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from resources_servers.workplace_assistant.tables import Table, equal_tables

pandas: Any = pytest.importorskip("pandas", reason="pandas is not installed; our tables do without")
pytestmark = pytest.mark.skipif(not pandas.__version__.startswith("2."), reason="the rule is that of pandas 2")

COLUMNS = ("id", "name", "status")
BASE = [{"id": f"{number:08}", "name": f"Name {number}", "status": "Lead"} for number in range(5)]
CELLS = st.sampled_from(["x", "X", "y", "", None, "30", "lead", "Lead"])
"""Texts and missing cells. Of other values, the rule of pandas finds 30 equal to 60, and ours does not."""
IDS = st.sampled_from([row["id"] for row in BASE] + ["00000005", "00000006", "5"])
Change = tuple[str, Any]
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["append", "append_as_label_zero"]), st.tuples(CELLS, CELLS)),
    st.tuples(st.just("delete"), IDS),
    st.tuples(st.just("update"), st.tuples(IDS, st.sampled_from(COLUMNS[1:]), CELLS)),
)


def ours(table: Table, change: Change) -> Table:
    kind, given = change
    if kind == "delete":
        return table.without(given)
    if kind == "update":
        return table.updated(*given)
    row = dict(zip(COLUMNS, (new_id(row["id"] for row in table.rows), *given), strict=True))
    return table.appended(row) if kind == "append" else table.appended_as_label_zero(row)


def theirs(frame: Any, change: Change) -> Any:
    kind, given = change
    if kind == "delete":
        return frame[frame["id"] != given]
    if kind == "update":
        row_id, column, value = given
        changed = frame.copy()
        changed.loc[changed["id"] == row_id, column] = value
        return changed
    row = dict(zip(COLUMNS, (new_id(frame["id"]), *given), strict=True))
    added = pandas.DataFrame([row], dtype=object)
    return pandas.concat([frame, added], ignore_index=kind == "append")


def new_id(ids: Any) -> str:
    return f"{int(max([*ids, '00000000'])) + 1:08}"


def equal_frames(one: Any, other: Any) -> bool:
    """The rule as it was first written: lower all text but in the columns where case counts, then compare."""
    lowered = [frame.astype(object).copy() for frame in (one, other)]
    for frame in lowered:
        for column in ("id", "name"):
            assume(any(isinstance(cell, str) for cell in frame[column]))  # else pandas has no `.str` for it
            frame[column] = frame[column].str.lower()
    return bool(lowered[0].equals(lowered[1]))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@settings(deadline=None, max_examples=300)
@given(st.lists(CHANGES, max_size=4), st.lists(CHANGES, max_size=4), st.booleans())
def test_tables_are_equal_when_data_frames_are(one: list[Change], other: list[Change], is_reversed: bool) -> None:
    if is_reversed:
        other = one[::-1]
    table = Table.numbered(COLUMNS, BASE)
    frame = pandas.DataFrame(BASE, dtype=object)
    tables = [reduce(ours, changes, table) for changes in (one, other)]
    frames = [reduce(theirs, changes, frame) for changes in (one, other)]
    for made, expected in zip(tables, frames, strict=True):
        assert list(made.labels) == list(expected.index)
        assert [row["id"] for row in made.rows] == list(expected["id"])
    assert equal_tables(*tables) == equal_frames(*frames)
