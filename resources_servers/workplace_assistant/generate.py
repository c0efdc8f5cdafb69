"""Rows from a seed, on the tables that ship with the environment. Each request has one right outcome."""

import json
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from random import Random
from typing import Any, NamedTuple

from nemo_gym.data.generate import distinct_rows
from resources_servers.workplace_assistant import analytics_tools, customer_tools, task_tools
from resources_servers.workplace_assistant.arguments import NOW
from resources_servers.workplace_assistant.make_tables import (
    ADDRESSES,
    BUILDERS,
    FIRST_NAMES,
    FOLDER,
    LAST_NAMES,
    MEETINGS,
    SALES,
    TODAY,
    task_name,
)
from resources_servers.workplace_assistant.schemas import tool_schemas
from resources_servers.workplace_assistant.tables import Office, Row, load_office

SYSTEM = (
    "You are an office assistant. It is Thursday, 2023-11-30, 23:59:00. Meetings start at 9:00 at the earliest and "
    "end at 18:00 at the latest. Do what you are asked to with the tools, and nothing else."
)
BODIES = (
    "Thank you, I will look at it tomorrow.",
    "Let us talk about it on Monday.",
    "Please send me the numbers.",
    "I agree, go ahead.",
    "Who else knows about this?",
)
NOTES = ("Prefers calls in the morning.", "Wants a discount.", "Knows our competitors well.", "Decides in January.")


class Request(NamedTuple):
    """Something to do: in which domain, in words, and by which calls."""

    domain: str
    text: str
    calls: list[tuple[str, dict[str, str]]]


MakeRequest = Callable[[Random, Office], Request]


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """Difficulty 1: one call. 2: look something up first. 3: the same change to several entries. 4: a request of
    difficulty 1 and one of difficulty 2. 5: one of difficulty 2 and one of difficulty 3."""
    office = load_office(FOLDER)
    made = distinct_rows(
        "workplace_assistant",
        lambda chance, level: _row(chance, office, level),
        seed=seed,
        count=count,
        difficulty=difficulty,
    )
    return ({"id": number, **row} for number, row in enumerate(made))


def _row(chance: Random, office: Office, level: int) -> dict[str, Any]:
    requests = [make(chance, office) for make in _chosen(chance, level)]
    domains = list(dict.fromkeys(request.domain for request in requests))
    if len(domains) < len(requests):  # the order of two changes to one table could matter
        return _row(chance, office, level)
    domain = domains[0] if len(domains) == 1 else "multi_domain"
    calls = [call for request in requests for call in request.calls]
    return {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": " ".join(request.text for request in requests)},
            ],
            "tools": tool_schemas(),
            "parallel_tool_calls": False,
            "temperature": 1.0,
        },
        "ground_truth": [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls],
        "category": f"workplace_assistant_{domain}",
        "environment_name": "workplace_assistant",
    }


def _chosen(chance: Random, level: int) -> list[MakeRequest]:
    parts = {1: [DIRECT], 2: [LOOK_UP], 3: [BULK], 4: [DIRECT, LOOK_UP], 5: [LOOK_UP, BULK]}
    return [chance.choice(part) for part in parts[level]]


def _first_name(address: str) -> str:
    return address.split(".")[0].title()


def _day(chance: Random) -> date:
    """A working day in the three weeks to come."""
    days = [TODAY + timedelta(days=offset) for offset in range(1, 21)]
    return chance.choice([day for day in days if day.weekday() < 5])


def _send(chance: Random, _office: Office) -> Request:
    recipient, subject, body = chance.choice(ADDRESSES), chance.choice(MEETINGS), chance.choice(BODIES)
    text = f"Send {_first_name(recipient)} an email with the subject '{subject}' and the text '{body}'"
    arguments = {"recipient": recipient, "subject": subject, "body": body}
    return Request("email", text, [("email_send_email", arguments)])


