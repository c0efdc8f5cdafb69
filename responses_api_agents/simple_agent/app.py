"""The plain tool-calling loop: ask the model, run the tools it calls, ask again, until it answers."""

import asyncio
import re
from collections.abc import Awaitable

from pydantic import ConfigDict, Field

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent, keep_response
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.errors import RolloutError
from nemo_gym.openai_utils import (
    EncodedItems,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseUsage,
    changed,
    encode,
)
from nemo_gym.server_utils import NOT_TOOLS, CookieJar, ServerReply, raise_first_error, timeout

MAX_SILENT_STEPS = 3
"""The conversation ends after this many replies in a row without a message and without a tool call."""
STEPS_WITHOUT_PAUSE = 8
"""A model and tools in this worker may never suspend a rollout. After so many steps the event loop gets its turn, so
that timers and other rollouts run."""
UNFINISHED = ("failed", "cancelled", "queued", "in_progress")
"""Statuses of a reply that is not the model's answer."""

TOOL_NAME = re.compile(r"[\w.-]+")


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    """Which model acts in which environment, and for how long."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=200, ge=1)
    """How often the model is called at most; then the rollout is scored as it stands. Null: no limit but the time."""
    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    model_timeout_s: float = Field(default=1800.0, gt=0)
    tool_timeout_s: float = Field(default=600.0, gt=0)
    seed_timeout_s: float = Field(default=600.0, gt=0)
    verify_timeout_s: float = Field(default=1200.0, gt=0)


class SimpleAgentRunRequest(BaseRunRequest):
    """A row, with all the fields its environment wants."""

    model_config = ConfigDict(extra="allow")


class SimpleAgent(SimpleResponsesAPIAgent):
    config: SimpleAgentConfig

    async def run(self, body: SimpleAgentRunRequest, jar: CookieJar) -> ServerReply:
        """One rollout. The reply is the environment's own, forwarded unread."""
        client, config, environment = self.server_client, self.config, self.config.resources_server.name
        async with keep_response() as kept, client.sessions(jar):
            with timeout(config.rollout_timeout_s, what="The rollout"):
                await client.call(
                    environment,
                    "/seed_session",
                    body,
                    answer=ServerReply,
                    cause="environment",
                    jar=jar,
                    timeout_s=config.seed_timeout_s,
                )
                kept.response = response = await self._converse(body.responses_create_params, jar)
                return await client.call(
                    environment,
                    "/verify",
                    changed(body, response=response),
                    answer=ServerReply,
                    cause="verifier",
                    jar=jar,
                    timeout_s=config.verify_timeout_s,
                    ends_session=True,
                )

    def _converse(self, body: NeMoGymResponseCreateParamsNonStreaming, jar: CookieJar) -> Awaitable[NeMoGymResponse]:
        """The reply of this agent's `/v1/responses`. A subclass may have to be called as an endpoint."""
        if type(self).responses is SimpleAgent.responses:
            return self.responses(body, jar)
        return self.server_client.call(self.config.name, "/v1/responses", body, answer=NeMoGymResponse, jar=jar)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming, jar: CookieJar) -> NeMoGymResponse:
        """One conversation. `output` holds every item after the input, tool outputs included."""
        start = (
            [NeMoGymEasyInputMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
        )
        items = EncodedItems(start)
        request = changed(body, input=items)
        offered = {str(tool.get("name")) for tool in body.tools if tool["type"] == "function"}
        usage: NeMoGymResponseUsage | None = None
        step = silent_steps = 0
        while True:
            step += 1
            if step % STEPS_WITHOUT_PAUSE == 0:
                await asyncio.sleep(0)
            response = await self._ask_model(request, jar)
            items.extend(response.output)
            usage = usage + response.usage if usage and response.usage else usage or response.usage
            calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
            has_message = any(item.type == "message" for item in response.output)
            silent_steps = 0 if calls or has_message else silent_steps + 1
            if response.incomplete_details or (has_message and not calls) or silent_steps == MAX_SILENT_STEPS:
                break
            items.extend(await self._call_tools(calls, offered, jar))
            if step == self.config.max_steps:
                break
        said = items[len(start) :]
        return response if len(said) == len(response.output) else changed(response, output=said, usage=usage)

    async def _ask_model(self, body: NeMoGymResponseCreateParamsNonStreaming, jar: CookieJar) -> NeMoGymResponse:
        server = self.config.model_server.name
        response = await self.server_client.call(
            server,
            "/v1/responses",
            body,
            answer=NeMoGymResponse,
            cause="model",
            jar=jar,
            timeout_s=self.config.model_timeout_s,
        )
        if response.status in UNFINISHED:
            message = f"The reply of {server} has the status '{response.status}', expected 'completed'."
            raise RolloutError("model", message, server=server, code=response.status)
        return response

    async def _call_tools(
        self, calls: list[NeMoGymResponseFunctionToolCall], offered: set[str], jar: CookieJar
    ) -> list[NeMoGymFunctionCallOutput]:
        """All calls of one turn at once; their outputs in the order of the calls."""
        if len(calls) < 2:
            return [await self._call_tool(call, offered, jar) for call in calls]
        with raise_first_error():
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._call_tool(call, offered, jar)) for call in calls]
        return [task.result() for task in running]

    async def _call_tool(
        self, call: NeMoGymResponseFunctionToolCall, offered: set[str], jar: CookieJar
    ) -> NeMoGymFunctionCallOutput:
        """The tool's reply, errors included, for the model to see. Only a server that cannot be reached, or that lost
        the session, fails the rollout."""
        if call.name not in offered or call.name in NOT_TOOLS or not TOOL_NAME.fullmatch(call.name):
            listed = ", ".join(sorted(offered - NOT_TOOLS)) or "none"
            text = encode({"error": f"There is no tool '{call.name}'. Tools: {listed}."}).decode()
        else:
            answer = await self.server_client.send(
                self.config.resources_server.name,
                f"/{call.name}",
                call.arguments.encode(),
                cause="tool",
                jar=jar,
                timeout_s=self.config.tool_timeout_s,
            )
            text = answer.text()
        return NeMoGymFunctionCallOutput(call_id=call.call_id, output=text)


if __name__ == "__main__":
    SimpleAgent.run_webserver()
