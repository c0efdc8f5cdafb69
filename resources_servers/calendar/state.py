"""Does a reply hold the calendar that is expected? Takes time in proportion to the reply."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from nemo_gym.answers import THOUGHT_TAGS, is_denied, without_thinking
from nemo_gym.common.markup import without_comments
from resources_servers.calendar.times import Window, minutes_of, window_of

Event = Mapping[str, Any]

_LIST = re.compile(r"\[\s*\{")
_THOUGHT = re.compile(rf"<(?:{'|'.join(THOUGHT_TAGS)})[\s>]", re.IGNORECASE)
_FENCE = re.compile(r"```\w*\s*$|^\s*```")
_REFUSED_BEFORE = re.compile(r"\bnot\s+(?:like\s+)?(?:this|that|these|the\s+following)\b[^.\n]{0,40}$", re.IGNORECASE)
_REFUSED_AFTER = re.compile(
    r"\b(?:this|that|the|my)\s+(?:\w+\s+)?(?:calendar|list|schedule|plan)\s+(?:above\s+)?(?:is|was)\s+(?:\w+ly\s+)?"
    r"(?:wrong|incorrect|invalid|false|not\s+(?:right|correct|valid))\b",
    re.IGNORECASE,
)
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
    answer = without_comments(without_thinking(text))
    if not answer.strip() or _THOUGHT.search(text):
        return False
    try:
        entries = final_list(answer)
        return fits(entries, expected) if expected else not entries
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return False


def final_list(text: str) -> list[Any]:
    """Return the last list of objects, or an empty list if there is none or an empty one follows.

    One that is not valid JSON, such as a list that is not finished, or that the text calls wrong raises a ValueError.
    No earlier list is tried.
    """
    starts = [match.start() for match in _LIST.finditer(text)]
    if not starts:
        return []
    entries, end = json.JSONDecoder().raw_decode(text, starts[-1])
    if _is_refused(text[: starts[-1]], text[end:]):
        raise ValueError("the text says that its calendar is wrong")
    return [] if _EMPTY_LIST.search(text, end) else list(entries)


def _is_refused(before: str, after: str) -> bool:
    """True if what is around a list says that it is wrong."""
    before, after = (_FENCE.sub("", part).strip() for part in (before[-200:], after))
    start = len(before) + 1
    return bool(
        _REFUSED_BEFORE.search(before)
        or _REFUSED_AFTER.search(after)
        or is_denied(f"{before} [] {after}", start, start + 2)
    )


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
