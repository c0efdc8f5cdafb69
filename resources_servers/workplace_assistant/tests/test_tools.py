"""What each tool does, on tables made for the purpose. Its messages are in `test_messages.py`."""

from collections.abc import Iterator
from typing import Any

import pytest

from resources_servers.workplace_assistant.arguments import is_time, parsed_time
from resources_servers.workplace_assistant.tables import Office
from resources_servers.workplace_assistant.tests.small_office import (
    ADD_CUSTOMER,
    ANN,
    BOB,
    CREATE_EVENT,
    CREATE_TASK,
    FORWARD,
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
    UPDATE_TASK,
    VISITOR,
    call,
    changed,
    failing,
    small_office,
)
from resources_servers.workplace_assistant.toolbox import TOOLS, call_tool, may_take_long


@pytest.fixture
def office() -> Office:
    return small_office()


def test_there_are_27_tools() -> None:
    assert len(TOOLS) == 27


def found(result: dict[str, Any], name: str, column: str) -> list[str]:
    return [row[column] for row in result[name]]


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ({}, ["00000001", "00000002", "00000000"]),
        ({"query": "BUDGET"}, ["00000001", "00000000"]),
        ({"query": "budget  sam"}, ["00000000"]),
        ({"query": "(draft)"}, ["00000000"]),
        ({"query": "ann.archer"}, ["00000002", "00000000"]),
        ({"date_min": "2023-11-02"}, ["00000001", "00000002"]),
        ({"date_max": "2023-11-02"}, ["00000002", "00000000"]),
        ({"date_min": "2023-11-03", "date_max": "2023-11-03"}, ["00000001"]),
    ],
)
def test_emails_are_found_by_words_and_days(office: Office, arguments: dict[str, Any], ids: list[str]) -> None:
    result = call(office, SEARCH_MAIL, **arguments)
    assert found(result, "emails", "email_id") == ids
    assert result["pagination"]["total_emails"] == len(ids)


@pytest.mark.parametrize("bad", [{"date_min": "soon"}, {"page_size": 0}, {"page": "one"}, {"query": 5}])
def test_a_search_of_emails_says_what_is_wrong(office: Office, bad: dict[str, Any]) -> None:
    assert call(office, SEARCH_MAIL, **bad).startswith("Error searching emails: ")


@pytest.mark.parametrize(
    ("page", "page_size", "clamped", "count"), [(1, 2, 1, 2), (2, 2, 2, 1), (9, 2, 2, 1), (0, 2, 1, 2), (-3, 5, 1, 3)]
)
def test_a_page_is_clamped(office: Office, page: int, page_size: int, clamped: int, count: int) -> None:
    result = call(office, SEARCH_MAIL, page=page, page_size=page_size)
    assert len(result["emails"]) == count
    total_pages = 2 if page_size == 2 else 1
    expected = {"total_emails": 3, "page": clamped, "page_size": page_size, "total_pages": total_pages}
    assert result["pagination"] == expected


def test_a_page_of_no_rows_is_an_error(office: Office) -> None:
    assert call(office, SEARCH_EVENTS, page_size=0) == failing(SEARCH_EVENTS, "page_size must be at least 1")


def test_sending_appends_to_the_outbox(office: Office) -> None:
    call(office, SEND, recipient=ANN.upper(), subject="Hi", body="There")
    sent = ("3", "outbox", ANN, "Hi", "2023-11-30 23:59:00", "There")
    assert tuple(office.mails.rows[-1].values()) == sent
    call(office, FORWARD, email_id="00000000", recipient=BOB)
    expected = ("4", "outbox", BOB, "FW: Budget (draft)", "2023-11-30 23:59:00", "Dear Sam,\\nnumbers.")
    assert tuple(office.mails.rows[-1].values()) == expected
    call(office, REPLY, email_id="00000001", body="Thanks")
    assert tuple(office.mails.rows[-1].values()) == ("5", "outbox", BOB, "RE: Party", "2023-11-30 23:59:00", "Thanks")


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ({}, ["00000002", "00000001", "00000000"]),
        ({"query": "stand"}, ["00000002", "00000000"]),
        ({"query": "^re|ann"}, ["00000001", "00000000"]),
        ({"time_min": "2023-12-02 09:00:00"}, ["00000002", "00000001"]),
        ({"time_max": "2023-12-02 09:00:00"}, ["00000001", "00000000"]),
        ({"time_min": "12/02/2023 9am", "time_max": "Dec 2, 2023 9:00 AM"}, ["00000001"]),
    ],
)
def test_events_are_found_by_pattern_and_start(office: Office, arguments: dict[str, Any], ids: list[str]) -> None:
    assert found(call(office, SEARCH_EVENTS, **arguments), "events", "event_id") == ids


