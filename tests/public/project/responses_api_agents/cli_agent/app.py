"""Runs a program of its own that talks to the model by its URL."""
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from time import time
from typing import Any, Optional
from uuid import uuid4

from fastapi import Request
from pydantic import ConfigDict

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputTokensDetails,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
    NeMoGymResponseOutputTokensDetails,
    NeMoGymResponseUsage,
)
from nemo_gym.rollout_observability import (
    AgentEpisode,
    AgentInvocation,
    AgentObservationBundle,
    ModelCallRef,
    ObservationGap,
    ToolCallObservation,
)
from nemo_gym.server_utils import apply_rollout_prefix, get_response_json, get_server_url, raise_for_status


class CliAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    timeout: float = 60.0


class CliAgentRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class CliAgentVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class CliAgent(SimpleResponsesAPIAgent):
    config: CliAgentConfig

    async def responses(self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()):
        raise NotImplementedError

    async def run(self, request: Request, body: CliAgentRunRequest) -> CliAgentVerifyResponse:
        rollout_id = self.rollout_id_from_run(body)
        base_url = self.resolve_model_base_url(self.config.model_server.name, rollout_id)
        assert base_url.startswith(get_server_url(self.config.model_server.name))
        assert base_url == apply_rollout_prefix(get_server_url(self.config.model_server.name), rollout_id) + "/v1"
        text = body.responses_create_params.input
        text = text if isinstance(text, str) else text[-1].content
        episode = await self._episode(base_url, text)
        verify_response = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path=self.url_path_for_run("/verify", body),
            json={**body.model_dump(), "response": episode.response.model_dump()},
            cookies=request.cookies,
        )
        await raise_for_status(verify_response)
        record = await get_response_json(verify_response)
        record["ng_agent_observations"] = episode.observations.model_dump(mode="json")
        record["rollout_id"] = rollout_id
        return CliAgentVerifyResponse.model_validate(record)

    async def _episode(self, base_url: str, text: str) -> AgentEpisode:
        with tempfile.TemporaryDirectory() as folder:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).parent / "harness.py"),
                text,
                cwd=folder,
                env={**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "dummy"},
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await asyncio.wait_for(process.communicate(), self.config.timeout)
        told = json.loads(out)
        usage = NeMoGymResponseUsage(
            input_tokens=told["input_tokens"],
            input_tokens_details=NeMoGymResponseInputTokensDetails(cached_tokens=None),
            output_tokens=told["output_tokens"],
            output_tokens_details=NeMoGymResponseOutputTokensDetails(reasoning_tokens=None),
            total_tokens=told["input_tokens"] + told["output_tokens"],
        )
        response = NeMoGymResponse(
            id=f"resp_{uuid4().hex}",
            created_at=int(time()),
            model="cli",
            object="response",
            output=[
                NeMoGymResponseOutputMessage(
                    id="msg",
                    content=[NeMoGymResponseOutputText(text=told["text"], annotations=[])],
                    role="assistant",
                    status="completed",
                    type="message",
                )
            ],
            tool_choice="auto",
            parallel_tool_calls=False,
            tools=[],
            usage=usage,
        )
        bundle = AgentObservationBundle(
            source="cli_agent",
            records=[
                AgentInvocation(
                    invocation_id="root",
                    status="completed",
                    model_calls=[ModelCallRef(model_ref="policy_model", response_id=told["id"])],
                ),
                ToolCallObservation(invocation_id="root", tool_call_id="t1", tool_name="bash", status="completed"),
            ],
            gaps=[ObservationGap(code="no_timing", invocation_id="root")],
        )
        return AgentEpisode(response=response, observations=bundle)


if __name__ == "__main__":
    CliAgent.run_webserver()
