"""Schemas of the tools, as the model sees them."""

from typing import Any, NamedTuple

from resources_servers.workplace_assistant import analytics_tools, calendar_tools, customer_tools, task_tools


class Description(NamedTuple):
    """A tool in a line. An argument is optional if its name ends in `?`."""

    text: str
    arguments: str = ""


PAGES = "page? page_size?"
DAYS = "time_min? time_max?"

DESCRIPTIONS = {
    "company_directory_find_email_address": Description("Look up the addresses that contain a name.", "name?"),
    "email_get_email_information_by_id": Description("Read one field of an email.", "email_id field"),
    "email_search_emails": Description(
        "Find the emails in which every word of the query occurs, newest first.",
        f"query? date_min? date_max? {PAGES}",
    ),
    "email_send_email": Description("Send an email.", "recipient subject body"),
    "email_delete_email": Description("Delete an email.", "email_id"),
    "email_forward_email": Description("Forward an email to somebody.", "email_id recipient"),
    "email_reply_email": Description("Answer the sender of an email.", "email_id body"),
    "calendar_get_event_information_by_id": Description("Read one field of an event.", "event_id field"),
    "calendar_search_events": Description(
        "Find events by name or participant, and by when they start, newest first.",
        f"query? {DAYS} {PAGES}",
    ),
    "calendar_create_event": Description("Create an event.", "event_name participant_email event_start duration"),
    "calendar_delete_event": Description("Delete an event.", "event_id"),
    "calendar_update_event": Description("Change one field of an event.", "event_id field new_value"),
    "analytics_get_visitor_information_by_id": Description("List the visits of a visitor.", "visitor_id"),
    "analytics_create_plot": Description(
        "Plot a value over a range of days.", "time_min time_max value_to_plot plot_type"
    ),
    "analytics_total_visits_count": Description("Count the visits of each day.", DAYS),
    "analytics_engaged_users_count": Description("Count the engaged visitors of each day.", DAYS),
    "analytics_traffic_source_count": Description(
        "Count the visits of each day that came from one source.", f"{DAYS} traffic_source?"
    ),
    "analytics_get_average_session_duration": Description("Average the length of the visits of each day.", DAYS),
    "project_management_get_task_information_by_id": Description("Read one field of a task.", "task_id field"),
    "project_management_search_tasks": Description(
        "Find the tasks that match all that is given.",
        "task_name? assigned_to_email? list_name? due_date? board?",
    ),
    "project_management_create_task": Description(
        "Create a task.", "task_name assigned_to_email list_name due_date board"
    ),
    "project_management_delete_task": Description("Delete a task.", "task_id"),
    "project_management_update_task": Description("Change one field of a task.", "task_id field new_value"),
    "customer_relationship_manager_search_customers": Description(
        "Find the customers that match all that is given.",
        "customer_name? customer_email? product_interest? status? assigned_to_email? last_contact_date_min? "
        f"last_contact_date_max? follow_up_by_min? follow_up_by_max? {PAGES}",
    ),
    "customer_relationship_manager_update_customer": Description(
        "Change one field of a customer.", "customer_id field new_value"
    ),
    "customer_relationship_manager_add_customer": Description(
        "Add a customer.",
        "customer_name assigned_to_email status customer_email? customer_phone? last_contact_date? "
        "product_interest? notes? follow_up_by?",
    ),
    "customer_relationship_manager_delete_customer": Description("Delete a customer.", "customer_id"),
}


def _one_of(values: tuple[str, ...]) -> str:
    return f"One of: {', '.join(values)}."


