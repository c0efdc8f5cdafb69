"""Repairs with the real agent, the two sides of the domain, and the answers of all 2,285 tasks."""

import gzip
from typing import Any

import orjson
import pytest

from nemo_gym import ServerReply
from nemo_gym.data.hubs.pypi import package_files
from nemo_gym.testing import client_for, example_row, response_of, rows_of, running_servers, server_spec
from resources_servers.tau2.app import Tau2ResourcesServer
from resources_servers.tau2.goal import ExpectedAction, FunctionCall, Goal, is_action, is_equal
from resources_servers.tau2.package import DOMAINS, PACKAGE, tables_of
from resources_servers.tau2.telecom import SOLO_TOOLS, Telecom
from tests.benchmarks import benchmark_rows

ROWS = {row["id"].removeprefix("ours_"): row for row in rows_of("resources_servers/tau2/data/solo_example.jsonl")}
ROWS["locked"] = {
    **ROWS["radios"],
    "beginning": [
        ROWS["radios"]["beginning"][0],
        {"env_type": "user", "func_name": "lock_sim_card", "arguments": {"mode": "pin"}},
    ],
    "assertions": [
        {"env_type": "user", "func_name": "assert_service_status", "arguments": {"expected_status": "no_service"}}
    ],
    "actions": [{"name": "transfer_to_human_agents", "arguments": {"summary": ""}}],
}
"""Nothing can be repaired here: what counts is the call, whatever its summary."""
LINE = {"customer_id": "C1", "line_id": "L1"}
REPAIRS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "roaming": [("toggle_roaming", {}), ("enable_roaming", LINE)],
    "used_up": [("refuel_data", {**LINE, "gb_amount": 1}), ("toggle_data_saver_mode", {})],
    "pictures": [
        ("reset_apn_settings", {}),
        ("reboot_device", {}),
        ("grant_app_permission", {"app_name": "messaging", "permission": "storage"}),
    ],
    "bill": [
        ("send_payment_request", {"customer_id": "C1", "bill_id": "B2"}),
        ("make_payment", {}),
        ("resume_line", LINE),
        ("reboot_device", {}),
    ],
    "radios": [("toggle_airplane_mode", {}), ("enable_roaming", LINE)],
    "locked": [("transfer_to_human_agents", {"summary": "The SIM card is locked."})],
}


