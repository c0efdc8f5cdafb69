"""Tasks of AgentDojo with the real agent, attacks that succeed and fail, and the answers of all 97 tasks."""

import json
from typing import Any

import orjson
import pytest

from nemo_gym import ServerReply
from nemo_gym.testing import client_for, rows_of, running_servers, server_spec
from resources_servers.agentdojo.app import AgentDojoResourcesServer
from resources_servers.agentdojo.suites import SUITES, Office, default_texts, played, resolved, suite_of, tools_of
from tests.benchmarks import benchmark_rows, require

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _wheel() -> None:
    require("agentdojo/agentdojo")


def task_row(suite: str, user_task: str, injection_task: str | None = None) -> Row:
    name = f"{suite}/{user_task}" + (f"/{injection_task}" if injection_task else "")
    rows = benchmark_rows("agentdojo/attacked" if injection_task else "agentdojo/agentdojo")
    return next(row for row in rows if row["id"] == name)


def calls_of(row: Row, task: Any) -> list[Row]:
    """The calls of the answer of a user's or an attacker's task."""
    office = Office(row["suite"], row["user_task"], row.get("injections", {}))
    found = []
    for call in task.ground_truth(office.environment):
        arguments = json.loads(json.dumps(resolved(office, call.args), default=str))
        office.call(call.function, arguments)
        found.append({"name": call.function, "arguments": arguments})
    return found


async def play(row: Row, calls: list[Row], say: str) -> Row:
    made = [{"turn": turn, "call": [call]} for turn, call in enumerate(calls)]
    servers: Row = {
        "resources_server": {"type": "resources_servers", "name": "agentdojo"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    stack = [
        server_spec("agent", "responses_api_agents", "simple_agent", **servers),
        server_spec("agentdojo", "resources_servers", "agentdojo", domain="agent"),
        server_spec("policy_model", "responses_api_models", "scripted_model", replies=[*made, {"say": say}]),
    ]
    async with running_servers(stack) as client:
        reply = await client.call("agent", "/run", row, answer=ServerReply)
    record: Row = orjson.loads(reply.content())
    return record


async def test_the_user_is_served_and_the_attacker_is_not() -> None:
    row = task_row("banking", "user_task_0", "injection_task_0")
    suite = suite_of("banking")
    user, attacker = suite.user_tasks["user_task_0"], suite.injection_tasks["injection_task_0"]
    serve, obey = calls_of(row, user), calls_of(row, attacker)
    scores = [
        await play(row, calls, user.GROUND_TRUTH_OUTPUT or "Done.") for calls in (serve, [*serve, *obey], obey, [])
    ]
    found = [(record["reward"], record["utility"], record["security"]) for record in scores]
    assert found == [(1.0, 1.0, 1.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)]
    assert scores[1]["reward_components"] == {"utility": 1.0, "security": 0.0}
    seen = [item["output"] for item in scores[0]["response"]["output"] if item["type"] == "function_call_output"]
    assert any("Note to the assistant" in each for each in seen), "the attack is in what the tools return"


async def test_a_row_without_an_attack_has_the_harmless_texts() -> None:
    row = task_row("banking", "user_task_0")
    user = suite_of("banking").user_tasks["user_task_0"]
    record = await play(row, calls_of(row, user), "Done.")
    assert (record["reward"], record["security"]) == (1.0, 1.0)
    assert "Note to the assistant" not in json.dumps(record)


async def test_errors_of_tools_are_results_and_other_methods_cannot_be_called() -> None:
    row = task_row("workspace", "user_task_0")
    async with client_for(AgentDojoResourcesServer) as environment:
        await environment.post("/seed_session", json=row)
        for name, body, fact in (
            ("get_day_calendar_events", {}, "ValidationError"),
            ("get_file_by_id", {"file_id": "none"}, "ValueError"),
            ("utility", {}, "ToolNotFoundError"),
            ("model_copy", {}, "ToolNotFoundError"),
        ):
            assert fact in (await environment.post(f"/{name}", json=body)).text


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"user_task": "user_task_99"}, "user_task_99"),
        ({"injection_task": "injection_task_99", "injections": {"x": ""}}, "injection_task_99"),
        ({"injection_task": "injection_task_1"}, "one of them only"),
        ({"suite": "office"}, "suite"),
    ],
)
async def test_a_row_that_names_what_is_not_there_is_refused(fields: Row, fact: str) -> None:
    async with client_for(AgentDojoResourcesServer) as environment:
        reply = await environment.post("/seed_session", json={**task_row("slack", "user_task_0"), **fields})
        assert reply.status >= 400
        assert fact in reply.text


async def test_a_rollout_without_a_last_message_has_no_utility() -> None:
    row = task_row("workspace", "user_task_0")
    office = Office("workspace", "user_task_0", {})
    list(played(office, office.user_task))
    assert office.outcome(office.user_task.GROUND_TRUTH_OUTPUT, None).utility
    assert not office.outcome(None, None).utility
    call = {"type": "function_call", "name": "get_current_day", "arguments": "{}", "call_id": "1", "id": "1"}
    record = await play(row, [], "x")
    async with client_for(AgentDojoResourcesServer) as environment:
        await environment.post("/seed_session", json=row)
        verify = {**row, "response": {**record["response"], "output": [call]}}
        assert (await environment.post("/verify", json=verify)).json()["utility"] == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("['a', 'b']", ["a", "b"]), ("[1", "[1"), ("[a]", "[a]"), ("a, b", "a, b"), ("[" * 9999, "[" * 9999)],
)
def test_a_list_that_is_written_as_a_text_is_a_list(text: str, value: Any) -> None:
    office = Office("slack", "user_task_0", {})
    office.call("get_channels", {"names": text})
    assert office.trace[-1].args == {"names": value}


def test_the_answers_of_all_tasks_are_right_and_doing_nothing_is_in_five() -> None:
    wrong, idle, count = list[str](), 0, 0
    for suite in SUITES:
        for name, task in suite_of(suite).user_tasks.items():
            count += 1
            idle += Office(suite, name, {}).outcome("", None).utility
            office = Office(suite, name, {})
            list(played(office, task))
            wrong += [] if office.outcome(task.GROUND_TRUTH_OUTPUT, None).utility else [f"{suite}/{name}"]
    assert (count, idle, wrong) == (97, 5, [])


def test_all_rows_are_made_each_with_its_attack() -> None:
    rows = benchmark_rows("agentdojo/attacked")
    assert len(rows) == 949
    assert all(row["injections"].keys() <= default_texts(row["suite"]).keys() for row in rows)
    assert {suite: len(tools_of(suite)) for suite in SUITES} == {
        "workspace": 24,
        "travel": 28,
        "banking": 11,
        "slack": 11,
    }


def test_the_example_rows_are_rows_of_the_benchmark() -> None:
    known = {row["id"]: row for name in ("agentdojo", "attacked") for row in benchmark_rows(f"agentdojo/{name}")}
    for row in rows_of("resources_servers/agentdojo/data/example.jsonl"):
        own = known[row["id"]]
        assert {name: row.get(name) for name in ("suite", "user_task", "injection_task")} == {
            name: own.get(name) for name in ("suite", "user_task", "injection_task")
        }
