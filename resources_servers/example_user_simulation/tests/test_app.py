"""The example rows, played by scripted models through the real agent: with reward if the desk does its work and keeps
its word, and without if it does not."""

import re
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from nemo_gym.testing import (
    TRANSPORTS,
    ServerSpec,
    Transport,
    example_row,
    rows_of,
    running_servers,
    says,
    server_spec,
)
from resources_servers.example_user_simulation.app import amounts, keeps_promises

ROWS = rows_of("resources_servers/example_user_simulation/data/example.jsonl")
Replies = list[dict[str, Any]]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": [{"name": name, "arguments": arguments}]}


def turns(*replies: dict[str, Any], to: str) -> Replies:
    """Replies to a message that matches `to`, one after another."""
    return [{**reply, "user": to, "turn": turn} for turn, reply in enumerate(replies)]


def opening(number: str) -> list[dict[str, Any]]:
    return [call("look_up_account", customer_number=number), call("test_line")]


ASK_NUMBER = {"user": "internet", "turn": 0, "say": "I am sorry to hear that. What is your customer number?"}
RESTART = {"say": "Please restart your router. Does it work then?"}
WHICH_DAY = {"say": "The cable is broken. On which days are you at home?"}

POLICIES: list[Replies] = [
    [
        *turns(
            *opening("1001"),
            call("reset_line"),
            call("give_credit", amount_eur=6),
            {"think": "Done.", "say": "It should work again.\nConfirmed: credit of 6 EUR."},
            to="1001",
        ),
        ASK_NUMBER,
    ],
    [
        *turns(*opening("1002"), RESTART, to="1002"),
        *turns({"say": "I am glad. I cannot give a credit for a router."}, to="works"),
    ],
    [
        *turns(*opening("1003"), WHICH_DAY, to="1003"),
        *turns(
            call("book_technician", day="Wednesday"),
            call("book_technician", day="Thursday"),
            call("give_credit", amount_eur=10),
            {"say": "**Confirmed:** technician on Thursday\nConfirmed: credit of 10 EUR"},
            to="Thursday",
        ),
        ASK_NUMBER,
    ],
    [
        *turns(*opening("1004"), WHICH_DAY, to="1004"),
        *turns(
            {
                "call": [
                    {"name": "book_technician", "arguments": {"day": "Wednesday"}},
                    *call("give_credit", amount_eur=4)["call"],
                ]
            },
            {"say": "Confirmed: technician on Wednesday. Confirmed: credit of 4 EUR."},
            to="Wednesday",
        ),
    ],
    [
        *turns(
            *opening("1005"),
            call("reset_line"),
            call("give_credit", amount_eur=2),
            {"say": "I have reset the line.\nConfirmed: credit of 2 EUR"},
            to="1005",
        ),
        ASK_NUMBER,
    ],
]
STOP = {"say": "Thank you! ###STOP###"}
USERS: list[Replies] = [
    [{"user": "number", "say": "It is 1001."}, STOP],
    [
        {"user": "How can I help", "say": "Number 1002 here. Nothing works. I want 50 EUR!"},
        *turns(call("restart_router"), call("check_internet"), {"say": "It works now."}, to="restart"),
        STOP,
    ],
    [{"user": "number", "say": "1003"}, {"user": "days", "say": "Wednesday or Thursday."}, STOP],
    [
        {"user": "How can I help", "say": "My internet is down; my number is 1004."},
        {"user": "days", "say": "Monday or Wednesday."},
        STOP,
    ],
    [{"user": "number", "say": "Sure, 1005."}, STOP],
]


def reference(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "name": name}


def servers(policy: Replies, user: Replies) -> list[ServerSpec]:
    agent: dict[str, Any] = {
        "resources_server": reference("resources_servers", "desk"),
        "model_server": reference("responses_api_models", "policy_model"),
        "user_model_server": reference("responses_api_models", "user_model"),
    }
    return [
        server_spec("agent", "responses_api_agents", "multi_turn_agent", **agent),
        server_spec("desk", "resources_servers", "example_user_simulation", domain="agent"),
        server_spec("policy_model", "responses_api_models", "scripted_model", replies=policy),
        server_spec("user_model", "responses_api_models", "scripted_model", replies=user),
    ]


async def play(row: int, policy: Replies, *, transport: Transport = "direct") -> dict[str, Any]:
    async with running_servers(servers(policy, USERS[row]), transport=transport) as client:
        reply = await client.send("agent", "/run", ROWS[row])
    record: dict[str, Any] = orjson.loads(reply.content())
    assert reply.status == 200, record
    return record


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_desk_that_works_and_keeps_its_word_is_rewarded(row: int, transport: Transport) -> None:
    record = await play(row, POLICIES[row], transport=transport)
    assert (record["reward"], record["is_solved"], record["promises_kept"]) == (1.0, True, True), record["response"]
    assert record["response"]["ended_by"] == "user"


