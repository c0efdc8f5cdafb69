"""The server: sessions, hostile calls, scoring; rows solved and cheated on through the agent."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.testing import calls, client_for, example_row, message, response_of, rows_of, says, server_spec
from resources_servers.workplace_assistant.app import WorkplaceAssistantResourcesServer
from resources_servers.workplace_assistant.generate import generate_rows
from resources_servers.workplace_assistant.make_tables import FOLDER, make_tables
from resources_servers.workplace_assistant.schemas import tool_schemas
from resources_servers.workplace_assistant.tables import load_office
from resources_servers.workplace_assistant.toolbox import TOOLS
from tests.example_rows import WITH_PUBLIC_DATA, own_rows, public_rows
from tests.stacks import rollout_of

OWN_ROWS, PUBLIC_ROWS = own_rows("workplace_assistant"), public_rows("workplace_assistant")
PUBLIC_TABLES = PUBLIC_ROWS.parent / "csv_data"
SEND = {"recipient": "mara.lindqvist@larkhill.example", "subject": "Zebra", "body": "Stripes."}


def row(*actions: tuple[str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    truth = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in actions]
    named = {"id": 0, "category": "workplace_assistant_email", "environment_name": "workplace_assistant"}
    return example_row(**{"ground_truth": truth, **named, **fields})


async def verified(body: dict[str, Any], **config: Any) -> Any:
    async with client_for(WorkplaceAssistantResourcesServer, **config) as environment:
        return await environment.post("/verify", json=body)


async def test_a_tool_needs_a_seeded_session() -> None:
    async with client_for(WorkplaceAssistantResourcesServer) as environment:
        refused = await environment.post("/email_send_email", json=SEND)
        assert refused.status == 400
        assert refused.json() == {"detail": "Session not initialized. Please call seed_session first."}
        await environment.post("/seed_session", json=row())
        assert (await environment.post("/email_send_email", json=SEND)).json() == {
            "output": "Email sent successfully."
        }


async def test_sessions_do_not_see_each_others_changes_and_end_with_the_rollout() -> None:
    async with client_for(WorkplaceAssistantResourcesServer) as first:
        second = first.another()
        for client in (first, second):
            await client.post("/seed_session", json=row())
        await first.post("/email_send_email", json=SEND)
        search = {"query": "zebra"}
        found = (await first.post("/email_search_emails", json=search)).json()["output"]
        assert [mail["email_id"] for mail in found["emails"]] == ["500"]
        assert (await second.post("/email_search_emails", json=search)).json()["output"] == "No emails found."
        sessions = first.server.core().sessions
        await first.request("DELETE", "/session")
        await second.request("DELETE", "/session")
        assert not sessions._sessions


async def test_missing_cells_are_null() -> None:
    async with client_for(WorkplaceAssistantResourcesServer) as environment:
        await environment.post("/seed_session", json=row())
        search = {"customer_name": ".", "page_size": 200}
        answer = await environment.post("/customer_relationship_manager_search_customers", json=search)
        phones = [customer["customer_phone"] for customer in answer.json()["output"]["customers"]]
    assert len(phones) == 200
    assert 0 < phones.count(None) < 200


async def test_errors_are_outputs() -> None:
    async with client_for(WorkplaceAssistantResourcesServer) as environment:
        await environment.post("/seed_session", json=row())
        unknown = await environment.post("/email_burn", json={"email_id": "1"})
        assert (unknown.status, unknown.json()) == (200, {"output": "Error executing tool 'email_burn': 'email_burn'"})
        for arguments in ({"to": "x"}, {"recipient": 5, "subject": [1], "body": {}}, {"recipient": "x" * 10**6}):
            answer = await environment.post("/email_send_email", json=arguments)
            assert (answer.status, list(answer.json())) == (200, ["output"])
        for path in ("/verify/x", "/../verify", "/__class__", "/calendar_search_events?x=1"):
            assert (await environment.post(path, json={})).status < 500
        assert (await environment.post("/email_send_email", content=b"no JSON")).status == 422


async def test_a_hostile_pattern_is_stopped_and_reported() -> None:
    async with client_for(WorkplaceAssistantResourcesServer, search_timeout_s=0.5) as environment:
        await environment.post("/seed_session", json=row())
        await environment.post("/calendar_create_event", json=long_event())
        hostile = await environment.post("/calendar_search_events", json={"query": "(a+)+$"})
        output = "Error executing tool 'calendar_search_events': the search took too long"
        assert hostile.json() == {"output": output}
        fine = await environment.post("/calendar_search_events", json={"query": "^a+b$"})
        assert [event["duration"] for event in fine.json()["output"]["events"]] == ["5"]
        invalid = await environment.post("/calendar_search_events", json={"query": "("})
        assert invalid.json()["output"].startswith("Error executing tool 'calendar_search_events': ")


def long_event() -> dict[str, str]:
    name = "a" * 60 + "b"
    return {"event_name": name, "participant_email": "x", "event_start": "2023-12-01", "duration": "5"}


@pytest.mark.parametrize(
    ("ground_truth", "output", "reward"),
    [
        ([], [], 0.0),
        ([], [message(" ")], 0.0),
        ([], [message("<think>x")], 0.0),
        ([], [message("x</think> ")], 0.0),
        ([], [message("<think>Nothing to do.</think>\u200b...")], 0.0),
        ([], [message("<think>x</think>There is nothing to do.")], 1.0),
        ([], [calls("email_send_email", {"to": "x"})], 0.0),
        ([], [message("There is nothing to do.")], 1.0),
        ("", [], 0.0),
        ("", [message("There is nothing to do.")], 1.0),
        ("", [calls("email_send_email", SEND), message("Done.")], 0.0),
        ("", [calls("email_send_email", SEND)], 0.0),
        ([{"name": "email_send_email", "arguments": json.dumps(SEND)}], [calls("email_send_email", SEND)], 1.0),
        ([{"name": "email_send_email", "arguments": json.dumps(SEND)}], [calls("verify", SEND)], 0.0),
        ([{"name": "email_send_email", "arguments": json.dumps(SEND)}], [], 0.0),
    ],
)
async def test_the_reward_compares_the_tables(ground_truth: Any, output: list[dict[str, Any]], reward: float) -> None:
    answer = await verified({**row(ground_truth=ground_truth), "response": response_of(*output)})
    assert answer.json()["reward"] == reward


async def test_the_record_has_what_was_changed_and_what_was_to_be_changed() -> None:
    truth = [{"name": "email_delete_email", "arguments": '{"email_id": "00000000"}'}]
    event = {"event_name": "\ud800", "participant_email": "a@b.c", "event_start": "2023-12-13", "duration": 10**30}
    called = {"type": "function_call", "call_id": "c", "name": "calendar_create_event", "arguments": json.dumps(event)}
    scored = (await verified({**row(ground_truth=truth), "response": response_of(called)})).json()
    (made,) = scored["final_state"]["events"].values()
    assert (made["event_name"], made["duration"]) == ("?", str(10**30))
    assert scored["expected_state"] == {"mails": {"00000000": None}}


NOTHING_FOUND = {"email_id": "99999999"}


@pytest.mark.parametrize(
    "action",
    [
        {"name": "email_send_email", "arguments": "no JSON"},
        {"name": "email_send_email", "arguments": "[1]"},
        {"name": "email_send_email", "arguments": '{"subject": NaN}'},
        {"name": "email_send_email", "arguments": "[" * 100_000},
        {"name": "email_burn", "arguments": "{}"},
        {"name": "email_search_emails", "arguments": '{"query": "budget"}'},
        {"name": "email_delete_email", "arguments": json.dumps(NOTHING_FOUND)},
    ],
)
async def test_a_row_whose_calls_change_nothing_is_refused_from_the_start(action: dict[str, str]) -> None:
    async with client_for(WorkplaceAssistantResourcesServer) as environment:
        for response in (response_of(), says("Done."), response_of(calls("email_send_email", SEND))):
            body = {**row(ground_truth=[action]), "response": response}
            assert (await environment.post("/seed_session", json=body)).status == 422
            assert (await environment.post("/verify", json=body)).status == 422


async def test_thousands_of_calls_are_replayed_off_the_loop() -> None:
    gold = calls("email_send_email", SEND)
    wasted = [calls("email_delete_email", {"email_id": f"{number:08}x"}) for number in range(1000)]
    body = row(("email_send_email", SEND))
    assert (await verified({**body, "response": response_of(*wasted, gold)})).json()["reward"] == 1.0
    many = response_of(*[gold] * 5_000)
    assert (await verified({**body, "response": many}, replay_timeout_s=0.05)).json()["reward"] == 0.0


async def test_what_was_done_in_the_session_does_not_count() -> None:
    async with client_for(WorkplaceAssistantResourcesServer) as environment:
        await environment.post("/seed_session", json=row())
        await environment.post("/email_send_email", json=SEND)
        body = {**row(("email_send_email", SEND)), "response": says("Sent.")}
        assert (await environment.post("/verify", json=body)).json()["reward"] == 0.0


@pytest.mark.parametrize("field", ["id", "ground_truth", "category", "environment_name"])
async def test_every_field_of_a_row_is_required(field: str) -> None:
    body = {name: value for name, value in row().items() if name != field}
    assert (await verified({**body, "response": says("Done.")})).status == 422


async def test_tables_that_are_not_there_are_an_error_that_names_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No folder of tables"):
        await verified(row(), tables_dirpath="nowhere")
    with pytest.raises(ValueError, match=r"analytics_data\.csv"):
        await verified(row(), tables_dirpath=str(tmp_path))
    make_tables(tmp_path)
    visits = tmp_path / "processed/analytics_data.csv"
    whole = visits.read_text()
    visits.write_text(whole.splitlines()[0] + "\n2023-11-22,9197,16,nan,direct,False\n")
    with pytest.raises(ConfigError, match=r"'nan' as session_duration_seconds"):
        load_office(tmp_path)
    visits.write_text(whole)
    (tmp_path / "processed/emails.csv").write_text("id,text\n1,x\n")
    with pytest.raises(ConfigError, match="has the columns id, text"):
        load_office(tmp_path)


def test_the_tables_are_those_that_the_script_makes(tmp_path: Path) -> None:
    make_tables(tmp_path)
    files = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*.csv"))
    assert len(files) == 6
    for file in files:
        assert (tmp_path / file).read_bytes() == (FOLDER / file).read_bytes(), file


@pytest.mark.parametrize("folder", [FOLDER, pytest.param(PUBLIC_TABLES, marks=WITH_PUBLIC_DATA)])
def test_the_tables_have_the_shape_that_rows_rely_on(folder: Path) -> None:
    office = load_office(folder)
    sizes = [len(table.rows) for table in (office.mails, office.events, office.visits, office.tasks, office.customers)]
    assert sizes == [500, 300, 1000, 300, 200]
    assert len(office.directory) == 20
    for table in (office.mails, office.events, office.tasks, office.customers):
        ids = sorted(row[table.id_column] for row in table.rows)
        assert ids == [f"{number:08}" for number in range(len(ids))]
    assert {type(visit["user_engaged"]) for visit in office.visits.rows} == {bool}
    assert {type(visit["session_duration_seconds"]) for visit in office.visits.rows} == {int}
    assert all(customer["follow_up_by"].endswith(" 23:59:00") for customer in office.customers.rows)


@WITH_PUBLIC_DATA
def test_the_public_tables_are_read_whole() -> None:
    office = load_office(PUBLIC_TABLES)
    assert sum(customer["customer_phone"] is None for customer in office.customers.rows) == 100
    assert sum(customer["notes"] is None for customer in office.customers.rows) == 44
    with (PUBLIC_TABLES / "processed/emails.csv").open(newline="") as file:
        assert [dict(mail) for mail in csv.DictReader(file)] == list(office.mails.rows)
    assert "\\n" in office.mails.rows[0]["body"]


@WITH_PUBLIC_DATA
def test_our_schemas_offer_what_the_public_ones_do() -> None:
    def shape(tool: dict[str, Any]) -> Any:
        parameters = tool["parameters"]
        kinds = {name: argument["type"] for name, argument in parameters["properties"].items()}
        return tool["name"], kinds, parameters["required"], parameters["additionalProperties"], tool["strict"]

    public = rows_of(PUBLIC_ROWS)[0]["responses_create_params"]["tools"]
    assert [shape(tool) for tool in tool_schemas()] == [shape(tool) for tool in public]


def test_every_tool_is_described() -> None:
    assert {schema["name"] for schema in tool_schemas()} == set(TOOLS)


ROWS = [
    pytest.param(OWN_ROWS, str(FOLDER), id="own"),
    pytest.param(PUBLIC_ROWS, str(PUBLIC_TABLES), id="public", marks=WITH_PUBLIC_DATA),
]


@pytest.mark.parametrize(("file", "tables"), ROWS)
async def test_a_row_is_solved_by_its_ground_truth_and_by_nothing_less(file: Path, tables: str) -> None:
    async with client_for(WorkplaceAssistantResourcesServer, tables_dirpath=tables) as environment:
        for each in rows_of(file):
            gold = WorkplaceAssistantResourcesServer.gold_response(each)
            for output, reward in ((gold, 1.0), ([], 0.0), (gold[:-1], 0.0), (gold[::-1], 1.0)):
                answer = await environment.post("/verify", json={**each, "response": response_of(*output)})
                assert answer.json()["reward"] == reward


async def rollout(each: dict[str, Any], replies: list[dict[str, Any]], tables: str) -> dict[str, Any]:
    name = "workplace_assistant"
    environment = server_spec(name, "resources_servers", name, domain="agent", tables_dirpath=tables)
    return await rollout_of(environment, each, replies, max_steps=6)


@pytest.mark.parametrize(("file", "tables"), ROWS)
async def test_a_model_that_makes_the_expected_calls_is_rewarded(file: Path, tables: str) -> None:
    for each in rows_of(file):
        actions = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in each["ground_truth"]]
        look_up = {"call": [{"name": "company_directory_find_email_address", "arguments": {"name": "a"}}]}
        record = await rollout(each, [look_up, *({"call": [action]} for action in actions), {"say": "Done."}], tables)
        assert record["reward"] == 1.0
        outputs = [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]
        assert not [output for output in outputs if "Error" in output or "not found" in output]


@pytest.mark.parametrize("difficulty", [None, 1, 2, 3, 4, 5])
async def test_generated_rows_are_solved_by_their_ground_truth_alone(difficulty: int | None) -> None:
    rows = list(generate_rows(7, 12, difficulty))
    assert json.dumps(rows) == json.dumps(list(generate_rows(7, 12, difficulty)))
    assert [each["id"] for each in rows] == list(range(12))
    async with client_for(WorkplaceAssistantResourcesServer) as environment:
        for each in rows:
            gold = WorkplaceAssistantResourcesServer.gold_response(each)
            for output, reward in ((gold, 1.0), (gold[1:], 0.0)):
                answer = await environment.post("/verify", json={**each, "response": response_of(*output)})
                assert answer.json()["reward"] == reward, each["ground_truth"]


async def test_a_stored_prefix_is_continued_where_it_ended() -> None:
    """The first half of the expected calls is given with its outputs, the model makes the rest."""
    for each in generate_rows(5, 8, 3):
        actions = [{"name": call["name"], "arguments": call["arguments"]} for call in each["ground_truth"]]
        script: list[dict[str, Any]] = [*({"call": [action]} for action in actions), {"say": "Done."}]
        prefix = (await rollout(each, script, str(FOLDER)))["response"]["output"][: 2 * (len(actions) // 2)]
        assert prefix
        params = {**each["responses_create_params"], "input": [*each["responses_create_params"]["input"], *prefix]}
        begun = {**each, "responses_create_params": params}
        assert (await rollout(begun, script, str(FOLDER)))["reward"] == 1.0
        assert (await rollout(begun, [{"say": "Done."}], str(FOLDER)))["reward"] == 0.0
        params["input"][-1] = {**params["input"][-1], "output": "something else"}
        assert (await rollout(begun, script, str(FOLDER)))["error"]["cause"] == "input"


async def test_a_call_of_a_tool_that_the_row_does_not_offer_does_not_count() -> None:
    each = next(iter(generate_rows(5, 1, 1)))
    (action,) = each["ground_truth"]
    script: list[dict[str, Any]] = [
        {"call": [{"name": action["name"], "arguments": action["arguments"]}]},
        {"say": "Done."},
    ]
    offered = [tool for tool in tool_schemas() if tool["name"] != action["name"]]
    for tools, reward in ((tool_schemas(), 1.0), (offered, 0.0), ([], 0.0)):
        params = {**each["responses_create_params"], "tools": tools}
        record = await rollout({**each, "responses_create_params": params}, script, str(FOLDER))
        assert record["reward"] == reward


async def test_expected_calls_that_change_nothing_are_an_error_of_the_row() -> None:
    each = row(("email_delete_email", {"email_id": "99999999"}))
    record = await rollout(each, [{"status": 500}], str(FOLDER))
    assert record["error"]["cause"] == "input"
