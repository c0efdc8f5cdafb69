"""Rewards of single turns, from an environment to the record."""

from typing import Any

import orjson
import pytest

from nemo_gym.base_resources_server import BaseVerifyRequest, Score, SimpleResourcesServer, turns_of
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.builders import calls, message, response_of
from nemo_gym.server.step_rewards import with_step_rewards
from nemo_gym.testing import client_for, example_row

OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "call_1", "output": "5"}
TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}
CALL = calls("add", "{}", call_id="call_1")
USER = {"type": "message", "role": "user", "content": "And?"}
PLAYED = [THOUGHT, CALL, OUTPUT, message("Five."), USER, message("Six.")]
"""Three turns: items 0 and 1, item 3, item 5."""


def test_a_turn_is_one_reply_of_the_policy() -> None:
    assert turns_of(PLAYED) == [range(2), range(3, 4), range(5, 6)]
    assert turns_of([{**message("One."), **TOKENS}, {**message("Two."), **TOKENS}]) == [range(1), range(1, 2)]
    assert turns_of([]) == []


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ([0.5, 0, 1.0], [0.5, 0.0, 1.0]),
        ((0.5, 0, 1.0), [0.5, 0.0, 1.0]),
        ({1: 0.5, 0: 0.25, 5: 1.0}, [0.75, 0.0, 1.0]),
        ({}, [0.0, 0.0, 0.0]),
        ([0.5, 1.0], None),
        ({2: 1.0}, None),
        ({9: 1.0}, None),
        ([0.5, float("nan"), 1.0], None),
        ([0.5, True, 1.0], None),
        ({1: "1"}, None),
        (1.0, None),
    ],
)
async def test_step_rewards_reach_the_record_or_are_an_error_of_the_verifier(given: Any, stored: Any) -> None:
    class StepsResourcesServer(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> Score:
            return Score(1.0, step_rewards=given)

    async with client_for(StepsResourcesServer) as environment:
        reply = await environment.post("/verify", json=example_row(response=response_of(*PLAYED)))
    record = orjson.loads(reply.content())
    if stored is None:
        assert reply.status == 502
        assert record["error"]["cause"] == "verifier"
    else:
        assert record["step_rewards"] == stored


def test_step_rewards_of_a_group_are_checked_the_same() -> None:
    with pytest.raises(RolloutError):
        with_step_rewards({"step_rewards": [1.0]}, {"output": PLAYED})
    assert with_step_rewards({"words": 3}, {}) == {"words": 3}
