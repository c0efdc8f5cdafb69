"""Rows from a seed: a conversation about a day. A calendar that fits exists, for the events are placed first."""

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

from nemo_gym.data.generate import distinct_rows
from resources_servers.calendar.schedule import scheduled
from resources_servers.calendar.state import fits, overlap
from resources_servers.calendar.times import clock, minutes_of, spoken, window_of

OPENS, CLOSES = 10 * 60, 16 * 60
STEP = 5
"""Minutes. All times are multiples of it."""
MOST_LUCK = 0.05
"""The share of free times for the newest event that may be right."""
FARTHEST = 24
"""Steps between a time and the one by which it is named."""
_TIME = re.compile(r"[0-9]+(?::[0-9]{2})?[ap]m")
SYSTEM = (
    "You keep the user's calendar for one day. In every reply show the whole calendar as a JSON list and ask nothing "
    "back. Each entry has `event_id` (integer), `event_name` (string), `start_time` (24-hour HH:MM) and `duration` "
    'in minutes, such as [{"event_id": 0, "event_name": "Lunch", "start_time": "12:00", "duration": 45}]. '
    "The calendar is empty at first. All events are between 10am and 4pm, and no two overlap. What the user says "
    "about the time of an event holds from then on; move other events if you must, each within its own limits."
)
NAMES = (
    *("Dentist", "Gym", "Phone call with the bank", "Lunch with Ada", "Piano lesson", "Car inspection"),
    *("Job interview", "Walk with the dog", "Reading group", "Grocery run", "Team meeting", "Haircut"),
    *("Parents' evening", "Yoga", "Passport photo", "Budget review", "House viewing", "Choir practice"),
)
REQUESTS = {
    "before": "Event {id} has to end no later than {end}.",
    "after": "Please have event {id} start no earlier than {start}.",
    "between": "Can event {id} start no earlier than {start} and end no later than {end}?",
    "at": "Event {id} starts exactly {start}, please.",
}


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """There is one more event than the difficulty, and on harder days less time is free."""
    return distinct_rows("calendar", _row, seed=seed, count=count, difficulty=difficulty)


def _row(chance: Random, level: int) -> dict[str, Any]:
    """Draw days until one has a last request that only those fulfil who read it."""
    while True:
        row = _conversation(chance, level)
        if not _is_met_blindly(row):
            return row


def _is_met_blindly(row: dict[str, Any]) -> bool:
    """True if the last request can be met without understanding it: by the calendar shown last, by moving the newest
    event to a time that the request names, to the first, last or just any free time, or by all events in some order
    without pauses."""
    events = row["exp_cal_state"]
    shown, request = (turn["content"] for turn in row["responses_create_params"]["input"][-2:])
    newest = events[str(len(events) - 1)]
    free = _free_moves(json.loads(shown), newest)
    lucky = sum(fits(calendar, events) for calendar in free)
    return (
        any(fits(calendar, events) for calendar in (json.loads(shown), free[0], free[-1]))
        or any(_may_touch(newest, minutes_of(time)) for time in _TIME.findall(request))
        or lucky > MOST_LUCK * len(free)
        or _fit_without_pauses(list(events.values()), OPENS)
    )


def _may_touch(event: dict[str, Any], moment: int) -> bool:
    """True if the event may start or end at a moment."""
    window, duration = window_of(event["constraint"]), event["duration"]
    return window.allows(moment, moment + duration) or window.allows(moment - duration, moment)


def _free_moves(shown: list[dict[str, Any]], newest: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The calendars in which the newest event is at another free time, or where it was."""
    others = [entry for entry in shown if entry["event_id"] != newest["event_id"]]
    starts = range(OPENS, CLOSES - newest["duration"] + 1, STEP)
    moved = [[*others, {**newest, "start_time": clock(start)}] for start in starts]
    return [calendar for calendar in moved if not overlap(calendar)]


def _fit_without_pauses(waiting: list[dict[str, Any]], now: int) -> bool:
    """True if the events can follow each other in some order, the first at `now`."""
    return not waiting or any(
        window_of(event["constraint"]).allows(now, now + event["duration"])
        and _fit_without_pauses([other for other in waiting if other is not event], now + event["duration"])
        for event in waiting
    )


def _conversation(chance: Random, level: int) -> dict[str, Any]:
    events = _day(chance, level + 1)
    known: dict[str, dict[str, Any]] = {}
    turns: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    for number, name, duration, constraint, request in events:
        known[str(number)] = _event(number, name, duration, None)
        turns += _turns(f"Add '{name}' for {duration} minutes (event id: {number}).", known)
        if constraint:
            known[str(number)] = _event(number, name, duration, constraint)
            turns += _turns(request, known)
    return {"responses_create_params": {"input": turns[:-1], "tools": []}, "exp_cal_state": known}


def _event(number: int, name: str, duration: int, constraint: str | None) -> dict[str, Any]:
    limits = {"constraint": constraint, "min_time": "10:00", "max_time": "16:00"}
    return {"event_id": number, "event_name": name, "duration": duration, **limits}


def _turns(request: str, known: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    reply = json.dumps(scheduled(known))
    return [{"role": "user", "content": request}, {"role": "assistant", "content": reply}]


def _day(chance: Random, count: int) -> list[tuple[int, str, int, str | None, str]]:
    """Events with places of their own, numbered in any order, each with what the user says about its time."""
    durations = [chance.choice((30, 45, 60)) for _ in range(count)]
    free = (CLOSES - OPENS - sum(durations)) // STEP
    pauses = sorted(chance.randint(0, free) for _ in range(count))
    starts = [OPENS + STEP * pause + sum(durations[:place]) for place, pause in enumerate(pauses)]
    numbers, names = chance.sample(range(count), count), chance.sample(NAMES, count)
    events = [
        (number, name, duration, *_constraint(chance, number, start, duration, is_last=number == count - 1))
        for number, name, duration, start in zip(numbers, names, durations, starts, strict=True)
    ]
    return sorted(events)


def _constraint(chance: Random, number: int, start: int, duration: int, *, is_last: bool) -> tuple[str | None, str]:
    """A constraint that the place of an event keeps to, and how the user puts it. The last event has a narrow one."""
    if not is_last and chance.random() < 0.2:
        return None, ""
    kind = chance.choice(list(REQUESTS))
    slack = [STEP * chance.randint(0, 2 if is_last else 12) for _ in range(2)]
    first = start if kind == "at" else max(OPENS, start - slack[0])
    last = min(CLOSES, start + duration + slack[1])
    forms = {"before": "before {end}", "after": "after {start}", "between": "between {start} and {end}"}
    constraint = forms.get(kind, "at {start}").format(start=spoken(first), end=spoken(last))
    request = REQUESTS[kind].format(id=number, start=_relative(chance, first), end=_relative(chance, last))
    return constraint, request


def _relative(chance: Random, minutes: int) -> str:
    """A time, by how far it is from another one."""
    distance = STEP * chance.randint(1, FARTHEST)
    if chance.random() < 0.5:
        return f"{distance} minutes after {spoken(minutes - distance)}"
    return f"{distance} minutes before {spoken(minutes + distance)}"
