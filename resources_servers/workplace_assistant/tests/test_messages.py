"""Every message of every tool."""

from typing import Any

import pytest

from resources_servers.workplace_assistant.tests.small_office import (
    ADD_CUSTOMER,
    ANN,
    BOB,
    CREATE_EVENT,
    CREATE_TASK,
    DELETE_CUSTOMER,
    DELETE_EVENT,
    DELETE_MAIL,
    DELETE_TASK,
    EVE,
    EVENT,
    FIND,
    FORWARD,
    GET_EVENT,
    GET_MAIL,
    GET_TASK,
    NEW_EVENT,
    NEW_PLOT,
    NEW_TASK,
    PLOT,
    REPLY,
    SEARCH_CUSTOMERS,
    SEARCH_EVENTS,
    SEARCH_MAIL,
    SEARCH_TASKS,
    SEND,
    UPDATE_CUSTOMER,
    UPDATE_EVENT,
    UPDATE_TASK,
    VISITOR,
    call,
    changed,
    small_office,
)

BAD_ID = "Invalid event ID format. Expected 8-digit ID."
BAD_LIST = "List not valid. Please choose from: 'Backlog', 'In Progress', 'In Review', 'Completed'."
BAD_BOARD = "Board not valid. Please choose from: 'Back end', 'Front end', 'Design'."
BAD_ASSIGNEE = "Assignee email not valid. Please choose from the list of team members."
MAIL_FIELDS = "email_id, inbox/outbox, sender/recipient, subject, sent_datetime, body"
VALUES = (
    "'total_visits', 'session_duration_seconds', 'user_engaged', 'visits_direct', 'visits_referral', "
    "'visits_search_engine', 'visits_social_media'"
)
CUSTOMER_FIELDS = (
    "'customer_name', 'assigned_to_email', 'customer_email', 'customer_phone', 'last_contact_date', "
    "'product_interest', 'status', 'notes', 'follow_up_by'"
)
STATUSES = "'Qualified', 'Won', 'Lost', 'Lead', 'Proposal'"
PRODUCTS = "'Software', 'Hardware', 'Services', 'Consulting', 'Training'"


