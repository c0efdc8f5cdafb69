"""What agents of sandboxed programs call to score a response."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ConfigDict

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyRequest, SimpleResourcesServer
from nemo_gym.compat.rollout_functions import is_terminal_failure
from nemo_gym.compat.sandboxed_agents import verify_agent_response
from nemo_gym.llm_api.responses import NeMoGymResponse
from nemo_gym.testing import example_row, running_servers, says, server_spec


class LengthVerifyRequest(BaseVerifyRequest):
    least: float


class RowRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class LengthResourcesServer(SimpleResourcesServer):
    async def verify(self, body: LengthVerifyRequest) -> float:
        return max(body.least, float(len(body.response.output)))


@pytest.mark.parametrize("as_models", [True, False])
async def test_a_failed_program_gets_the_reward_of_an_empty_response_and_keeps_its_own(
    tmp_path: Path, as_models: bool
) -> None:
    spec = server_spec("env", "resources_servers", "env", folder=tmp_path)
    row, answered = example_row("Q", least=0.0), says("Hi.")
    body: Any = RowRequest.model_validate(row) if as_models else row
    response: Any = NeMoGymResponse.model_validate(answered) if as_models else answered
    async with running_servers([replace(spec, served_class=LengthResourcesServer)]) as client:
        ref = SimpleNamespace(name="env")
        scored = await verify_agent_response(client, ref, body, response, {}, force_zero_reward=False)
        failed = await verify_agent_response(client, ref, body, response, {}, force_zero_reward=True)
        assert (scored["reward"], failed["reward"], failed["failure_kind"]) == (1.0, 0.0, "agent_run_error")
        assert failed["response"]["output"][0]["content"][0]["text"] == "Hi."
        with pytest.raises(ValueError, match="expected 0"):
            await verify_agent_response(client, ref, {**row, "least": 0.5}, answered, {}, force_zero_reward=True)


def test_failures_that_can_be_repaired_between_runs_are_tried_again() -> None:
    for kind in ("timeout_exceeded", "reference_missing"):
        record = {"_ng_failure_class": kind, "_ng_failure_terminal": True}
        assert is_terminal_failure(record)
        assert not is_terminal_failure(record, retry_terminal_timeouts=True)
    assert is_terminal_failure({"_ng_failure_class": "x", "_ng_failure_terminal": True}, retry_terminal_timeouts=True)
