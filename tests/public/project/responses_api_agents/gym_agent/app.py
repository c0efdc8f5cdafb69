from typing import Any, Optional

from fastapi import Body, Request, Response
from pydantic import ConfigDict

from nemo_gym.base_resources_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    accumulate_response_usage,
)
from nemo_gym.server_utils import get_response_json, raise_for_status


class GymAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_turns: int = 10


class GymAgentRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class GymAgentVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class GymAgent(SimpleResponsesAPIAgent):
    config: GymAgentConfig

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        raise NotImplementedError("this agent only runs")

    async def run(self, request: Request, body: GymAgentRunRequest) -> GymAgentVerifyResponse:
        cookies = request.cookies
        metadata = body.model_dump(exclude={"responses_create_params"})
        resp = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path=self.url_path_for_run("/reset", body),
            json=metadata,
            cookies=cookies,
        )
        await raise_for_status(resp)
        cookies = resp.cookies
        observation = (await get_response_json(resp))["observation"]
        params = body.responses_create_params.model_copy(deep=True)
        items = list(params.input) if not isinstance(params.input, str) else []
        outputs, total, usage, turns = [], 0.0, None, 0
        while turns < self.config.max_turns:
            turns += 1
            if observation is not None:
                message = NeMoGymEasyInputMessage(role="user", content=observation)
                items.append(message)
                outputs.append(message)
            asked = await self.server_client.post(
                server_name=self.config.model_server.name,
                url_path=self.url_path_for_run("/v1/responses", body),
                json=params.model_copy(update={"input": items}),
                cookies=cookies,
            )
            await raise_for_status(asked)
            reply = NeMoGymResponse.model_validate(await get_response_json(asked))
            usage = accumulate_response_usage(usage, reply.usage)
            items.extend(reply.output)
            outputs.extend(reply.output)
            stepped = await self.server_client.post(
                server_name=self.config.resources_server.name,
                url_path=self.url_path_for_run("/step", body),
                json={"response": reply.model_dump(), **metadata},
                cookies=cookies,
            )
            await raise_for_status(stepped)
            cookies = stepped.cookies
            step = await get_response_json(stepped)
            total += step["reward"]
            observation = step["observation"]
            if step["terminated"] or step["truncated"]:
                break
        final = reply.model_copy(update={"output": outputs, "usage": usage})
        return GymAgentVerifyResponse(**body.model_dump(), response=final.model_dump(), reward=total, num_turns=turns)

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        resp = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path="/aggregate_metrics", json=body
        )
        await raise_for_status(resp)
        return AggregateMetrics.model_validate(await get_response_json(resp))


if __name__ == "__main__":
    GymAgent.run_webserver()
