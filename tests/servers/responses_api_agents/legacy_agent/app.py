"""An agent in the public style: after each step it keeps only the cookies of the last reply, and it shows every tool
reply to the model, whatever its status."""

from fastapi import Body, Request, Response
from pydantic import ConfigDict

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config.types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server_utils import get_response_json, raise_for_status


class LegacyAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef


class LegacyRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class LegacyVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class LegacyVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class LegacyAgent(SimpleResponsesAPIAgent):
    config: LegacyAgentConfig

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        body = body.model_copy(deep=True)
        outputs = []
        model_cookies = None
        resources_cookies = request.cookies
        while True:
            turn = body.model_copy(update={"input": body.input + outputs})
            answer = await self.server_client.post(
                server_name=self.config.model_server.name, url_path="/v1/responses", json=turn, cookies=model_cookies
            )
            await raise_for_status(answer)
            model_cookies = answer.cookies
            reply = NeMoGymResponse.model_validate(await get_response_json(answer))
            outputs.extend(reply.output)
            calls = [item for item in reply.output if item.type == "function_call"]
            if not calls:
                break
            for call in calls:
                answer = await self.server_client.post(
                    server_name=self.config.resources_server.name,
                    url_path=f"/{call.name}",
                    data=call.arguments.encode(),
                    cookies=resources_cookies,
                )
                resources_cookies = answer.cookies
                output = (await answer.content.read()).decode()
                outputs.append(
                    NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=output)
                )
        for name, value in (*dict(resources_cookies).items(), *model_cookies.items()):
            response.set_cookie(name, value if isinstance(value, str) else value.value)
        reply.output = outputs
        return reply

    async def run(self, request: Request, body: LegacyRunRequest) -> LegacyVerifyResponse:
        cookies = request.cookies
        seeded = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/seed_session",
            json=body.model_dump(),
            cookies=cookies,
        )
        await raise_for_status(seeded)
        cookies = seeded.cookies
        answered = await self.server_client.post(
            server_name=self.config.name,
            url_path="/v1/responses",
            json=body.responses_create_params,
            cookies=cookies,
        )
        await raise_for_status(answered)
        cookies = answered.cookies
        verify_request = LegacyVerifyRequest.model_validate(body.model_dump() | {"response": await answered.json()})
        verified = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/verify",
            json=verify_request.model_dump(),
            cookies=cookies,
        )
        await raise_for_status(verified)
        return LegacyVerifyResponse.model_validate(await verified.json())


if __name__ == "__main__":
    LegacyAgent.run_webserver()