def _schedule(chance: Random, _office: Office) -> Request:
    name, participant, day = chance.choice(MEETINGS), chance.choice(ADDRESSES), _day(chance)
    time, minutes = f"{chance.randrange(9, 16):02}:{chance.choice(('00', '30'))}", chance.choice(("30", "60", "90"))
    text = f"Schedule '{name}' with {_first_name(participant)} on {day} at {time} for {minutes} minutes."
    start = f"{day} {time}:00"
    arguments = {"event_name": name, "participant_email": participant, "event_start": start, "duration": minutes}
    return Request("calendar", text, [("calendar_create_event", arguments)])


def _plot(chance: Random, _office: Office) -> Request:
    first = TODAY - timedelta(days=chance.randrange(30, 90))
    last = first + timedelta(days=chance.randrange(5, 30))
    value, kind = chance.choice(analytics_tools.PLOTTED), chance.choice(analytics_tools.PLOT_TYPES)
    text = f"Make a {kind} plot of {value} from {first} to {last}."
    arguments = {"time_min": str(first), "time_max": str(last), "value_to_plot": value, "plot_type": kind}
    return Request("analytics", text, [("analytics_create_plot", arguments)])


def _new_task(chance: Random, _office: Office) -> Request:
    board = chance.choice(task_tools.BOARDS)
    name, owner, due = task_name(chance, board), chance.choice(BUILDERS), _day(chance)
    text = f"Add the task '{name}' for {_first_name(owner)} to the backlog of the {board} board, due {due}."
    arguments = {"task_name": name, "assigned_to_email": owner, "list_name": "Backlog", "due_date": str(due)}
    return Request("project_management", text, [("project_management_create_task", {**arguments, "board": board})])


def _new_customer(chance: Random, _office: Office) -> Request:
    name, owner = f"{chance.choice(FIRST_NAMES)} {chance.choice(LAST_NAMES)}", chance.choice(SALES)
    status, product = chance.choice(customer_tools.STATUSES), chance.choice(customer_tools.PRODUCTS)
    text = (
        f"Add {name} as a customer of {_first_name(owner)} with the status {status}, "
        f"interested in {product}. We know nothing else yet."
    )
    arguments = {"customer_name": name, "assigned_to_email": owner, "status": status, "product_interest": product}
    return Request(CRM, text, [(f"{CRM}_add_customer", arguments)])


def _mail_from_somebody(chance: Random, office: Office) -> Row:
    """The newest mail from its sender."""
    sender = chance.choice([mail["sender/recipient"] for mail in office.mails.rows if mail["inbox/outbox"] == "inbox"])
    received = [
        mail for mail in office.mails.rows if mail["sender/recipient"] == sender and mail["inbox/outbox"] == "inbox"
    ]
    return max(received, key=lambda mail: str(mail["sent_datetime"]))


def _reply(chance: Random, office: Office) -> Request:
    mail, body = _mail_from_somebody(chance, office), chance.choice(BODIES)
    text = f"Reply to the last email that {_first_name(mail['sender/recipient'])} sent me with '{body}'"
    arguments = {"email_id": mail["email_id"], "body": body}
    return Request("email", text, [("email_reply_email", arguments)])


def _forward(chance: Random, office: Office) -> Request:
    mail = _mail_from_somebody(chance, office)
    recipient = chance.choice([address for address in ADDRESSES if address != mail["sender/recipient"]])
    sender = _first_name(mail["sender/recipient"])
    text = f"Forward the last email that {sender} sent me to {_first_name(recipient)}."
    return Request("email", text, [("email_forward_email", {"email_id": mail["email_id"], "recipient": recipient})])


def _rename_meeting(chance: Random, office: Office) -> Request:
    event = _next_meeting(chance, office)
    name = chance.choice([name for name in MEETINGS if name != event["event_name"]])
    text = f"Rename my next meeting with {_first_name(event['participant_email'])} to '{name}'."
    arguments = {"event_id": event["event_id"], "field": "event_name", "new_value": name}
    return Request("calendar", text, [("calendar_update_event", arguments)])


