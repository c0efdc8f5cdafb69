"""Does a reply hold the calendar that is expected? Takes time in proportion to the reply."""

import json
import re
from collections.abc import Mapping
from typing import Any

from resources_servers.calendar.times import Window, minutes_of, window_of

Event = Mapping[str, Any]

MOST_ENTRIES = 300
"""Different entries. No day has so many, and every two of them are compared."""

_BRACKET = re.compile(r"[][{}]")


def is_expected(text: str, expected: Mapping[str, Event]) -> bool:
    """True if the reply shows the expected events, none overlapping, each within its constraint."""
    if not text.strip() or "<think>" in text:
        return False
    if not expected:
        return True
    try:
        entries = json.loads(first_list(text) or "")
        return bool(entries) and _fits(entries, expected)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return False


def first_list(text: str) -> str | None:
    """The first `[...]` that holds an object: no square brackets in it except inside braces, and at least one pair of
    braces without any.

    A stretch that fails ends at a square bracket outside of braces. What could start inside of its braces ends there,
    too, and holds less, so it fails as well: no part of the text is looked at twice.
    """
    brackets = [(match.start(), match[0]) for match in _BRACKET.finditer(text)]
    start: int | None = None
    holds_object, index = False, 0
    while index < len(brackets):
        place, bracket = brackets[index]
        if bracket == "[":
            start, holds_object = place, False
        elif bracket == "]":
            if start is not None and holds_object:
                return text[start : place + 1]
            start = None
        elif bracket == "{" and start is not None:
            closing = _closing(brackets, index)
            if closing is not None:
                holds_object = holds_object or closing == index + 1
                index = closing
        index += 1
    return None


def _closing(brackets: list[tuple[int, str]], opening: int) -> int | None:
    """Where the brace closes that is opened, unless another is opened before."""
    for index in range(opening + 1, len(brackets)):
        if brackets[index][1] in "{}":
            return index if brackets[index][1] == "}" else None
    return None


def _fits(entries: list[Event], expected: Mapping[str, Event]) -> bool:
    """Every entry has to fit, also those of an event that is listed again."""
    ids = [str(entry["event_id"]) for entry in entries]
    if set(ids) != set(expected) or _overlap(entries, most=max(MOST_ENTRIES, 2 * len(expected))):
        return False
    return all(_is_kept(entry, expected[event_id]) for event_id, entry in zip(ids, entries, strict=True))


def _overlap(entries: list[Event], *, most: int) -> bool:
    """True if two different entries overlap. Equal ones count once."""
    different: list[Event] = []
    for entry in entries:
        if entry not in different:
            different.append(entry)
        if len(different) > most:
            return True
    if len(different) < 2:
        return False
    spans = [(minutes_of(entry["start_time"]), entry["duration"]) for entry in different]
    return any(
        start < other + other_length and other < start + length
        for place, (start, length) in enumerate(spans)
        for other, other_length in spans[:place]
    )


def _is_kept(entry: Event, event: Event) -> bool:
    """True if an entry is as long as its event, within its day and within its constraint."""
    if entry["duration"] != event["duration"]:
        return False
    start = minutes_of(entry["start_time"])
    end = start + entry["duration"]
    day = Window(minutes_of(event["min_time"]), minutes_of(event["max_time"]))
    return day.allows(start, end) and window_of(event.get("constraint")).allows(start, end)