MESSAGES: list[tuple[str, dict[str, Any], Any]] = [
    (FIND, {}, "Name not provided."),
    (FIND, {"name": ""}, "Name not provided."),
    (FIND, {"name": "BO"}, [BOB]),
    (FIND, {"name": "x.example"}, [ANN, BOB, EVE]),
    (FIND, {"name": "nobody"}, []),
    (GET_MAIL, {"field": "subject"}, "Email ID not provided."),
    (GET_MAIL, {"email_id": "00000001"}, "Field not provided."),
    (GET_MAIL, {"email_id": "1", "field": "subject"}, "Email not found."),
    (
        GET_MAIL,
        {"email_id": "00000001", "field": "colour"},
        f"Field 'colour' not found. Available fields: {MAIL_FIELDS}",
    ),
    (GET_MAIL, {"email_id": "00000001", "field": "subject"}, {"subject": "Party"}),
    (SEARCH_MAIL, {"query": "nothing like it"}, "No emails found."),
    (SEND, {"recipient": ANN, "subject": "s"}, "Recipient, subject, or body not provided."),
    (SEND, {"recipient": "ann", "subject": "s", "body": "b"}, "Invalid recipient email address."),
    (SEND, {"recipient": "a@b", "subject": "s", "body": "b"}, "Invalid recipient email address."),
    (SEND, {"recipient": "a.b", "subject": "s", "body": "b"}, "Invalid recipient email address."),
    (SEND, {"recipient": ANN, "subject": "s", "body": "b"}, "Email sent successfully."),
    (DELETE_MAIL, {}, "Email ID not provided."),
    (DELETE_MAIL, {"email_id": "7"}, "Email not found."),
    (DELETE_MAIL, {"email_id": "00000001"}, "Email deleted successfully."),
    (FORWARD, {"email_id": "00000001"}, "Email ID or recipient not provided."),
    (FORWARD, {"recipient": ANN}, "Email ID or recipient not provided."),
    (FORWARD, {"email_id": "7", "recipient": ANN}, "Email not found."),
    (FORWARD, {"email_id": "00000001", "recipient": "ann"}, "Invalid recipient email address."),
    (FORWARD, {"email_id": "00000001", "recipient": ANN}, "Email forwarded successfully."),
    (REPLY, {"email_id": "00000001"}, "Email ID or body not provided."),
    (REPLY, {"email_id": "7", "body": "b"}, "Email not found."),
    (REPLY, {"email_id": "00000001", "body": "b"}, "Email replied successfully."),
    (GET_EVENT, {"field": "duration"}, "Event ID not provided."),
    (GET_EVENT, {"event_id": "00000001"}, "Field not provided."),
    (GET_EVENT, {"event_id": "1", "field": "duration"}, BAD_ID),
    (GET_EVENT, {"event_id": "1234567x", "field": "duration"}, BAD_ID),
    (GET_EVENT, {"event_id": 12345678, "field": "duration"}, BAD_ID),
    (
        GET_EVENT,
        {"event_id": "00000001", "field": "colour"},
        f"Invalid field. Available fields are: {', '.join(EVENT)}",
    ),
    (GET_EVENT, {"event_id": "00000009", "field": "duration"}, "Event not found."),
    (GET_EVENT, {"event_id": "00000001", "field": "duration"}, {"duration": "60"}),
    (SEARCH_EVENTS, {"query": "nothing"}, "No events found."),
    (SEARCH_EVENTS, {"time_min": "soon"}, "Invalid time_min format. Expected YYYY-MM-DD HH:MM:SS."),
    (SEARCH_EVENTS, {"time_max": "late"}, "Invalid time_max format. Expected YYYY-MM-DD HH:MM:SS."),
    (CREATE_EVENT, NEW_EVENT | changed(event_name=""), "Event name not provided."),
    (CREATE_EVENT, NEW_EVENT | changed(participant_email=""), "Participant email not provided."),
    (CREATE_EVENT, NEW_EVENT | changed(event_start=""), "Event start not provided."),
    (CREATE_EVENT, NEW_EVENT | changed(duration=""), "Event duration not provided."),
    (
        CREATE_EVENT,
        NEW_EVENT | changed(event_start="soon"),
        "Invalid event_start format. Expected YYYY-MM-DD HH:MM:SS.",
    ),
    (CREATE_EVENT, NEW_EVENT | changed(duration="-5"), "Duration must be a positive number of minutes."),
    (CREATE_EVENT, NEW_EVENT | changed(duration="0"), "Duration must be a positive number of minutes."),
    (CREATE_EVENT, NEW_EVENT | changed(duration="long"), "Invalid duration format. Expected a number of minutes."),
    (CREATE_EVENT, NEW_EVENT, "00000003"),
    (DELETE_EVENT, {}, "Event ID not provided."),
    (DELETE_EVENT, {"event_id": "1"}, BAD_ID),
    (DELETE_EVENT, {"event_id": "00000009"}, "Event not found."),
    (DELETE_EVENT, {"event_id": "00000001"}, "Event deleted successfully."),
    (UPDATE_EVENT, {"event_id": "00000001", "field": "duration"}, "Event ID, field, or new value not provided."),
    (UPDATE_EVENT, {"event_id": "1", "field": "duration", "new_value": "5"}, BAD_ID),
    (
        UPDATE_EVENT,
        {"event_id": "00000001", "field": "event_id", "new_value": "5"},
        "Invalid field. Available fields are: event_name, participant_email, event_start, duration",
    ),
    (
        UPDATE_EVENT,
        {"event_id": "00000001", "field": "event_start", "new_value": "soon"},
        "Invalid event_start format. Expected YYYY-MM-DD HH:MM:SS.",
    ),
    (
        UPDATE_EVENT,
        {"event_id": "00000001", "field": "duration", "new_value": "-1"},
        "Duration must be a positive number of minutes.",
    ),
    (
        UPDATE_EVENT,
        {"event_id": "00000001", "field": "duration", "new_value": "long"},
        "Invalid duration format. Expected a number of minutes.",
    ),
    (UPDATE_EVENT, {"event_id": "00000009", "field": "event_name", "new_value": "x"}, "Event not found."),
    (UPDATE_EVENT, {"event_id": "00000001", "field": "event_name", "new_value": "x"}, "Event updated successfully."),
    (VISITOR, {}, "Visitor ID not provided."),
    (VISITOR, {"visitor_id": "9"}, "Visitor not found."),
    (PLOT, NEW_PLOT | changed(time_min=""), "Start date not provided."),
    (PLOT, NEW_PLOT | changed(time_max=""), "End date not provided."),
    (PLOT, NEW_PLOT | changed(value_to_plot="mood"), f"Value to plot must be one of {VALUES}"),
    (PLOT, NEW_PLOT | changed(plot_type="pie"), "Plot type must be one of 'bar', 'line', 'scatter', or 'histogram'"),
    (PLOT, NEW_PLOT, "plots/2023-11-01_2023-11-02_user_engaged_bar.png"),
    (GET_TASK, {"field": "board"}, "Task ID not provided."),
    (GET_TASK, {"task_id": "00000001"}, "Field not provided."),
    (GET_TASK, {"task_id": "00000001", "field": "colour"}, "Field not found."),
    (GET_TASK, {"task_id": "1", "field": "board"}, "Task not found."),
    (GET_TASK, {"task_id": "00000001", "field": "board"}, {"board": "Design"}),
    (SEARCH_TASKS, {}, "No search parameters provided."),
    (SEARCH_TASKS, {"task_name": ""}, "No search parameters provided."),
    (SEARCH_TASKS, {"assigned_to_email": "ann"}, "Invalid email format for assigned_to_email."),
    (SEARCH_TASKS, {"task_name": "nothing"}, []),
    (CREATE_TASK, NEW_TASK | changed(due_date=""), "Missing task details."),
    (CREATE_TASK, NEW_TASK | changed(assigned_to_email=EVE), BAD_ASSIGNEE),
    (CREATE_TASK, NEW_TASK | changed(list_name="backlog"), BAD_LIST),
    (CREATE_TASK, NEW_TASK | changed(board="design"), BAD_BOARD),
    (CREATE_TASK, NEW_TASK, "00000002"),
    (DELETE_TASK, {}, "Task ID not provided."),
    (DELETE_TASK, {"task_id": "1"}, "Task not found."),
    (DELETE_TASK, {"task_id": "00000001"}, "Task deleted successfully."),
    (UPDATE_TASK, {"task_id": "00000001", "field": "board"}, "Task ID, field, or new value not provided."),
    (UPDATE_TASK, {"task_id": "nobody's", "field": "board", "new_value": "design"}, BAD_BOARD),
    (UPDATE_TASK, {"task_id": "nobody's", "field": "list_name", "new_value": "done"}, BAD_LIST),
    (UPDATE_TASK, {"task_id": "nobody's", "field": "assigned_to_email", "new_value": EVE}, BAD_ASSIGNEE),
    (UPDATE_TASK, {"task_id": "1", "field": "board", "new_value": "Design"}, "Task not found."),
    (UPDATE_TASK, {"task_id": "00000001", "field": "colour", "new_value": "red"}, "Field not valid."),
    (UPDATE_TASK, {"task_id": "00000001", "field": "task_id", "new_value": "x"}, "Task updated successfully."),
    (SEARCH_CUSTOMERS, {}, "No search parameters provided. Please provide at least one parameter."),
    (SEARCH_CUSTOMERS, {"page": 2}, "No search parameters provided. Please provide at least one parameter."),
    (SEARCH_CUSTOMERS, {"customer_name": "nobody"}, "No customers found."),
    (UPDATE_CUSTOMER, {"customer_id": "1", "field": "notes"}, "Customer ID, field, or new value not provided."),
    (
        UPDATE_CUSTOMER,
        {"customer_id": "00000001", "field": "status", "new_value": "won"},
        f"Status not valid. Please choose from: {STATUSES}",
    ),
    (
        UPDATE_CUSTOMER,
        {"customer_id": "00000001", "field": "product_interest", "new_value": "Cake"},
        f"Product interest not valid. Please choose from: {PRODUCTS}",
    ),
    (
        UPDATE_CUSTOMER,
        {"customer_id": "00000001", "field": "colour", "new_value": "red"},
        f"Field not valid. Please choose from: {CUSTOMER_FIELDS}",
    ),
    (UPDATE_CUSTOMER, {"customer_id": "1", "field": "notes", "new_value": "x"}, "Customer not found."),
    (
        UPDATE_CUSTOMER,
        {"customer_id": "00000001", "field": "notes", "new_value": "x"},
        "Customer updated successfully.",
    ),
    (
        ADD_CUSTOMER,
        {"customer_name": "New", "status": "Lead"},
        "Please provide all required fields: customer_name, assigned_to_email, status.",
    ),
    (ADD_CUSTOMER, {"customer_name": "New", "assigned_to_email": ANN, "status": "odd"}, "00000002"),
    (DELETE_CUSTOMER, {}, "Customer ID not provided."),
    (DELETE_CUSTOMER, {"customer_id": "1"}, "Customer not found."),
    (DELETE_CUSTOMER, {"customer_id": "00000001"}, "Customer deleted successfully."),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), MESSAGES)
def test_a_tool_answers(name: str, arguments: dict[str, Any], expected: Any) -> None:
    assert call(small_office(), name, **arguments) == expected
