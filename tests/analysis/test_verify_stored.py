"""The calls of stored rollouts, made again in a fresh environment, lead to the same state: for every kind of agent."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
import pytest

from nemo_gym.analysis.reverify import calls_in_record, is_repeated, verified
from nemo_gym.client.call_log import Call
from nemo_gym.server_utils import ServerReply
from nemo_gym.testing import (
    ServerSpec,
    calls,
    example_row,
    message,
    response_of,
    rows_of,
    running_servers,
    server_spec,
    tool_output,
)


class Case(NamedTuple):
    environment: str
    agent: str
    row: dict[str, Any]
    replies: list[dict[str, Any]]
    names: list[str]
    """The calls that are made again."""
    config: Mapping[str, Any] = MappingProxyType({})


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": [{"name": name, "arguments": arguments}]}


def first_row(environment: str, index: int = 0) -> dict[str, Any]:
    return rows_of(f"resources_servers/{environment}/data/example.jsonl")[index]


HARNESS = """
import json, os, sys, urllib.request
def post(url, body):
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.loads(urllib.request.urlopen(request).read())
post(os.environ["OPENAI_BASE_URL"] + "/responses", {"input": "Hi"})
params = {"name": "increment_counter", "arguments": {"count": 7}}
post(os.environ["NEMO_GYM_MCP_URL"], {"id": 1, "method": "tools/call", "params": params})
"""
CASES = {
    "simple_agent": Case(
        "example_stateful_counter",
        "simple_agent",
        first_row("example_stateful_counter"),
        [{"turn": 0, **call("increment_counter", count=7)}, {"say": "9"}],
        ["increment_counter"],
    ),
    "environment answers": Case(
        "example_multi_turn",
        "multi_turn_agent",
        first_row("example_multi_turn"),
        [{"user": "first", "say": "24"}, {"say": "42"}],
        ["next_message"] * 3,
    ),
    "row begins": Case(
        "example_multi_turn",
        "multi_turn_agent",
        example_row("Guess.", secret="42", max_guesses=3),
        [{"user": "Guess", "say": "24"}, {"say": "42"}],
        ["next_message"] * 2,
    ),
    "simulated user": Case(
        "example_user_simulation",
        "multi_turn_agent",
        first_row("example_user_simulation", 1),
        [
            {"user": "How can I help", "say": "Help! I am 1002."},
            {"user": "Help!", "turn": 0, **call("look_up_account", customer_number="1002")},
            {"user": "Help!", "turn": 1, "say": "Please restart it."},
            {"user": "restart", "turn": 0, **call("restart_router")},
            {"user": "restart", "turn": 1, "say": "Done, I think."},
            {"user": "I think", "turn": 0, **call("test_line")},
            {"user": "I think", "turn": 1, "say": "Fine."},
            {"say": "###STOP###"},
        ],
        ["look_up_account", "restart_router", "test_line"],
        {"user_model_server": {"type": "responses_api_models", "name": "policy_model"}},
    ),
    "several policies": Case(
        "example_negotiation",
        "multi_policy_agent",
        first_row("example_negotiation"),
        [
            {"user": "listens", "turn": 0, **call("make_offer", price=140)},
            {"user": "listens", "turn": 1, "say": "I give 140."},
            {"user": "I give", "turn": 0, **call("accept_offer")},
            {"say": "Deal."},
        ],
        ["next_message", "make_offer", "next_message", "accept_offer", "next_message"],
    ),
    "harness": Case(
        "example_stateful_counter",
        "command_agent",
        first_row("example_stateful_counter"),
        [{"say": "Hm."}],
        ["increment_counter"],
        {"command": ["python3", "harness.py"], "files": {"harness.py": HARNESS}, "sandbox_provider": None},
    ),
}


def servers(case: Case) -> list[ServerSpec]:
    references: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "environment"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return [
        server_spec("agent", "responses_api_agents", case.agent, **references, **case.config),
        server_spec("environment", "resources_servers", case.environment, domain="agent"),
        server_spec("policy_model", "responses_api_models", "scripted_model", replies=case.replies),
    ]


@pytest.mark.parametrize("name", CASES)
async def test_calls_made_again_lead_to_the_same_reward(name: str) -> None:
    case = CASES[name]
    async with running_servers(servers(case)) as client:
        record = orjson.loads((await client.call("agent", "/run", case.row, answer=ServerReply)).content())
        assert record["reward"] == 1.0
        made_before = calls_in_record(case.row, record)
        assert [call.name for call in made_before] == [f"/{name}" for name in case.names]
        row = {**case.row, "responses_create_params": record["responses_create_params"]}

        async def score(made: list[Call]) -> tuple[float, list[str]]:
            found = await verified(
                client, "environment", row, made, lambda _: record["response"], timeout_s=60, what="This test"
            )
            return found.record["reward"], found.tool_outputs

        reward, outputs = await score(made_before)
        assert reward == 1.0
        assert [is_repeated(call, output) for call, output in zip(made_before, outputs, strict=True)] == [True] * len(
            made_before
        )
        assert not is_repeated(made_before[0], "Something else.")
        assert (await score([]))[0] == 0.0


def counted(count: int, call_id: str = "call_0") -> dict[str, Any]:
    return calls("increment_counter", f'{{"count": {count}}}', call_id=call_id)


def output(text: str, call_id: str = "call_0") -> dict[str, Any]:
    return tool_output(text, call_id=call_id)


@pytest.mark.parametrize(
    ("items", "made"),
    [
        ([counted(1), output("a"), counted(2), output("b")], [(1, "a"), (2, "b")]),
        ([counted(1), output("a"), counted(2)], [(1, "a")]),
        ([counted(1), counted(2), output("a"), output("b")], [(1, "a"), (2, "b")]),
        ([counted(1), message("Hm."), counted(2), output("b")], [(2, "b")]),
        ([counted(1), counted(2, "other"), output("b", "other"), output("a")], [(1, "a"), (2, "b")]),
        ([output("a"), counted(1)], []),
    ],
    ids=["in turn", "cut off", "at once", "never made", "in another order", "no call"],
)
def test_an_id_that_is_used_again_names_each_call_with_its_own_output(
    items: list[dict[str, Any]], made: list[tuple[int, str]]
) -> None:
    row = first_row("example_stateful_counter")
    found = calls_in_record(row, {**row, "response": response_of(*items)})
    assert [(orjson.loads(call.request)["count"], call.reply) for call in found] == made