ARGUMENTS = {
    "name": "A name, or a part of it.",
    "query": "What to look for.",
    "page": "Which page of the results, from 1.",
    "page_size": "How many results a page has.",
    "date_min": "The first day, as YYYY-MM-DD.",
    "date_max": "The last day, as YYYY-MM-DD.",
    "time_min": "The first day, as YYYY-MM-DD.",
    "time_max": "The last day, as YYYY-MM-DD.",
    "email_id": "The id of the email.",
    "recipient": "The address to send to.",
    "subject": "The subject line.",
    "body": "The text.",
    "event_id": "The id of the event, eight digits.",
    "event_name": "What the event is called.",
    "participant_email": "The address of the participant.",
    "event_start": "When it starts, as YYYY-MM-DD HH:MM:SS.",
    "duration": "How long it takes, in minutes.",
    "visitor_id": "The id of the visitor.",
    "value_to_plot": _one_of(analytics_tools.PLOTTED),
    "plot_type": _one_of(analytics_tools.PLOT_TYPES),
    "traffic_source": _one_of(("direct", "referral", "search engine", "social media")),
    "task_id": "The id of the task, eight digits.",
    "task_name": "What the task is called.",
    "assigned_to_email": "The address of who is in charge.",
    "list_name": _one_of(task_tools.LISTS),
    "due_date": "When it is due, as YYYY-MM-DD.",
    "board": _one_of(task_tools.BOARDS),
    "customer_id": "The id of the customer, eight digits.",
    "customer_name": "The name of the customer.",
    "customer_email": "The address of the customer.",
    "customer_phone": "The phone number of the customer.",
    "product_interest": _one_of(customer_tools.PRODUCTS),
    "status": _one_of(customer_tools.STATUSES),
    "last_contact_date": "The day of the last contact, as YYYY-MM-DD.",
    "last_contact_date_min": "The first day of last contact, as YYYY-MM-DD.",
    "last_contact_date_max": "Last contact before this day, as YYYY-MM-DD.",
    "follow_up_by": "The day to follow up by, as YYYY-MM-DD.",
    "follow_up_by_min": "The first day to follow up by, as YYYY-MM-DD.",
    "follow_up_by_max": "Follow up before this day, as YYYY-MM-DD.",
    "notes": "Notes about the customer.",
    "field": "The field.",
    "new_value": "The new value of the field.",
}
FIELDS = {
    "email_get_email_information_by_id": (
        *("email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body"),
    ),
    "calendar_get_event_information_by_id": ("event_id", *calendar_tools.CHANGEABLE),
    "calendar_update_event": calendar_tools.CHANGEABLE,
    "project_management_get_task_information_by_id": (
        *("task_id", "task_name", "assigned_to_email", "list_name", "due_date", "board"),
    ),
    "project_management_update_task": ("task_name", "assigned_to_email", "list_name", "due_date", "board"),
    "customer_relationship_manager_update_customer": customer_tools.CHANGEABLE,
}
"""The allowed values of `field`."""

TIMES = {
    "time_min": "Events that start at this time or later, as YYYY-MM-DD HH:MM:SS.",
    "time_max": "Events that start at this time or earlier, as YYYY-MM-DD HH:MM:SS.",
}


def tool_schemas() -> list[dict[str, Any]]:
    """The tools as a row's `responses_create_params.tools` lists them."""
    return [_schema(name, description) for name, description in DESCRIPTIONS.items()]


def _schema(name: str, description: Description) -> dict[str, Any]:
    arguments = description.arguments.split()
    return {
        "type": "function",
        "name": name,
        "description": description.text,
        "parameters": {
            "type": "object",
            "properties": {argument.rstrip("?"): _argument(name, argument.rstrip("?")) for argument in arguments},
            "required": [argument for argument in arguments if not argument.endswith("?")],
            "additionalProperties": False,
        },
        "strict": False,
    }


def _argument(tool: str, name: str) -> dict[str, str]:
    kind = "integer" if name in ("page", "page_size") else "string"
    description = ARGUMENTS[name]
    if name == "field":
        description = _one_of(FIELDS[tool])
    elif tool == "calendar_search_events":
        description = TIMES.get(name, description)
    return {"type": kind, "description": description}
