import json
from typing import List

from fastapi import Body, Request, Response
from pydantic import ConfigDict, ValidationError

from nemo_gym.base_resources_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.global_config import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    accumulate_response_usage,
)
from nemo_gym.rollout_observability import AgentInvocation, AgentObservationBundle
from nemo_gym.server_utils import get_response_json, raise_for_status


class ShopperConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int = 5


class ShopperRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class Shopper(SimpleResponsesAPIAgent):
    config: ShopperConfig

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        body = body.model_copy(deep=True)
        if isinstance(body.input, str):
            body.input = [NeMoGymEasyInputMessage(role="user", content=body.input)]
        said, usage, cookies = [], None, request.cookies
        for _ in range(self.config.max_steps):
            asked = body.model_copy(update={"input": body.input + said})
            answer = await self.server_client.post(
                server_name=self.config.model_server.name,
                url_path=self.url_path_for_request("/v1/responses", request),
                json=asked,
                cookies=cookies,
            )
            await raise_for_status(answer)
            found = NeMoGymResponse.model_validate(await get_response_json(answer))
            cookies = answer.cookies or cookies
            usage = accumulate_response_usage(usage, found.usage)
            said.extend(found.output)
            calls: List[NeMoGymResponseFunctionToolCall] = [i for i in found.output if i.type == "function_call"]
            if not calls and any(i.type == "message" and i.role == "assistant" for i in found.output):
                break
            for call in calls:
                result = await self.server_client.post(
                    server_name=self.config.resources_server.name,
                    url_path=f"/{call.name}",
                    json=json.loads(call.arguments),
                    cookies=cookies,
                )
                cookies = result.cookies
                said.append(
                    NeMoGymFunctionCallOutput(
                        type="function_call_output",
                        call_id=call.call_id,
                        output=(await result.content.read()).decode(),
                    )
                )
        for name, value in {**request.cookies, **cookies}.items():
            response.set_cookie(name, getattr(value, "value", value))
        found.output, found.usage = said, usage
        return found

    async def run(self, request: Request, body: ShopperRunRequest) -> BaseVerifyResponse:
        seeded = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path=self.url_path_for_run("/seed_session", body),
            json=body.model_dump(),
            cookies=request.cookies,
        )
        await raise_for_status(seeded)
        answered = await self.server_client.post(
            server_name=self.config.name,
            url_path="/ng-rollout/7-0/v1/responses",
            json=body.responses_create_params,
            cookies=seeded.cookies,
        )
        await raise_for_status(answered)
        row = body.model_dump()
        verified = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/verify",
            json={**row, "response": await get_response_json(answered)},
            cookies=answered.cookies,
        )
        await raise_for_status(verified)
        record = await get_response_json(verified)
        seen = AgentObservationBundle(source="shopper", records=[AgentInvocation(invocation_id="main")])
        record["ng_agent_observations"] = seen.model_dump(mode="json")
        record["told_index"] = [row[TASK_INDEX_KEY_NAME], row[ROLLOUT_INDEX_KEY_NAME]]
        record["model_url"] = self.resolve_model_base_url(self.config.model_server.name)
        return record

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        answer = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path="/aggregate_metrics", json=body
        )
        await raise_for_status(answer)
        return AggregateMetrics.model_validate(await get_response_json(answer))


if __name__ == "__main__":
    Shopper.run_webserver()
