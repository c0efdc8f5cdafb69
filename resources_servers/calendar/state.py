"""Does a reply hold the calendar that is expected? Takes time in proportion to the reply."""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from nemo_gym.answers import Declaration, final_declaration, shown
from resources_servers.calendar.times import Window, minutes_of, window_of

Event = Mapping[str, Any]

MAX_LISTS = 8
"""Number of the last lists that are read."""

_LIST = re.compile(r"\[\s*\{")
_EMPTY_LIST = re.compile(r"(?<![-*+]\s)\[\s*\]")
"""Not the box of a task in a Markdown list."""


def checked_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return an expected event, or raise a ValueError if no entry could be compared with it."""
    if type(event.get("duration")) not in (int, float) or not event["duration"] > 0:
        raise ValueError("expected `duration` to be a number of minutes above 0")
    minutes_of(event.get("min_time"))
    minutes_of(event.get("max_time"))
    window_of(event.get("constraint"))
    return event


def is_expected(text: str, expected: Mapping[str, Event]) -> bool:
    """True if the final list of the reply shows the expected events, none overlapping, each within its constraint."""
    answer = shown(text)
    if not answer.strip():
        return False
    try:
        entries = final_list(answer)
        return fits(entries, expected) if expected else not entries
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return False


def final_list(text: str) -> list[Any]:
    """Return the last list of objects, or an empty list if there is none or an empty one follows.

    Raises a ValueError if it is not valid JSON, such as a list that is not finished, if it is one of several, or if
    the text negates or withdraws it. No earlier list is tried.
    """
    lists = list(_lists(text))
    if not lists:
        return []
    final = final_declaration(text, lists)
    if final is None or final.end != lists[-1].end:
        raise ValueError("the text negates or withdraws its calendar")
    entries = json.loads(final.content)
    return [] if _EMPTY_LIST.search(text, final.end) else list(entries)


def _lists(text: str) -> Iterator[Declaration]:
    """The last lists that are not within others. One that is no JSON has no content."""
    end = 0
    for match in deque(_LIST.finditer(text), MAX_LISTS):
        if match.start() >= end:
            try:
                _, end = json.JSONDecoder().raw_decode(text, match.start())
            except (ValueError, RecursionError):
                end = match.end()
            content = text[match.start() : end]
            yield Declaration(match.start(), end, content)


def fits(entries: Sequence[Event], expected: Mapping[str, Event]) -> bool:
    """Every event has one entry, which may be repeated as it is."""
    different: list[Event] = []
    for entry in entries:
        if entry not in different:
            different.append(entry)
        if len(different) > len(expected):
            return False
    by_id = {str(entry["event_id"]): entry for entry in different}
    if by_id.keys() != expected.keys() or overlap(different):
        return False
    return all(_is_kept(entry, expected[event_id]) for event_id, entry in by_id.items())


def overlap(entries: Sequence[Event]) -> bool:
    """True if two entries overlap. Touching is fine."""
    spans = sorted((minutes_of(entry["start_time"]), entry["duration"]) for entry in entries)
    return any(start + duration > following for (start, duration), (following, _) in pairwise(spans))


def _is_kept(entry: Event, event: Event) -> bool:
    """True if an entry is as long as its event, within its day and within its constraint."""
    if entry["duration"] != event["duration"]:
        return False
    start = minutes_of(entry["start_time"])
    end = start + entry["duration"]
    day = Window(minutes_of(event["min_time"]), minutes_of(event["max_time"]))
    return day.allows(start, end) and window_of(event.get("constraint")).allows(start, end)
