"""All tools by name: calling one, and replaying the calls of a rollout."""

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from nemo_gym.answers import strict_json
from resources_servers.workplace_assistant import (
    analytics_tools,
    calendar_tools,
    customer_tools,
    email_tools,
    task_tools,
)
from resources_servers.workplace_assistant.tables import Office, equal_offices

ToolCall = tuple[str, str]
"""The name of a tool, and its arguments as JSON."""

READING: dict[str, Callable[..., Any]] = {
    "company_directory_find_email_address": email_tools.find_email_address,
    "email_get_email_information_by_id": email_tools.get_email_information_by_id,
    "email_search_emails": email_tools.search_emails,
    "calendar_get_event_information_by_id": calendar_tools.get_event_information_by_id,
    "calendar_search_events": calendar_tools.search_events,
    "analytics_get_visitor_information_by_id": analytics_tools.get_visitor_information_by_id,
    "analytics_total_visits_count": analytics_tools.total_visits_count,
    "analytics_engaged_users_count": analytics_tools.engaged_users_count,
    "analytics_traffic_source_count": analytics_tools.traffic_source_count,
    "analytics_get_average_session_duration": analytics_tools.get_average_session_duration,
    "project_management_get_task_information_by_id": task_tools.get_task_information_by_id,
    "project_management_search_tasks": task_tools.search_tasks,
    "customer_relationship_manager_search_customers": customer_tools.search_customers,
}
WRITING: dict[str, Callable[..., Any]] = {
    "email_send_email": email_tools.send_email,
    "email_delete_email": email_tools.delete_email,
    "email_forward_email": email_tools.forward_email,
    "email_reply_email": email_tools.reply_email,
    "calendar_create_event": calendar_tools.create_event,
    "calendar_delete_event": calendar_tools.delete_event,
    "calendar_update_event": calendar_tools.update_event,
    "analytics_create_plot": analytics_tools.create_plot,
    "project_management_create_task": task_tools.create_task,
    "project_management_delete_task": task_tools.delete_task,
    "project_management_update_task": task_tools.update_task,
    "customer_relationship_manager_update_customer": customer_tools.update_customer,
    "customer_relationship_manager_add_customer": customer_tools.add_customer,
    "customer_relationship_manager_delete_customer": customer_tools.delete_customer,
}
TOOLS = READING | WRITING
_SIGNATURES = {name: inspect.signature(function) for name, function in TOOLS.items()}

LONG_ARGUMENT = 1000
"""Characters. Searching for a longer text may take long."""

MANY_CALLS = 200
LONG_ARGUMENTS = 1_000_000
"""Characters, in all calls of a rollout together."""

_COSTLY = re.compile(r"[*+?{|()\[\\]")
"""Matches parts of a pattern that can make it take more than linear time."""


def call_tool(office: Office, name: str, arguments: dict[str, Any]) -> Any:
    """Return the output of a tool, also its error. Arguments that are null count as not given."""
    given = {key: value for key, value in arguments.items() if value is not None}
    try:
        return TOOLS[name](office, **given)
    except Exception as error:  # hostile input: any exception becomes the output
        return f"Error executing tool '{name}': {error}"


def check_call(name: str, arguments: str) -> None:
    """Raise ValueError unless there is such a tool, and it takes these arguments."""
    if name not in TOOLS:
        raise ValueError(f"ground_truth calls {name!r}, which is no tool")
    try:
        _SIGNATURES[name].bind(None, **parsed(arguments))
    except (TypeError, ValueError) as error:
        raise ValueError(f"ground_truth calls {name} with arguments that it does not take: {error}") from None


def may_take_long(name: str, arguments: dict[str, Any]) -> bool:
    """True if a call searches with a pattern that could run for ever, or with a very long one."""
    if name not in READING:
        return False
    texts = [value for value in arguments.values() if isinstance(value, str)]
    return any(len(value) > LONG_ARGUMENT or ("search" in name and _COSTLY.search(value)) for value in texts)


def has_outcome(office: Office, calls: list[ToolCall], expected: Office) -> bool:
    """True if the calls turn the office into the expected one."""
    return equal_offices(replay(office, calls), expected)


def replay_may_take_long(calls: list[ToolCall]) -> bool:
    """True for more calls, or longer arguments, than any task needs. Each call copies a table."""
    return len(calls) > MANY_CALLS or sum(len(arguments) for _, arguments in calls) > LONG_ARGUMENTS


def parsed(arguments: str) -> dict[str, Any]:
    """The arguments of a call. Raises a ValueError if they are not a JSON object; one with `NaN` in it is none."""
    found = strict_json(arguments)
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found


def replay(office: Office, calls: Iterable[ToolCall]) -> Office:
    """The office after these calls. A call that fails is skipped.

    Nulls are passed on here: a null is not the same as a default. Calls that only read are not made.
    """
    replayed = office.fork()
    for name, arguments in calls:
        function = WRITING.get(name)
        if function is None:
            continue
        before = replayed.fork()
        try:
            function(replayed, **parsed(arguments))
        except Exception:  # hostile input: a call that fails has no effect
            replayed = before
    return replayed
