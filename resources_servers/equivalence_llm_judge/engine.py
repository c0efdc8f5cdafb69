"""Read a part out of a text by a pattern from the data. Such a pattern may take for ever, so it runs in a compute
worker."""

import re


def last_match(pattern: str, text: str) -> str | None:
    """The first group that is not blank of the last match, else all of that match; None if there is none to be had."""
    try:
        compiled = re.compile(pattern, re.MULTILINE | re.DOTALL)
    except (re.error, OverflowError, RecursionError):
        return None
    last: re.Match[str] | None = None
    for match in compiled.finditer(text):
        last = match
    if last is None:
        return None
    groups = (group.strip() for group in last.groups() if group is not None)
    return next(filter(None, groups), last.group().strip())
