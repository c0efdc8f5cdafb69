"""The domains with a simulated user: conversations with the real agent, and the answers of all tasks."""

from typing import Any

import orjson
import pytest

from nemo_gym import ServerReply
from nemo_gym.data.hubs.pypi import Members, package_files
from nemo_gym.testing import client_for, rows_of, running_servers, server_spec
from resources_servers.tau2.app import Tau2ResourcesServer
from resources_servers.tau2.database import Database, ServiceDesk, computed
from resources_servers.tau2.domains import DESKS
from resources_servers.tau2.goal import FunctionCall, Goal, unsaid
from resources_servers.tau2.package import DOMAINS, PACKAGE, tables_of
from resources_servers.tau2.rows import tasks_of
from resources_servers.tau2.telecom import Telecom
from resources_servers.tau2.toolset import RefusedError
from tests.benchmarks import benchmark_rows

Row = dict[str, Any]
DATA = "resources_servers/tau2/data"
FILES = {"airline": "example", "retail": "retail_example", "user": "user_example"}
ROWS = {name: rows_of(f"{DATA}/{file}.jsonl") for name, file in FILES.items()}
STORES = [*ROWS["airline"], *ROWS["retail"]]
"""The rows that are judged by a database."""
HELLO: Row = {"turn": 0, "say": "Hello."}
THANKS: Row = {"user": "Done", "say": "Thank you. ###STOP###"}