def _cancel_meeting(chance: Random, office: Office) -> Request:
    event = _next_meeting(chance, office)
    text = f"Cancel my next meeting with {_first_name(event['participant_email'])}."
    return Request("calendar", text, [("calendar_delete_event", {"event_id": event["event_id"]})])


def _next_meeting(chance: Random, office: Office) -> Row:
    """The first meeting to come of somebody who has one."""
    ahead = [event for event in office.events.rows if event["event_start"] > NOW]
    participant = chance.choice([event["participant_email"] for event in ahead])
    theirs = [event for event in ahead if event["participant_email"] == participant]
    return min(theirs, key=lambda event: str(event["event_start"]))


def _note(chance: Random, office: Office) -> Request:
    customer, note = chance.choice(office.customers.rows), chance.choice(NOTES)
    text = f"Replace the notes about our customer {customer['customer_name']} by '{note}'"
    arguments = {"customer_id": customer["customer_id"], "field": "notes", "new_value": note}
    return Request(CRM, text, [(f"{CRM}_update_customer", arguments)])


def _move_tasks(chance: Random, office: Office) -> Request:
    example = chance.choice(office.tasks.rows)
    same = ("assigned_to_email", "list_name", "board")
    found = [task for task in office.tasks.rows if all(task[column] == example[column] for column in same)]
    if not 2 <= len(found) <= MOST_CHANGES:
        return _move_tasks(chance, office)
    target = chance.choice([name for name in task_tools.LISTS if name != example["list_name"]])
    text = (
        f"Move all tasks of {_first_name(example['assigned_to_email'])} on the {example['board']} board from "
        f"'{example['list_name']}' to '{target}'."
    )
    tool, change = "project_management_update_task", {"field": "list_name", "new_value": target}
    return Request("project_management", text, [(tool, {"task_id": task["task_id"], **change}) for task in found])


def _hand_over_customers(chance: Random, office: Office) -> Request:
    example = chance.choice(office.customers.rows)
    same = ("assigned_to_email", "status", "product_interest")
    found = [row for row in office.customers.rows if all(row[column] == example[column] for column in same)]
    if not 2 <= len(found) <= MOST_CHANGES:
        return _hand_over_customers(chance, office)
    target = chance.choice([address for address in SALES if address != example["assigned_to_email"]])
    text = (
        f"Hand all customers of {_first_name(example['assigned_to_email'])} with the status {example['status']} who "
        f"are interested in {example['product_interest']} over to {_first_name(target)}."
    )
    tool, change = f"{CRM}_update_customer", {"field": "assigned_to_email", "new_value": target}
    return Request(CRM, text, [(tool, {"customer_id": row["customer_id"], **change}) for row in found])


def _postpone_tasks(chance: Random, office: Office) -> Request:
    example = chance.choice(office.tasks.rows)
    same = ("assigned_to_email", "due_date")
    found = [task for task in office.tasks.rows if all(task[column] == example[column] for column in same)]
    if not 2 <= len(found) <= MOST_CHANGES:
        return _postpone_tasks(chance, office)
    owner, due = _first_name(example["assigned_to_email"]), example["due_date"]
    later = str(_day(chance) + timedelta(days=21))
    text = f"Postpone all tasks of {owner} that are due on {due} to {later}."
    tool, change = "project_management_update_task", {"field": "due_date", "new_value": later}
    return Request("project_management", text, [(tool, {"task_id": task["task_id"], **change}) for task in found])


CRM = "customer_relationship_manager"
MOST_CHANGES = 3
"""So that an agent that is stopped after six steps can look up what it needs, and make all changes."""

DIRECT: list[MakeRequest] = [_send, _schedule, _plot, _new_task, _new_customer]
LOOK_UP: list[MakeRequest] = [_reply, _forward, _rename_meeting, _cancel_meeting, _note]
BULK: list[MakeRequest] = [_move_tasks, _hand_over_customers, _postpone_tasks]