def test_an_event_is_stored_as_given_but_for_its_participant(office: Office) -> None:
    call(office, CREATE_EVENT, **NEW_EVENT | changed(event_start="2023-12-01T09:00:00", duration=45))
    stored = ("00000003", "Talk", "eve@x.example", "2023-12-01T09:00:00", 45)
    assert tuple(office.events.rows[-1].values()) == stored
    assert call(office, SEARCH_EVENTS, query="talk")["events"][0]["duration"] == 45


@pytest.mark.parametrize("name", ["analytics_total_visits_count", "analytics_traffic_source_count"])
def test_visits_are_counted_by_day(office: Office, name: str) -> None:
    assert list(call(office, name).items()) == [("2023-11-01", 1), ("2023-11-02", 2)]
    assert call(office, name, time_min="2023-11-02") == {"2023-11-02": 2}
    assert call(office, name, time_max="2023-11-01") == {"2023-11-01": 1}
    assert call(office, name, time_min="2024") == {}


def test_engaged_users_traffic_and_durations_are_counted_by_day(office: Office) -> None:
    assert call(office, "analytics_engaged_users_count") == {"2023-11-01": 0, "2023-11-02": 1}
    direct = call(office, "analytics_traffic_source_count", traffic_source="direct")
    assert direct == {"2023-11-01": 0, "2023-11-02": 1}
    average = call(office, "analytics_get_average_session_duration", time_min="2023-11-01", time_max="2023-11-02")
    assert average == {"2023-11-01": 5.0, "2023-11-02": 12.5}
    assert all(isinstance(value, float) for value in average.values())


def test_a_visitor_is_a_list_of_visits(office: Office) -> None:
    visits = call(office, VISITOR, visitor_id="0001")
    assert [visit["user_engaged"] for visit in visits] == [True, False]
    assert [visit["session_duration_seconds"] for visit in visits] == [10, 5]


def test_a_plot_is_recorded(office: Office) -> None:
    path = call(office, PLOT, **NEW_PLOT)
    assert [row["file_path"] for row in office.plots.rows] == [path]


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ({"task_name": "FIX|draw"}, ["00000000", "00000001"]),
        ({"assigned_to_email": ANN.upper()}, ["00000000"]),
        ({"assigned_to_email": "n.archer@x.example"}, []),
        ({"list_name": "in"}, ["00000001"]),
        ({"due_date": "2023-12"}, ["00000000", "00000001"]),
        ({"board": "end", "task_name": "logo"}, []),
    ],
)
def test_tasks_are_found(office: Office, arguments: dict[str, Any], ids: list[str]) -> None:
    assert [task["task_id"] for task in call(office, SEARCH_TASKS, **arguments)] == ids


def test_the_assignee_of_a_task_is_stored_in_lower_case(office: Office) -> None:
    call(office, CREATE_TASK, **NEW_TASK)
    call(office, UPDATE_TASK, task_id="00000001", field="assigned_to_email", new_value=ANN.upper())
    assert [task["assigned_to_email"] for task in office.tasks.rows] == [ANN] * 3


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"customer_name": "z|y"}, ["Zoe", "Yan"]),
        ({"customer_email": "YAN@"}, ["Yan"]),
        ({"product_interest": "ware"}, ["Zoe", "Yan"]),
        ({"status": "lead", "assigned_to_email": "ann"}, ["Zoe"]),
        ({"last_contact_date_min": "2023-11-20"}, ["Yan"]),
        ({"last_contact_date_max": "2023-11-11"}, ["Zoe"]),
        ({"last_contact_date_max": "2023-11-20"}, ["Zoe"]),
        ({"follow_up_by_min": "2023-12-11"}, ["Yan"]),
        ({"follow_up_by_max": "2023-12-11"}, ["Zoe"]),
    ],
)
def test_customers_are_found_in_the_order_of_the_table(
    office: Office, arguments: dict[str, Any], names: list[str]
) -> None:
    assert found(call(office, SEARCH_CUSTOMERS, **arguments), "customers", "customer_name") == names


