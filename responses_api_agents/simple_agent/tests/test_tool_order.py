"""The order in which the tool calls of one reply run."""

from pathlib import Path
from typing import Any

from nemo_gym.testing import example_row, running_servers, server_spec
from tests.stacks import rollout_of, scripted_servers

LEDGER = server_spec(
    "ledger",
    "resources_servers",
    "slow_ledger",
    folder=Path("tests/servers/resources_servers/slow_ledger").absolute(),
)


def book(amount: int, *, seconds: float = 0.0) -> dict[str, Any]:
    return {"name": "book", "arguments": {"amount": amount, "seconds": seconds}}


def outputs(record: dict[str, Any]) -> list[str]:
    return [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]


async def test_tool_calls_of_one_reply_run_one_after_the_other() -> None:
    together = [book(100, seconds=0.05), book(-30), book(5, seconds=0.01)]
    row = example_row(expected_balance=75)
    record = await rollout_of(LEDGER, row, [{"call": together}, {"say": "Done."}])
    assert (record["reward"], outputs(record)) == (1.0, ["100", "70", "75"])


async def test_a_tool_call_that_fails_the_rollout_ends_the_others() -> None:
    together, row = [book(1, seconds=60), book(2)], example_row(expected_balance=3)
    servers = scripted_servers(LEDGER, [{"call": together}], tool_timeout_s=0.1)
    async with running_servers(servers) as client:
        answer = await client.post("agent", "/run", json=row)
        assert (answer.status, (await answer.json())["error"]["cause"]) == (504, "timeout")
        assert (await client.send("ledger", "/count_bookings")).text == "0"
