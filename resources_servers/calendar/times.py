"""Times of day as minutes after midnight, and what constraints on them mean."""

import re
from typing import Any, NamedTuple

_CLOCK = re.compile(r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-5][0-9]))?\s*(?P<half>am|pm)?")
_CONSTRAINT = re.compile(r"(before|after|at) (.+)|between (.+) and (.+)")
_NO_TIME = "expected a time such as 10am, 10:30pm or 13:05"


def minutes_of(time: Any) -> int:
    """Read `10am`, `10:30pm`, `10 am` or `13:05`. A bare hour, capitals or an hour that no clock shows are refused."""
    found = _CLOCK.fullmatch(time.strip()) if isinstance(time, str) else None
    if found is None or not (found["half"] or found["minute"]):
        raise ValueError(_NO_TIME)
    hour, minute = int(found["hour"]), int(found["minute"] or 0)
    if hour not in (range(1, 13) if found["half"] else range(24)):
        raise ValueError(_NO_TIME)
    if found["half"]:
        hour = hour % 12 + (12 if found["half"] == "pm" else 0)
    return 60 * hour + minute


class Window(NamedTuple):
    """When an event may take place."""

    start: float = float("-inf")
    end: float = float("inf")
    must_begin_at_start: bool = False

    def allows(self, start: float, end: float) -> bool:
        if self.must_begin_at_start and start != self.start:
            return False
        return self.start <= start and end <= self.end


def window_of(constraint: Any) -> Window:
    """Return the times that a constraint allows; without one, all times. Raises ValueError if its form is unknown."""
    if constraint is None or constraint == "":
        return Window()
    found = _CONSTRAINT.fullmatch(constraint) if isinstance(constraint, str) else None
    if found is None:
        raise ValueError(f"constraint is {constraint!r:.100}; expected null or before, after, at or between times")
    kind, limit, first, last = found.groups()
    if kind is None:
        return Window(minutes_of(first), minutes_of(last))
    moment = minutes_of(limit)
    if kind == "before":
        return Window(end=moment)
    return Window(moment, must_begin_at_start=kind == "at")


def clock(minutes: int) -> str:
    """`13:05`"""
    return f"{minutes // 60:02}:{minutes % 60:02}"


def spoken(minutes: int) -> str:
    """`1:05pm`, as constraints have it."""
    hour, minute = divmod(minutes, 60)
    return f"{hour % 12 or 12}{f':{minute:02}' if minute else ''}{'am' if hour < 12 else 'pm'}"
