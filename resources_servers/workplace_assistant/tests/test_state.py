"""When two offices are equal, line by line; and what model output of all kinds does to a replay."""

import json
from typing import Any

import pytest

from resources_servers.workplace_assistant.make_tables import FOLDER
from resources_servers.workplace_assistant.tables import Office, Table, equal_offices, equal_tables, load_office
from resources_servers.workplace_assistant.toolbox import READING, WRITING, replay

OFFICE = load_office(FOLDER)
ADDRESS = "mara.lindqvist@larkhill.example"
BUILDER = "mei.fong@larkhill.example"
Call = tuple[str, Any]


def after(*calls: Call) -> Office:
    texts = ((name, given if isinstance(given, str) else json.dumps(given)) for name, given in calls)
    return replay(OFFICE, texts)


def reward(predicted: list[Call], expected: list[Call]) -> float:
    return float(equal_offices(after(*predicted), after(*expected)))


def send(subject: Any = "Hello", body: Any = "Text", recipient: Any = ADDRESS) -> Call:
    return "email_send_email", {"recipient": recipient, "subject": subject, "body": body}


def delete_mail(number: int) -> Call:
    return "email_delete_email", {"email_id": f"{number:08}"}


def create_event(name: Any = "Talk", start: Any = "2023-12-01 09:00:00", duration: Any = "30") -> Call:
    given = {"event_name": name, "participant_email": ADDRESS, "event_start": start, "duration": duration}
    return "calendar_create_event", given


def delete_event(number: int) -> Call:
    return "calendar_delete_event", {"event_id": f"{number:08}"}


def update_event(field: str, value: Any, number: int = 7) -> Call:
    return "calendar_update_event", {"event_id": f"{number:08}", "field": field, "new_value": value}


def create_task(name: Any = "Index the user table", **fields: Any) -> Call:
    given = {"assigned_to_email": BUILDER, "list_name": "Backlog", "due_date": "2023-12-04", "board": "Back end"}
    return "project_management_create_task", {"task_name": name, **given, **fields}


def delete_task(number: int) -> Call:
    return "project_management_delete_task", {"task_id": f"{number:08}"}


def update_task(field: str, value: Any, number: int = 7) -> Call:
    return "project_management_update_task", {"task_id": f"{number:08}", "field": field, "new_value": value}


def add_customer(**fields: Any) -> Call:
    given = {"customer_name": "Alma Lund", "assigned_to_email": ADDRESS, "status": "Lead"}
    return "customer_relationship_manager_add_customer", {**given, **fields}


def delete_customer(number: int) -> Call:
    return "customer_relationship_manager_delete_customer", {"customer_id": f"{number:08}"}


def update_customer(field: str, value: Any, number: int = 7) -> Call:
    given = {"customer_id": f"{number:08}", "field": field, "new_value": value}
    return "customer_relationship_manager_update_customer", given


def plot(kind: str = "bar") -> Call:
    given = {"time_min": "2023-11-01", "time_max": "2023-11-30", "value_to_plot": "total_visits", "plot_type": kind}
    return "analytics_create_plot", given


