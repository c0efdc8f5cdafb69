"""Meetings."""

from datetime import datetime
from typing import Any

from resources_servers.workplace_assistant.arguments import (
    is_event_id,
    is_time,
    lowered,
    matching,
    padded,
    page_of,
    parsed_time,
    text,
)
from resources_servers.workplace_assistant.tables import Office, Row

BAD_ID = "Invalid event ID format. Expected 8-digit ID."
BAD_TIME = "Invalid {} format. Expected YYYY-MM-DD HH:MM:SS."
CHANGEABLE = ("event_name", "participant_email", "event_start", "duration")


def get_event_information_by_id(office: Office, /, event_id: Any = None, field: Any = None) -> Any:
    if not event_id:
        return "Event ID not provided."
    if not field:
        return "Field not provided."
    if not is_event_id(event_id):
        return BAD_ID
    if text(field) not in office.events.columns:
        return f"Invalid field. Available fields are: {', '.join(office.events.columns)}"
    event = office.events.find(event_id)
    return "Event not found." if event is None else {field: event[field]}


def search_events(
    office: Office, /, query: Any = "", time_min: Any = None, time_max: Any = None, page: Any = 1, page_size: Any = 5
) -> Any:
    for name, limit in (("time_min", time_min), ("time_max", time_max)):
        if limit and not is_time(limit):
            return BAD_TIME.format(name)
    found = matching(office.events.rows, query, "event_name", "participant_email")
    if time_min:
        earliest = parsed_time(time_min)
        found = [event for event in found if _start(event) >= earliest]
    if time_max:
        latest = parsed_time(time_max)
        found = [event for event in found if _start(event) <= latest]
    if not found:
        return "No events found."
    return page_of("events", sorted(found, key=_start, reverse=True), page, page_size)


def _start(event: Row) -> datetime:
    return parsed_time(event["event_start"])


def create_event(
    office: Office,
    /,
    event_name: Any = None,
    participant_email: Any = None,
    event_start: Any = None,
    duration: Any = None,
) -> Any:
    given = {
        "Event name": event_name,
        "Participant email": participant_email,
        "Event start": event_start,
        "Event duration": duration,
    }
    for name, value in given.items():
        if not value:
            return f"{name} not provided."
    refusal = _refusal("event_start", event_start) or _refusal("duration", duration)
    if refusal:
        return refusal
    event_id = padded(office.events.next_id())
    created = (event_id, event_name, lowered(participant_email), event_start, duration)
    office.events = office.events.appended_as_label_zero(dict(zip(office.events.columns, created, strict=True)))
    return event_id


def delete_event(office: Office, /, event_id: Any = None) -> Any:
    if not event_id:
        return "Event ID not provided."
    if not is_event_id(event_id):
        return BAD_ID
    if office.events.find(event_id) is None:
        return "Event not found."
    office.events = office.events.without(event_id)
    return "Event deleted successfully."


def update_event(office: Office, /, event_id: Any = None, field: Any = None, new_value: Any = None) -> Any:
    if not event_id or not field or not new_value:
        return "Event ID, field, or new value not provided."
    if not is_event_id(event_id):
        return BAD_ID
    if field not in CHANGEABLE:
        return f"Invalid field. Available fields are: {', '.join(CHANGEABLE)}"
    refusal = _refusal(field, new_value)
    if refusal:
        return refusal
    if office.events.find(event_id) is None:
        return "Event not found."
    office.events = office.events.updated(event_id, field, new_value)
    return "Event updated successfully."


def _refusal(field: str, value: Any) -> str | None:
    """Why a value cannot be a start or a duration."""
    if field == "event_start" and not is_time(value):
        return BAD_TIME.format(field)
    if field != "duration":
        return None
    try:
        is_positive = int(value) > 0
    except (TypeError, ValueError, OverflowError):
        return "Invalid duration format. Expected a number of minutes."
    return None if is_positive else "Duration must be a positive number of minutes."
