"""Words for people: plurals, exit codes, lists, and text of a limited length."""

import signal
from collections.abc import Sequence

MAX_LISTED = 10


def count_of(number: int, noun: str) -> str:
    """`1 row`, `2 rows`, `1,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def json_type(value: object) -> str:
    """What a JSON value that is not an object is called: `a list`, `null`."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true or false"
    return "a list" if isinstance(value, list) else "a text" if isinstance(value, str) else "a number"


def shorten(text: str, length: int) -> str:
    """The text, cut with an ellipsis if it is longer than `length`."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def exit_reason(code: int) -> str:
    """How a process ended, by its exit code as `subprocess` reports it."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def indented_list(lines: Sequence[str]) -> str:
    """The first ten lines, each indented, and how many more there are."""
    more = [f"  ... and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    return "\n".join([*(f"  {line}" for line in lines[:MAX_LISTED]), *more])
