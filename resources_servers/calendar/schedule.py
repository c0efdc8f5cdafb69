"""Find a place for every event of a day."""

import math
from collections.abc import Mapping
from typing import Any

from resources_servers.calendar.times import clock, minutes_of, window_of

Waiting = tuple[str, Mapping[str, Any]]

MOST_SEARCHED = 12
"""Events. The time to find that there is no calendar for them may double with each one."""


def scheduled(events: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The calendar, earliest event first; None if there is none that keeps to all constraints."""
    starts = _placed(list(events.items()), 0, {})
    if starts is None:
        return None
    return [
        {
            "event_id": events[event_id].get("event_id", event_id),
            "event_name": events[event_id].get("event_name", f"Event {event_id}"),
            "start_time": clock(start),
            "duration": events[event_id]["duration"],
        }
        for event_id, start in starts
    ]


def _placed(waiting: list[Waiting], now: int, hopeless: dict[frozenset[str], int]) -> list[tuple[str, int]] | None:
    """The starts of all events that wait, none before `now`. Tries every order, each event as early as it may be.

    `hopeless` has the times from which on some events cannot be placed any more.
    """
    if not waiting:
        return []
    ids = frozenset(event_id for event_id, _ in waiting)
    if now >= hopeless.get(ids, math.inf):
        return None
    for place, (event_id, event) in enumerate(waiting):
        start = _earliest_start(event, now)
        if start is None:
            continue
        rest = _placed(waiting[:place] + waiting[place + 1 :], start + event["duration"], hopeless)
        if rest is not None:
            return [(event_id, start), *rest]
    hopeless[ids] = now
    return None


def _earliest_start(event: Mapping[str, Any], now: int) -> int | None:
    window = window_of(event.get("constraint"))
    start = int(max(now, minutes_of(event["min_time"]), window.start))
    end = start + event["duration"]
    return start if end <= minutes_of(event["max_time"]) and window.allows(start, end) else None