async def play(row: Row, policy: list[Row], user: list[Row]) -> Row:
    """The record of a conversation of two scripted models."""
    servers: Row = {
        "resources_server": {"type": "resources_servers", "name": "tau2"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "user_model_server": {"type": "responses_api_models", "name": "user_model"},
    }
    stack = [
        server_spec("agent", "responses_api_agents", "multi_turn_agent", **servers),
        server_spec("tau2", "resources_servers", "tau2", domain="agent"),
        server_spec("policy_model", "responses_api_models", "scripted_model", replies=policy),
        server_spec("user_model", "responses_api_models", "scripted_model", replies=user),
    ]
    async with running_servers(stack) as client:
        reply = await client.call("agent", "/run", row, answer=ServerReply)
    record: Row = orjson.loads(reply.content())
    return record


def script(row: Row, say: str) -> list[Row]:
    """A policy that takes the expected actions and then says something."""
    made = [{"turn": turn, "call": [each]} for turn, each in enumerate(row["actions"])]
    return [*made, {"say": say}]


@pytest.mark.parametrize("row", STORES, ids=lambda row: f"{row['domain']}_{row['id']}")
async def test_what_the_user_wants_is_rewarded_if_it_is_done_and_said(row: Row) -> None:
    said = f"Done. {' '.join(row['communicate'])}"
    record = await play(row, script(row, said), [THANKS, HELLO])
    assert (record["reward"], record["failed"], record["tool_calls"]) == (1.0, None, len(row["actions"]))
    assert record["response"]["ended_by"] == "user"
    idle = await play(row, [{"say": said}], [THANKS, HELLO])
    assert (idle["reward"], idle["failed"]) == (0.0, "database")
    if row["communicate"]:
        silent = await play(row, script(row, "Done."), [THANKS, {"turn": 0, "say": said.removeprefix("Done. ")}])
        assert (silent["reward"], silent["failed"]) == (0.0, row["communicate"][0]), (
            "what the user says does not count"
        )


async def test_the_user_repairs_the_phone_and_the_agent_the_contract() -> None:
    roaming = ROWS["user"][0]
    line = {"customer_id": "C1", "line_id": "L1"}
    policy: list[Row] = [
        {"user": "no data", "turn": 0, "call": [{"name": "toggle_roaming", "arguments": {}}]},
        {"user": "no data", "turn": 1, "call": [{"name": "enable_roaming", "arguments": line}]},
        {"user": "no data", "say": "Switch roaming on, please."},
        {"say": "Done?"},
    ]
    user: list[Row] = [
        THANKS,
        {"user": "Switch", "turn": 0, "call": [{"name": "enable_roaming", "arguments": line}]},
        {"user": "Switch", "turn": 1, "call": [{"name": "toggle_roaming", "arguments": {}}]},
        {"user": "Switch", "say": "I have done it."},
        {"say": "I have no data."},
    ]
    record = await play(roaming, policy, user)
    assert (record["reward"], record["tool_calls"]) == (1.0, 2), "neither has the tools of the other"
    lazy = await play(roaming, policy, [THANKS, {"user": "Switch", "say": "I have done it."}, user[-1]])
    assert (lazy["reward"], lazy["failed"]) == (0.0, "assert_mobile_data_status")


async def test_a_side_cannot_call_tools_of_the_other_in_the_environment() -> None:
    async with client_for(Tau2ResourcesServer) as environment:
        await environment.post("/seed_session", json=ROWS["user"][0])
        assert "no tool" in (await environment.post("/toggle_roaming", json={})).text
        assert "no tool" not in (await environment.post("/get_data_usage", json={})).text
        await environment.post("/seed_session", json=ROWS["airline"][0])
        for name in ("failure", "call", "_expected", "check_status_bar", "find"):
            assert "no tool" in (await environment.post(f"/{name}", json={})).text


async def test_rows_whose_beginning_or_judgement_is_unclear_are_refused() -> None:
    row = ROWS["airline"][0]
    call = {"type": "function_call", "name": "get_user_details", "arguments": "{}", "call_id": "1"}
    given = {**row["responses_create_params"], "input": [*row["responses_create_params"]["input"], call]}
    assertion = {"env_type": "user", "func_name": "assert_can_send_mms", "arguments": {"expected_status": True}}
    async with client_for(Tau2ResourcesServer) as environment:
        for wrong, fact in (
            ({**row, "responses_create_params": given}, "tool calls"),
            ({**row, "actions": []}, "before anything is done"),
            ({**row, "assertions": [assertion]}, "database"),
        ):
            assert fact in (await environment.post("/seed_session", json=wrong)).text


def desk_of(row: Row) -> ServiceDesk:
    return DESKS[row["domain"]](row.get("database") or tables_of(row["domain"]))


@pytest.mark.parametrize(
    ("row", "name", "arguments", "fact"),
    [
        (ROWS["airline"][0], "send_certificate", {"user_id": "nobody", "amount": 100}, "no user nobody"),
        (ROWS["airline"][3], "book_reservation", {"cabin": "basic_economy"}, "seats"),
        (ROWS["airline"][3], "book_reservation", {"payment_methods": []}, "price is 120"),
        (
            ROWS["airline"][3],
            "book_reservation",
            {"payment_methods": [{"payment_id": "certificate_1", "amount": 60}] * 2},
            "has only 50",
        ),
        (
            ROWS["airline"][3],
            "book_reservation",
            {"payment_methods": [{"payment_id": "certificate_1", "amount": 50}] * 2},
            "no payment method",
        ),
        (ROWS["airline"][1], "update_reservation_flights", {"payment_id": "certificate_1"}, "certificate"),
        (ROWS["airline"][1], "update_reservation_flights", {"cabin": "first"}, "cabin"),
        (ROWS["airline"][4], "update_reservation_passengers", {"passengers": []}, "1 passengers"),
        (ROWS["retail"][0], "cancel_pending_order", {"order_id": "#D1"}, "delivered, not pending"),
        (ROWS["retail"][0], "cancel_pending_order", {"reason": "why not"}, "reason"),
        (ROWS["retail"][1], "return_delivered_order_items", {"item_ids": ["102", "102"]}, "has 1 items 102"),
        (ROWS["retail"][3], "modify_pending_order_items", {"new_item_ids": ["103"]}, "in stock"),
        (ROWS["retail"][3], "modify_pending_order_items", {"new_item_ids": ["202"]}, "in stock"),
        (ROWS["retail"][3], "modify_pending_order_items", {"new_item_ids": ["101"]}, "another"),
        (ROWS["retail"][3], "calculate", {"expression": "9**9**9"}, "computed"),
    ],
)
def test_what_a_tool_refuses_is_an_error_and_changes_nothing(row: Row, name: str, arguments: Row, fact: str) -> None:
    desk = desk_of(row)
    expected: Row = next((each["arguments"] for each in row["actions"] if each["name"] == name), {})
    answer = desk.call(name, {**expected, **arguments})
    assert fact in orjson.loads(answer)["error"]
    assert desk.database.is_equal(Database(row["database"]))


def test_a_rollout_changes_copies_and_compares_texts() -> None:
    tables = {"users": {"a": {"balance": 100.0}}}
    own, other = Database(tables), Database(tables)
    own.edit("users", "a")["balance"] = 100
    assert (tables["users"]["a"]["balance"], own.is_equal(other), other.is_equal(own)) == (100.0, False, False)
    other.edit("users", "a")["balance"] = 100
    assert own.is_equal(other)
    other.add("users", "b", {})
    assert not own.is_equal(other)
    assert not other.is_equal(own)


@pytest.mark.parametrize(
    ("expression", "value"), [("2 + 3 * 4", 14), ("(1.25 + 1.25) / -2", -1.25), ("0.1 + 0.2", 0.3), (" 7 ", 7)]
)
def test_expressions_are_computed(expression: str, value: float) -> None:
    assert computed(expression) == pytest.approx(value)


@pytest.mark.parametrize("expression", ["", "1/0", "a", "2**3", "1 +", "True", "'a'*9", "(" * 250, "1" * 400, "1j"])
def test_other_expressions_are_errors(expression: str) -> None:
    with pytest.raises(RefusedError):
        computed(expression)


def test_what_must_be_said_is_found_without_case_and_commas() -> None:
    assert unsaid("It costs 1,628 USD.", ["1628", "usd"]) is None
    assert unsaid("It costs 1628 USD.", ["1628", "1629"]) == "1629"


@pytest.mark.parametrize(("domain", "count", "idle"), [("airline", 50, 19), ("retail", 114, 7)])
def test_the_answers_of_all_tasks_are_right_and_doing_nothing_is_as_often_as_known(
    domain: str, count: int, idle: int
) -> None:
    rows = benchmark_rows(f"tau2_{domain}/tau2_{domain}")
    wrong, passed_by_nothing = list[str](), 0
    for row in rows:
        goal = Goal.model_validate(row)
        passed_by_nothing += desk_of(row).failure(goal, "") is None
        desk = desk_of(row)
        for each in goal.actions:
            desk.call(each.name, each.arguments)
        wrong += [] if desk.failure(goal, " ".join(goal.communicate)) is None else [row["id"]]
    assert (len(rows), wrong, passed_by_nothing) == (count, [], idle)


def test_the_answers_of_telecom_are_right_if_each_side_takes_its_own_actions() -> None:
    rows = benchmark_rows("tau2_telecom/tau2_telecom")
    tasks = {task["id"]: task for task in tasks_of(Members(package_files(PACKAGE), [f"{DOMAINS}/*"]), "telecom")}
    wrong = list[str]()
    for row in rows:
        beginning = [FunctionCall.model_validate(each) for each in row["beginning"]]
        world = Telecom(tables_of("telecom"), beginning, is_solo=False)
        for each in tasks[row["id"]]["evaluation_criteria"]["actions"]:
            world.call(each["name"], each["arguments"], is_user=each["requestor"] == "user")
        wrong += [] if world.failure(Goal.model_validate(row), "") is None else [row["id"]]
    assert (len(rows), wrong) == (114, [])


def test_rows_say_who_the_user_is_and_give_each_side_its_tools() -> None:
    counts = {"airline": (14, 0), "retail": (15, 0), "telecom": (13, 30)}
    for domain, tools in counts.items():
        row = benchmark_rows(f"tau2_{domain}/tau2_{domain}")[0]
        user = row["user"]
        assert (len(row["responses_create_params"]["tools"]), len(user["tools"])) == tools
        assert all(each["description"] for each in row["responses_create_params"]["tools"])
        assert "{persona}" in user["template"]
        assert "###TRANSFER###" not in user["template"]
        assert "Why you call" in user["persona"]
        assert user["persona"] not in str(row["responses_create_params"])
