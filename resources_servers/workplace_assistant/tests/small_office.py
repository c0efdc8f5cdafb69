"""An office with a few rows of everything, and the names of its tools."""

from typing import Any

from resources_servers.workplace_assistant.tables import Office, Table
from resources_servers.workplace_assistant.toolbox import call_tool

ANN, BOB, EVE = "ann.archer@x.example", "bob.baker@x.example", "eve.ericson@x.example"
MAIL = ["email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body"]
EVENT = ["event_id", "event_name", "participant_email", "event_start", "duration"]
VISIT = ["date_of_visit", "visitor_id", "page_views", "session_duration_seconds", "traffic_source", "user_engaged"]
TASK = ["task_id", "task_name", "assigned_to_email", "list_name", "due_date", "board"]
CUSTOMER = [
    "customer_id",
    "assigned_to_email",
    "customer_name",
    "customer_email",
    "customer_phone",
    "last_contact_date",
    "product_interest",
    "status",
    "follow_up_by",
    "notes",
]


def table(columns: list[str], *rows: tuple[Any, ...]) -> Table:
    return Table.numbered(columns, (dict(zip(columns, row, strict=True)) for row in rows))


def small_office() -> Office:
    """A few rows of everything."""
    return Office(
        mails=table(
            MAIL,
            ("00000000", "inbox", ANN, "Budget (draft)", "2023-11-01 09:00:00", "Dear Sam,\\nnumbers."),
            ("00000001", "inbox", BOB, "Party", "2023-11-03 23:59:59", "Cake and budget."),
            ("00000002", "outbox", ANN, "Re", "2023-11-02 00:00:00", "Fine."),
        ),
        events=table(
            EVENT,
            ("00000000", "Stand-up", ANN, "2023-12-01 09:00:00", "30"),
            ("00000001", "Review", BOB, "2023-12-02 09:00:00", "60"),
            ("00000002", "Stand-up", BOB, "2023-12-03 09:00:00", "30"),
        ),
        visits=table(
            VISIT,
            ("2023-11-02", "0001", "1", 10, "direct", True),
            ("2023-11-01", "0001", "2", 5, "referral", False),
            ("2023-11-02", "0002", "3", 15, "referral", False),
        ),
        tasks=table(
            TASK,
            ("00000000", "Fix login", ANN, "Backlog", "2023-12-01", "Back end"),
            ("00000001", "Draw logo", BOB, "In Review", "2023-12-02", "Design"),
        ),
        customers=table(
            CUSTOMER,
            (
                *("00000000", ANN, "Zoe", "zoe@c.example", None, "2023-11-10 23:59:00"),
                *("Software", "Lead", "2023-12-10 23:59:00", None),
            ),
            (
                *("00000001", BOB, "Yan", "yan@c.example", "1", "2023-11-20 23:59:00"),
                *("Hardware", "Won", "2023-12-20 23:59:00", "Calls."),
            ),
        ),
        directory=(ANN, BOB, EVE),
    )


def call(office: Office, name: str, /, **arguments: Any) -> Any:
    return call_tool(office, name, arguments)


def failing(name: str, text: str) -> str:
    return f"Error executing tool '{name}': {text}"


FIND = "company_directory_find_email_address"
GET_MAIL, SEARCH_MAIL, SEND = "email_get_email_information_by_id", "email_search_emails", "email_send_email"
DELETE_MAIL, FORWARD, REPLY = "email_delete_email", "email_forward_email", "email_reply_email"
GET_EVENT, SEARCH_EVENTS = "calendar_get_event_information_by_id", "calendar_search_events"
CREATE_EVENT, DELETE_EVENT = "calendar_create_event", "calendar_delete_event"
UPDATE_EVENT = "calendar_update_event"
VISITOR, PLOT = "analytics_get_visitor_information_by_id", "analytics_create_plot"
GET_TASK, SEARCH_TASKS = "project_management_get_task_information_by_id", "project_management_search_tasks"
CREATE_TASK, DELETE_TASK = "project_management_create_task", "project_management_delete_task"
UPDATE_TASK = "project_management_update_task"
CRM = "customer_relationship_manager"
SEARCH_CUSTOMERS, UPDATE_CUSTOMER = f"{CRM}_search_customers", f"{CRM}_update_customer"
ADD_CUSTOMER, DELETE_CUSTOMER = f"{CRM}_add_customer", f"{CRM}_delete_customer"
NEW_EVENT = {
    "event_name": "Talk",
    "participant_email": "Eve@X.example",
    "event_start": "2023-12-04 10:00:00",
    "duration": "45",
}
NEW_TASK = {
    "task_name": "Test",
    "assigned_to_email": ANN.upper(),
    "list_name": "Backlog",
    "due_date": "2023-12-05",
    "board": "Design",
}
NEW_PLOT = {"time_min": "2023-11-01", "time_max": "2023-11-02", "value_to_plot": "user_engaged", "plot_type": "bar"}


def changed(**fields: Any) -> dict[str, Any]:
    return fields