def test_a_day_as_the_last_one_excludes_that_day(office: Office) -> None:
    assert call(office, SEARCH_CUSTOMERS, last_contact_date_max="2023-11-10") == "No customers found."


def test_a_customer_is_added_with_what_is_given(office: Office) -> None:
    call(office, ADD_CUSTOMER, customer_name="New", assigned_to_email=ANN.upper(), status="Lead", customer_email="A@B")
    added = office.customers.rows[-1]
    assert (added["assigned_to_email"], added["customer_email"], added["notes"]) == (ANN, "a@b", "")
    assert added["customer_phone"] is added["follow_up_by"] is added["product_interest"] is None


def test_a_customer_without_an_email_matches_no_search_for_one(office: Office) -> None:
    call(office, ADD_CUSTOMER, customer_name="New", assigned_to_email=ANN, status="Lead")
    assert found(call(office, SEARCH_CUSTOMERS, customer_email="."), "customers", "customer_name") == ["Zoe", "Yan"]
    assert call(office, SEARCH_CUSTOMERS, customer_name="New", follow_up_by_max="9") == "No customers found."


@pytest.mark.parametrize("field", ["customer_email", "assigned_to_email"])
def test_addresses_of_customers_are_stored_in_lower_case(office: Office, field: str) -> None:
    call(office, UPDATE_CUSTOMER, customer_id="00000001", field=field, new_value="EVE@X.example")
    assert office.customers.rows[1][field] == "eve@x.example"


def test_nulls_count_as_not_given(office: Office) -> None:
    assert call(office, SEARCH_TASKS, task_name=None, board="Design", due_date=None)[0]["task_id"] == "00000001"


def test_an_unknown_tool_and_an_unknown_argument_are_errors(office: Office) -> None:
    assert call(office, "email_burn") == failing("email_burn", "'email_burn'")
    assert call(office, SEND, to=ANN).startswith(failing(SEND, ""))
    assert "unexpected keyword argument 'to'" in call(office, SEND, to=ANN)


def wrong_arguments() -> Iterator[tuple[str, dict[str, Any]]]:
    values: list[Any] = [5, 1.5, True, [], [[]], {"a": 1}, "x" * 100_000, "\x00", "(", "\ud800"]
    names = ("name", "query", "email_id", "event_id", "field", "task_name", "customer_name", "recipient", "page")
    for value in values:
        yield from ((argument, {argument: value}) for argument in names)


@pytest.mark.parametrize("name", TOOLS)
def test_no_argument_crashes_a_tool(office: Office, name: str) -> None:
    for _, arguments in wrong_arguments():
        call_tool(office, name, arguments)
        call_tool(office, name, {**arguments, "event_id": "00000001", "field": "duration", "new_value": arguments})


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        (SEARCH_EVENTS, {"query": "stand-up"}, False),
        (SEARCH_EVENTS, {"query": "ann.archer@x.example"}, False),
        (SEARCH_EVENTS, {"query": "(a+)+$"}, True),
        (SEARCH_EVENTS, {"query": "x" * 2000}, True),
        (SEARCH_TASKS, {"board": "a*a*a*a*b"}, True),
        (SEARCH_MAIL, {"query": "a b " * 1000}, True),
        (SEND, {"body": "(x)*" * 1000}, False),
        (SEARCH_EVENTS, {"page": 5}, False),
    ],
)
def test_costly_searches_are_known_beforehand(name: str, arguments: dict[str, Any], expected: bool) -> None:
    assert may_take_long(name, arguments) is expected


@pytest.mark.parametrize(
    "written",
    [
        "2023-12-01 09:00:00",
        "2023-12-01T09:00:00",
        "2023-12-01T09:00:00Z",
        "2023-12-01 09:00",
        "12/01/2023 9am",
        "12/01/2023 09:00 AM",
        "1 December 2023 09:00",
        "December 1, 2023 9:00am",
        "2023/12/01 09:00",
    ],
)
def test_times_are_read_leniently(written: str) -> None:
    assert str(parsed_time(written)) == "2023-12-01 09:00:00"


@pytest.mark.parametrize("written", ["soon", "2023-13-01", "25:00", "", " ", "x" * 10**6, 5, None, ["2023-12-01"]])
def test_what_is_no_time(written: Any) -> None:
    assert not is_time(written)
