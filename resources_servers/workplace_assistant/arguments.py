"""Check tool arguments. A model can pass values of any type and length; an invalid one raises, and the message of the
exception becomes the output of the tool."""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from resources_servers.workplace_assistant.tables import Row

NOW = "2023-11-30 23:59:00"
ID_DIGITS = 8
LONGEST_TIME = 64
"""Characters. What is longer is no time, and is not tried against all formats."""

DATES = ("%Y-%m-%d", "%Y/%m/%d", "%m/%d/%Y", "%m-%d-%Y", "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y", "%Y%m%d")
TIMES = ("", " %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p", " %I %p")


def text(value: Any) -> str:
    """The value, if it is text."""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {type(value).__name__}")
    return value


def lowered(value: Any) -> str:
    """A text in lower case."""
    return text(value).lower()


def is_address(value: Any) -> bool:
    """True if it looks like an email address."""
    return "@" in text(value) and "." in value


def is_event_id(value: Any) -> bool:
    """True for eight digits."""
    return isinstance(value, str) and len(value) == ID_DIGITS and value.isdigit()


def padded(number: int) -> str:
    """An id with leading zeros."""
    return str(number).zfill(ID_DIGITS)


def parsed_time(value: Any) -> datetime:
    """A date or time in one of the usual forms, such as `2023-12-01 09:00:00`, its ISO form, or `12/01/2023 9am`."""
    written = " ".join(text(value)[: LONGEST_TIME + 1].replace(",", " ").split())
    if len(written) > LONGEST_TIME:
        raise ValueError("this is no time")
    try:
        return datetime.fromisoformat(written).replace(tzinfo=None)
    except ValueError:
        spaced = re.sub(r"(?i)(?<=\d)([ap]m)\b", r" \1", written)
        return _parsed_leniently(spaced)


def _parsed_leniently(written: str) -> datetime:
    for date_form in DATES:
        for time_form in TIMES:
            try:
                return datetime.strptime(written, date_form + time_form)
            except ValueError:
                continue
    raise ValueError(f"'{written}' is no time; expected YYYY-MM-DD HH:MM:SS")


def is_time(value: Any) -> bool:
    """True if the value can be read as a time."""
    try:
        parsed_time(value)
    except (TypeError, ValueError):
        return False
    return True


def matching(rows: Iterable[Row], pattern: Any, *columns: str) -> list[Row]:
    """The rows with a column in which the pattern is found, ignoring case. A missing cell matches nothing."""
    search = re.compile(text(pattern), re.IGNORECASE).search
    return [row for row in rows if any(isinstance(cell := row[column], str) and search(cell) for column in columns)]


def page_of(name: str, rows: Sequence[Row], page: Any, page_size: Any) -> dict[str, Any]:
    """One page of rows, with what it takes to ask for the others."""
    if not isinstance(page, int) or not isinstance(page_size, int):
        raise TypeError("page and page_size must be whole numbers")
    if page_size < 1:
        raise ValueError("page_size must be at least 1")
    total_pages = math.ceil(len(rows) / page_size)
    page = max(1, min(page, total_pages))
    start = (page - 1) * page_size
    pagination = {f"total_{name}": len(rows), "page": page, "page_size": page_size, "total_pages": total_pages}
    return {name: list(rows[start : start + page_size]), "pagination": pagination}