async def play(row: dict[str, Any], calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The record of a rollout in which the model makes these calls, one after the other."""
    made = [{"turn": turn, "call": [{"name": name, "arguments": given}]} for turn, (name, given) in enumerate(calls)]
    servers: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "tau2"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    stack = [
        server_spec("agent", "responses_api_agents", "simple_agent", **servers),
        server_spec("tau2", "resources_servers", "tau2", domain="agent"),
        server_spec("policy_model", "responses_api_models", "scripted_model", replies=[*made, {"say": "Done."}]),
    ]
    async with running_servers(stack) as client:
        reply = await client.call("agent", "/run", row, answer=ServerReply)
    record: dict[str, Any] = orjson.loads(reply.content())
    return record


@pytest.mark.parametrize("name", ROWS)
async def test_a_repair_is_rewarded_and_each_part_of_it_is_needed(name: str) -> None:
    row, calls = ROWS[name], REPAIRS[name]
    record = await play(row, calls)
    assert (record["reward"], record["failed"], record["tool_calls"]) == (1.0, None, len(calls))
    for left_out in range(len(calls)):
        assert (await play(row, calls[:left_out] + calls[left_out + 1 :]))["reward"] == 0.0


@pytest.mark.parametrize(
    "call",
    [
        ("set_data_usage", {**LINE, "data_used_gb": 0.0}),
        ("simulate_network_search", {}),
        ("assert_mobile_data_status", {"expected_status": False}),
        ("search_network", {}),
        ("synchronise", {}),
        ("__init__", {}),
        ("verify", {"assertions": []}),
    ],
)
async def test_only_tools_can_be_called(call: tuple[str, dict[str, Any]]) -> None:
    record = await play(ROWS["used_up"], [call, ("toggle_data_saver_mode", {})])
    assert (record["reward"], record["tool_calls"]) == (0.0, 1)
    async with client_for(Tau2ResourcesServer) as environment:
        await environment.post("/seed_session", json=ROWS["used_up"])
        if call[0] != "verify":
            assert "error" in (await environment.post(f"/{call[0]}", json=call[1])).text


@pytest.mark.parametrize(
    ("name", "arguments", "fact"),
    [
        ("refuel_data", {**LINE, "gb_amount": -1}, "positive"),
        ("refuel_data", {**LINE, "gb_amount": "lots"}, "gb_amount"),
        ("refuel_data", {**LINE, "gb_amount": 1, "price": 0}, "price"),
        ("resume_line", LINE, "suspended"),
        ("suspend_line", {"customer_id": "C1", "line_id": "L2", "reason": ""}, "no line L2"),
        ("get_details_by_id", {"id": ""}, "no ID"),
        ("get_customer_by_phone", {"phone_number": "1"}, "no customer"),
        ("set_network_mode_preference", {"mode": "6g"}, "mode"),
    ],
)
def test_what_a_tool_refuses_is_an_error_and_changes_nothing(name: str, arguments: dict[str, Any], fact: str) -> None:
    world = world_of(ROWS["roaming"])
    before = str(world.carrier.tables), str(world.phone)
    assert fact in orjson.loads(world.call(name, arguments))["error"]
    assert (str(world.carrier.tables), str(world.phone)) == before


def world_of(row: dict[str, Any]) -> Telecom:
    tables = row.get("database") or tables_of("telecom")
    return Telecom(tables, [FunctionCall.model_validate(each) for each in row["beginning"]])


def failed(world: Telecom, row: dict[str, Any]) -> str | None:
    return world.failure(Goal.model_validate(row), "")


@pytest.mark.parametrize(
    ("expected", "arguments", "is_taken"),
    [
        ({"arguments": {"a": 1, "b": [1, 2]}}, {"a": 1.0, "b": [2, 1]}, True),
        ({"arguments": {"a": 1}}, {"a": 1, "b": 2}, False),
        ({"arguments": {"a": [1, 1]}}, {"a": [1, 2]}, False),
        ({"arguments": {"a": 1, "b": 2}, "compare_args": ["a"]}, {"a": 1, "b": 3}, True),
        ({"arguments": {"a": 1}, "compare_args": []}, {"a": 2}, True),
    ],
)
def test_an_action_is_taken_by_a_call_with_equal_arguments(
    expected: dict[str, Any], arguments: dict[str, Any], is_taken: bool
) -> None:
    assert is_action(ExpectedAction(name="f", **expected), "f", arguments) is is_taken
    assert not is_action(ExpectedAction(name="g", **expected), "f", arguments)
    assert is_equal({"a": [{"b": 1}]}, {"a": [{"b": 1.0}]})


async def test_a_row_that_is_solved_before_it_begins_is_refused() -> None:
    row = {**ROWS["locked"], "actions": []}
    async with client_for(Tau2ResourcesServer) as environment:
        assert "before anything is done" in (await environment.post("/seed_session", json=row)).text
        verify = await environment.post("/verify", json={**example_row(), "assertions": [], "response": response_of()})
        assert verify.status == 422


def test_the_tools_are_the_thirteen_of_the_carrier_and_the_thirty_of_the_phone() -> None:
    assert len({tool["name"] for tool in SOLO_TOOLS}) == len(SOLO_TOOLS) == 43
    assert all(tool["description"] for tool in SOLO_TOOLS)


def test_the_answers_of_all_tasks_are_right_and_doing_nothing_is_not() -> None:
    rows = {row["id"]: row for row in benchmark_rows("tau2_telecom_solo/full")}
    tasks = orjson.loads(gzip.decompress(package_files(PACKAGE).read(f"{DOMAINS}/telecom/tasks.json.gz")))
    wrong, passed_by_nothing = list[str](), list[str]()
    for task in tasks:
        row = rows[task["id"]]
        passed_by_nothing += [] if failed(world_of(row), row) else [task["id"]]
        world = world_of(row)
        errors = [world.call(each["name"], each["arguments"]) for each in task["evaluation_criteria"]["actions"]]
        wrong += [task["id"]] if failed(world, row) or any('"error"' in each for each in errors) else []
    assert (len(tasks), wrong, passed_by_nothing) == (2285, [], [])
    assert world_of(rows[tasks[0]["id"]]).carrier.tables is not tables_of("telecom")


def test_the_rows_to_train_on_have_no_task_of_the_benchmark() -> None:
    base = {row["id"] for row in benchmark_rows("tau2_telecom_solo/tau2_telecom_solo")}
    assert base == {row["id"] for row in benchmark_rows("tau2_telecom/tau2_telecom")}
    train = {row["id"] for row in benchmark_rows("tau2_telecom_solo/train")}
    assert (len(base), len(train), base & train) == (114, 2171, set())