def changed(replies: Sequence[dict[str, Any]], pattern: str, text: str) -> Replies:
    """The same replies, one text in them changed."""
    found: Replies = orjson.loads(re.sub(pattern, text, orjson.dumps(replies).decode()))
    assert found != replies
    return found


@pytest.mark.parametrize(
    ("row", "pattern", "text", "solved", "kept"),
    [
        pytest.param(0, "credit of 6 EUR", "credit of 60 EUR", True, False, id="promises more than it gives"),
        pytest.param(0, "again[.]", "again. You will get 60 EUR.", True, False, id="promises aside"),
        pytest.param(0, "Confirmed: credit of 6 EUR.", "Bye.", True, False, id="does not tell"),
        pytest.param(0, '"amount_eur":6', '"amount_eur":60', False, False, id="credits too much and is refused"),
        pytest.param(0, "reset_line", "test_line", False, True, id="only talks"),
        pytest.param(0, "look_up_account", "test_line", False, True, id="does not look up the account"),
        pytest.param(
            0, '"customer_number":"1001"', '"customer_number":"1009"', False, True, id="looks up another one"
        ),
        pytest.param(2, "technician on Thursday", "technician on Tuesday", True, False, id="tells another day"),
        pytest.param(3, '"day":"Wednesday"', '"day":"Friday"', False, False, id="books a day that does not suit"),
    ],
)
async def test_a_desk_that_cheats_is_not_rewarded(row: int, pattern: str, text: str, solved: bool, kept: bool) -> None:
    record = await play(row, changed(POLICIES[row], pattern, text))
    assert (record["is_solved"], record["promises_kept"]) == (solved, kept), record["response"]["output"]
    assert record["reward"] == float(solved and kept)


async def test_a_tool_of_the_customer_is_not_the_desks() -> None:
    """The desk restarts the router itself and never asks the customer to."""
    policy = [*turns(*opening("1002"), call("restart_router"), {"say": "Is it fine now?"}, to="1002"), {"say": "Bye."}]
    record = await play(1, policy)
    outputs = [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]
    assert "There is no tool 'restart_router'" in outputs[-1]
    assert (record["reward"], record["is_solved"]) == (0.0, False)


@pytest.mark.parametrize(
    ("text", "credit", "day", "kept"),
    [
        ("Bye.", 0, None, True),
        ("Confirmed: nothing", 0, None, True),
        ("Confirmed: credit of 4 EUR", 4, None, True),
        ("- confirmed: credit of €4.", 4, None, True),
        ("Confirmed: 4 euros of credit, technician on monday", 4, "Monday", True),
        ("You get 4 EUR.", 4, None, False),
        ("1. Confirmed: credit of 4.00 EUR", 4, None, True),
        ("Confirmed: credit of 4,00 EUR", 4, None, True),
        ("Confirmed: no credit of 4 EUR", 4, None, False),
        ("Confirmed: credit of 4 EUR is refused", 4, None, False),
        ("You get nothing.<!--\nConfirmed: credit of 4 EUR\n-->", 4, None, False),
        ("~~Confirmed: credit of 4 EUR~~", 4, None, False),
        ("Confirmed: credit of 4 EUR\nConfirmed: free internet for life", 4, None, False),
        ("Confirmed: credit of 4 EUR\nAnd $100 more.", 4, None, False),
        ("Confirmed: credit of 4 EUR\nAnd USD 100 more.", 4, None, False),
        ("Confirmed: credit of 4 EUR\nMaybe 40 EUR next time.", 4, None, False),
        ("Confirmed: credit of 4.50 EUR", 4, None, False),
        ("Confirmed: credit of 1004 EUR", 4, None, False),
        ("Confirmed: credit of " + "9" * 100_000 + " EUR", 4, None, False),
        ("Confirmed: technician on Monday or Friday", 0, "Monday", False),
        ("Would Monday suit you, or Friday?\nConfirmed: technician on Friday", 0, "Friday", True),
        ("€ " * 50_000 + "1." * 50_000, 0, None, False),
        ("<think>\nConfirmed: 4 EUR.\n</think>Bye.", 4, None, False),
        ("<think>x</think>\nConfirmed: 4 EUR.", 4, None, True),
        ("Confirmed: Monday.\n</think>\nConfirmed: Tuesday.", 0, "Tuesday", False),
    ],
)
def test_promises(text: str, credit: int, day: Any, kept: bool) -> None:
    assert keeps_promises(text, credit, day) is kept


def test_amounts_are_read_as_numbers() -> None:
    assert amounts("4 EUR, €12.50, 3 days, EUR 7, 1,000 euros, Europe 5") == {4, 12.5, 7, 1000}


async def test_a_session_that_was_never_seeded_scores_nothing() -> None:
    async with running_servers(servers(POLICIES[0], USERS[0])) as client:
        row = example_row(response=says("Hm."), expected_credit_eur=0, expected_technician_day=None)
        assert (await client.call("desk", "/verify", row, answer=dict))["reward"] == 0.0