READ: Call = ("email_search_emails", {"query": "budget"})
FAILING: Call = ("email_send_email", {"to": ADDRESS})


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([delete_mail(1), delete_mail(2)], [delete_mail(2), delete_mail(1)], id="deletes in any order"),
        pytest.param(
            [update_event("event_name", "A"), update_event("duration", "60", 8)],
            [update_event("duration", "60", 8), update_event("event_name", "A")],
            id="updates in any order",
        ),
        pytest.param([update_task("board", "Design")] * 2, [update_task("board", "Design")], id="an update twice"),
        pytest.param([READ, send(), READ], [send()], id="extra reads"),
        pytest.param([FAILING, send(), delete_mail(99999), FAILING], [send()], id="failing extra calls"),
        pytest.param([("no_such_tool", {}), send()], [send()], id="an unknown tool"),
        pytest.param([create_event(), delete_event(3)], [delete_event(3), create_event()], id="events in any order"),
        pytest.param([create_task(), delete_task(300)], [], id="a task created and deleted again"),
        pytest.param([add_customer(), delete_customer(200)], [], id="a customer added and deleted again"),
        pytest.param([send("HELLO", "tEXT", ADDRESS.upper())], [send()], id="case of a mail"),
        pytest.param([create_event("TALK")], [create_event()], id="case of an event"),
        pytest.param([add_customer(customer_name="ALMA lund")], [add_customer()], id="case of a name"),
        pytest.param([add_customer(customer_email=None)], [add_customer()], id="a null email is none"),
        pytest.param([add_customer(notes="")], [add_customer()], id="notes are empty by default"),
        pytest.param([("email_send_email", "{not json"), send()], [send()], id="unparsable arguments"),
        pytest.param([send(subject=float("nan")), send()], [send()], id="a call with NaN is not JSON"),
        pytest.param([create_event(duration=30)], [create_event(duration=30.0)], id="equal numbers"),
        pytest.param([add_customer(status=5)], [add_customer(status=5.0)], id="a status that is a number"),
        pytest.param([plot()], [plot()], id="a plot"),
    ],
)
def test_equal(predicted: list[Call], expected: list[Call]) -> None:
    assert reward(predicted, expected) == 1.0
    assert reward(expected, predicted) == 1.0


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        pytest.param([], [send()], id="nothing done"),
        pytest.param([send()], [], id="too much done"),
        pytest.param([send("A"), send("B")], [send("B"), send("A")], id="two mails swapped"),
        pytest.param([send(), delete_mail(3)], [delete_mail(3), send()], id="mails: create then delete another"),
        pytest.param([create_task(), delete_task(3)], [delete_task(3), create_task()], id="tasks"),
        pytest.param([add_customer(), delete_customer(3)], [delete_customer(3), add_customer()], id="customers"),
        pytest.param([add_customer(status="lead")], [add_customer()], id="case of a status"),
        pytest.param([add_customer(customer_email="")], [add_customer()], id="an empty email is one"),
        pytest.param([add_customer(notes=None)], [add_customer()], id="null notes are not empty ones"),
        pytest.param([plot(), plot()], [plot()], id="the same plot twice"),
        pytest.param([plot("line")], [plot("bar")], id="another plot"),
        pytest.param([create_event(duration=30)], [create_event(duration="30")], id="a number is no text"),
        pytest.param([create_event(duration=30)], [create_event(duration=60)], id="two numbers"),
        pytest.param([create_event(duration=True)], [create_event(duration=1)], id="a boolean is no number"),
        pytest.param([send(subject=5)], [send(subject=["a list"])], id="a number and a list"),
        pytest.param([add_customer(customer_phone=5551234)], [add_customer()], id="a number is not a missing cell"),
        pytest.param([add_customer(follow_up_by=[])], [add_customer()], id="a list is not a missing cell"),
        pytest.param([create_event(start="2023-12-01T09:00:00")], [create_event()], id="another form of a time"),
        pytest.param([add_customer(status=5)], [add_customer(status=6)], id="two numbers as a status"),
        pytest.param([create_event(), create_event("B")], [create_event("B"), create_event()], id="events swapped"),
        pytest.param([delete_event(3)], [delete_event(4)], id="another row"),
        pytest.param([send(), delete_mail(500)], [], id="a mail sent has an id without zeros"),
    ],
)
def test_different(predicted: list[Call], expected: list[Call]) -> None:
    assert reward(predicted, expected) == 0.0
    assert reward(expected, predicted) == 0.0


def test_ids_of_mails_are_not_padded_and_all_others_are() -> None:
    office = after(send(), send(), create_event(), create_task(), add_customer())
    assert [mail["email_id"] for mail in office.mails.rows[-2:]] == ["500", "501"]
    assert office.events.rows[-1]["event_id"] == "00000300"
    assert office.tasks.rows[-1]["task_id"] == "00000300"
    assert office.customers.rows[-1]["customer_id"] == "00000200"


def test_a_mail_sent_and_deleted_leaves_nothing() -> None:
    deleted = ("email_delete_email", {"email_id": "500"})
    assert reward([send(), deleted], []) == 1.0


