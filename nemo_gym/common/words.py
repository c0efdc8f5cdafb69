"""Words for people: plurals, exit codes, lists, columns, and text of a limited length."""

import signal
from collections.abc import Iterator, Sequence

MAX_LISTED = 10
MIN_COLUMNS, DEFAULT_COLUMNS, MAX_COLUMNS = 40, 100, 120
MAX_NAME_COLUMNS = 36
"""In two columns, a longer name has a line of its own."""


def count_of(number: int, noun: str) -> str:
    """`1 row`, `2 rows`, `1,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def json_type(value: object) -> str:
    """Name the type of a JSON value that is not an object: `a list`, `null`."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true or false"
    return "a list" if isinstance(value, list) else "a text" if isinstance(value, str) else "a number"


def shorten(text: str, length: int) -> str:
    """The text, cut with an ellipsis if it is longer than `length`."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def exit_reason(code: int) -> str:
    """Describe how a process ended, by its exit code as `subprocess` reports it."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def indented_list(lines: Sequence[str]) -> str:
    """The first ten lines, each indented, and how many more there are."""
    more = [f"  ... and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    return "\n".join([*(f"  {line}" for line in lines[:MAX_LISTED]), *more])


def terminal_columns() -> int:
    """The width to wrap text to: that of the terminal, or 100 if there is none."""
    import shutil

    return min(max(shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns, MIN_COLUMNS), MAX_COLUMNS)


def wrap_paragraphs(text: str, width: int) -> Iterator[str]:
    """Lines of at most this width. The lines of a fenced block, which are to be copied, stay as they are."""
    import textwrap

    for number, part in enumerate(text.strip().split("\n\n") if text else ()):
        if number:
            yield ""
        if part.startswith("```"):
            yield from (f"  {line}" for line in part.splitlines()[1:-1])
        else:
            yield from textwrap.wrap(part, width)


def two_columns(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Format names and their meanings in two wrapped columns. The meaning of a long name starts on the next line."""
    import textwrap

    most = min(MAX_NAME_COLUMNS, width // 2)
    column = max((len(name) for name, _ in rows if len(name) <= most), default=0) + 3
    for name, text in rows:
        indent = " " * (column if len(name) <= most else 6)
        wrapped = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
        if len(name) > most or not wrapped:
            yield name.rstrip()
            yield from wrapped
        else:
            yield name + wrapped[0][len(name) :]
            yield from wrapped[1:]
