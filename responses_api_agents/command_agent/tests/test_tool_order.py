"""Tools that a harness calls at the same time."""

import pytest

from nemo_gym.testing import example_row
from responses_api_agents.command_agent.tests.test_app import play, servers

SCRIPT = """
from threading import Thread
ask([{"role": "user", "content": "Book 1, 2 and 4."}])
calls = [Thread(target=call_tool, args=("book", {"amount": amount, "seconds": SECONDS})) for amount in (1, 2, 4)]
for call in calls:
    call.start()
for call in calls:
    call.join()
"""


@pytest.mark.parametrize(
    ("config", "seconds", "reward"), [({}, 0.1, 1.0), ({"concurrent_tool_calls": True}, 2.0, 0.0)]
)
async def test_they_run_one_after_the_other_unless_the_config_says_otherwise(
    config: dict[str, bool], seconds: float, reward: float
) -> None:
    script = f"SECONDS = {seconds}\n{SCRIPT}"
    asked = servers(script, {"say": "Done."}, environment="slow_ledger", **config)
    record = await play(asked, example_row(expected_balance=7))
    assert record["reward"] == reward
    assert len(record["response"]["harness"]["tool_calls"]) == 3