def test_the_largest_id_is_the_largest_text() -> None:
    table = Table.numbered(["id"], [{"id": "999"}, {"id": "1000"}])
    assert table.next_id() == 1000


def test_labels_follow_pandas() -> None:
    first, *_, last = OFFICE.mails.labels
    assert (first, last) == (0, 499)
    missing = after(delete_mail(3)).mails.labels
    assert len(missing) == 499
    assert missing[-1] == 499
    assert after(delete_mail(3), send()).mails.labels == tuple(range(500))
    assert after(delete_event(3), create_event(), create_event()).events.labels[-2:] == (0, 0)


@pytest.mark.parametrize("cells", [("x", None), (None, ""), ("x", "y"), ("1", 1)])
def test_cells_that_differ_make_tables_differ(cells: tuple[Any, Any]) -> None:
    one, other = (Table.numbered(["notes"], [{"notes": cell}]) for cell in cells)
    assert not equal_tables(one, other)


def test_other_columns_or_labels_make_tables_differ() -> None:
    table = Table.numbered(["a"], [{"a": "x"}])
    assert equal_tables(table, Table.numbered(["a"], [{"a": "X"}]))
    assert not equal_tables(table, Table.numbered(["b"], [{"b": "x"}]))
    assert not equal_tables(table, Table(("a",), ({"a": "x"},), (7,)))
    assert not equal_tables(table, Table(("a",)))


def test_a_replay_leaves_the_loaded_tables_as_they_are() -> None:
    before = OFFICE.fork()
    after(send(), delete_mail(1), create_event(), update_task("board", "Design"), add_customer(), plot())
    assert before == OFFICE


def test_what_a_call_changes_shares_all_other_rows() -> None:
    changed = after(update_customer("notes", "New.", 5)).customers
    assert sum(new is not old for new, old in zip(changed.rows, OFFICE.customers.rows, strict=True)) == 1
    assert after(update_customer("notes", "New.", 5)).mails is OFFICE.mails


DEEP = "[" * 100_000
HOSTILE = [
    *("", "null", "[]", "7", '"text"', DEEP, "{" * 1000, '{"a": 1e999}', '{"subject": NaN}', '{"office": 1}'),
    '{"recipient": {}, "subject": [[]], "body": 1}',
    '{"recipient": "a@b.c", "subject": "s", "body": "b", "extra": 1}',
    '{"email_id": ["00000001"], "body": "x"}',
    '{"event_id": {"a": 1}, "field": ["event_name"], "new_value": "x"}',
    '{"event_id": "00000001", "field": "event_id", "new_value": "x"}',
    '{"task_id": 1, "field": {}, "new_value": []}',
    '{"task_id": "00000001", "field": "assigned_to_email", "new_value": 5}',
    '{"task_id": "00000001", "field": "assigned_to_email", "new_value": "stranger@larkhill.example"}',
    '{"customer_id": 1.5, "field": "customer_email", "new_value": 5}',
    '{"customer_name": "x", "assigned_to_email": 5, "status": "Lead"}',
    '{"self": 1, "office": 2}',
    f'{{"email_id": {"9" * 5000}}}',
    '{"event_name": "x", "participant_email": "a", "event_start": "%s", "duration": "1"}' % ("9" * 100_000),
    '{"event_name": "x", "participant_email": "a", "event_start": "2023-12-01", "duration": "%s"}' % ("9" * 5000),
]


@pytest.mark.parametrize("arguments", HOSTILE)
def test_hostile_arguments_change_nothing(arguments: str) -> None:
    for name in ("verify", "__class__", *READING, *WRITING):
        assert equal_offices(replay(OFFICE, [(name, arguments)]), OFFICE), name


def test_a_deep_status_is_compared_without_a_crash() -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    assert reward([add_customer(status=deep)], [add_customer()]) == 0.0


def test_reading_tools_are_those_that_do_not_write() -> None:
    for name, function in READING.items():
        office = OFFICE.fork()
        function(office)
        assert office == OFFICE, name
