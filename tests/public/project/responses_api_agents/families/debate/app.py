import asyncio
from typing import Any, Dict

from fastapi import Body, Request
from pydantic import ConfigDict

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, NeMoGymResponseUsage
from nemo_gym.rollout_collection import NG_FAILURE_CLASS_KEY, NG_TERMINAL_KEY
from nemo_gym.server_utils import get_response_json
from responses_api_agents.families.shared import opening


class DebateConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    models: Dict[str, ModelServerRef]


class DebateRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class DebateVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class Debate(SimpleResponsesAPIAgent):
    config: DebateConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        replies = await asyncio.gather(*(self._ask(ref.name, body) for ref in self.config.models.values()))
        last = replies[-1]
        last.usage = NeMoGymResponseUsage.sum_from_list([r.usage for r in replies])
        return last

    async def _ask(self, server: str, body) -> NeMoGymResponse:
        async with await self.server_client.post(server, "/v1/responses", json=body) as resp:
            assert resp.status == 200 and resp.ok
            assert resp.headers["Content-Type"].startswith("application/json")
            return NeMoGymResponse.model_validate(await resp.json())

    async def run(self, request: Request, body: DebateRunRequest = Body()) -> Dict[str, Any]:
        response = await self.responses(body.responses_create_params)
        row = body.model_dump()
        if row.get("give_up"):
            return {
                **row,
                "response": response.model_dump(mode="json"),
                "reward": 0.0,
                NG_FAILURE_CLASS_KEY: "skipped",
                NG_TERMINAL_KEY: True,
            }
        verified = await self.server_client.post(
            self.config.resources_server.name, "/verify", json={**row, "response": response.model_dump()}
        )
        return {**(await get_response_json(verified)), "opening": opening("one"), "mask_sample": True}


if __name__ == "__main__":
    Debate.run_webserver()
