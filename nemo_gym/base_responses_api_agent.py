"""An agent: lets a model act in an environment, one rollout a call of `/run`.

`ToolCallingAgent` is the base to write one on: it seeds, verifies, calls the model and its tools, keeps limits and
names the cause of what fails. Override `converse` for what happens between seed and verify."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import ConfigDict, Field

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.client.call_log import record_step_seconds
from nemo_gym.client.reply import raise_environment_failure
from nemo_gym.client.server_client import CookieJar, ServerReply
from nemo_gym.common.deadline import timeout
from nemo_gym.common.exceptions import raise_first_error
from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.config.types import BaseRunServerInstanceConfig, ModelServerRef, ResourcesServerRef
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import sum_of
from nemo_gym.llm_api.json_codec import GrowingList, changed, encode, set_fields
from nemo_gym.llm_api.responses import (
    FrozenRequest,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseInputItem,
    NeMoGymResponseUsage,
    raise_response_failure,
    tool_content,
)
from nemo_gym.server.aggregate_metrics import AggregateMetrics as AggregateMetrics
from nemo_gym.server.aggregate_metrics import AggregateMetricsEndpoint, AggregateMetricsMixin
from nemo_gym.server.aggregate_metrics import AggregateMetricsRequest as AggregateMetricsRequest
from nemo_gym.server.base import BaseServer, SimpleServer
from nemo_gym.server.endpoint import Endpoint
from nemo_gym.server.model_call_capture import CaptureStore, run_with_captured_calls
from nemo_gym.server.rollout_prefix import AgentSessionsMixin, RolloutUrlsMixin
from nemo_gym.server.tools import default_tools, no_such_tool, offered_tools

if TYPE_CHECKING:
    from fastapi import Body as Body

__getattr__ = lazy_attributes(__name__)

MAX_SILENT_STEPS = 3
"""A turn ends after this many replies in a row without a message and without a tool call."""
STEPS_WITHOUT_PAUSE = 8
"""A model and tools in this worker may never suspend a rollout. After this many steps the event loop gets its turn, so
that timers and other rollouts run."""
USAGES_KEPT = 16
"""How many usages are added up at a time, which takes fewer steps than one by one."""

TurnEnd = Literal["message", "incomplete", "silent", "max_steps"]
"""Why a turn ended: the model said something, its reply was cut off, it stays silent, or it has used up its steps."""


class BaseResponsesAPIAgentConfig(BaseRunServerInstanceConfig):
    """The configuration of an agent. Subclass it for the servers it works with."""

    skip_verification: bool = False
    """Seed and converse, but do not verify: the record has `skip_verification_reward` and `verification_skipped`."""

    skip_verification_reward: float = 0.0
    token_id_capture: bool = False
    """Put the rollout's id into the URLs handed to programs outside, to assign their calls to it."""


class BaseResponsesAPIAgent(BaseServer):
    config: BaseResponsesAPIAgentConfig


Row = TypeVar("Row", bound=BaseRunRequest)


class SimpleResponsesAPIAgent(
    BaseResponsesAPIAgent, AggregateMetricsMixin, RolloutUrlsMixin, AgentSessionsMixin, SimpleServer
):
    """Subclass and write `responses` (one conversation) and `run` (a whole rollout, scored)."""

    @cached_property
    def _tools(self) -> dict[str, list[Any]]:
        """Those of each environment, once they are known. Not a private attribute, which pydantic looks up slowly."""
        return {}

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("/v1/responses", self.responses, cause="internal"),
            Endpoint("/run", run_with_captured_calls(self.run, CaptureStore.of(self.server_client)), cause="internal"),
            AggregateMetricsEndpoint("/aggregate_metrics", self.aggregate_metrics, cause="internal"),
        ]

    def answer_get(self, path: str) -> Any:
        if path == "/aggregate_metrics":
            return {"has_own_metrics": self.has_own_metrics()}
        return super().answer_get(path)

    def unverified(self, body: BaseRunRequest, response: NeMoGymResponse) -> ServerReply:
        """The record of a rollout that is not to be verified (`skip_verification`)."""
        scored = {"reward": self.config.skip_verification_reward, "verification_skipped": True}
        return ServerReply(self.config.name, 200, encode({**set_fields(body), "response": response, **scored}))

    async def metrics_of(self, environment: str, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Return the metrics that an environment computes; none if nothing is verified."""
        if self.config.skip_verification:
            return AggregateMetrics()
        return await self.server_client.call(environment, "/aggregate_metrics", body, answer=AggregateMetrics)

    async def with_tools(self, body: Row, environment: str) -> Row:
        """A row that does not mention `tools` with those of its environment's `@tool` methods."""
        params = body.responses_create_params
        if "tools" in params.__pydantic_fields_set__:
            return body
        tools = self._tools.get(environment)
        if tools is None:
            tools = self._tools[environment] = await default_tools(self.server_client, environment)
        return changed(body, responses_create_params=changed(params, tools=tools)) if tools else body

    @abstractmethod
    async def responses(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a conversation, calling tools on the way."""

    @abstractmethod
    async def run(self, *args: Any, **kwargs: Any) -> Any:
        """Play a row: seed, converse, verify."""


AGENT_FIELDS = frozenset(
    ("ended_by", "harness", "model_calls", "model_seconds", "participant", "participants", "turns")
)
"""Fields that agents add to the response of a rollout. They are dropped if an endpoint sends them."""


@dataclass(slots=True)
class Conversation:
    """The conversation of one model: the items of its row, and everything since."""

    model_server: str
    request: FrozenRequest
    """The next request to the model. To change it, assign another one: `request.changed(temperature=0.5)`."""
    num_given: int
    reply: NeMoGymResponse | None = None
    """The model's last reply."""
    steps: int = 0
    """How often the model was called."""
    model_seconds: float = 0.0
    step_seconds: list[dict[str, float]] = field(default_factory=list)
    """How long each step took: its model call, and the tool calls after it."""
    _usages: list[NeMoGymResponseUsage] = field(default_factory=list)

    @classmethod
    def of(cls, model_server: str, params: NeMoGymResponseCreateParamsNonStreaming) -> Self:
        request = FrozenRequest.of(params)
        if isinstance(params.input, str):
            request = request.extended(())  # sent as its item
        return cls(model_server, request, len(request.items))

    @property
    def items(self) -> GrowingList[NeMoGymResponseInputItem]:
        """The items of the row, then everything since. Assign other items to send those with the next request; an item
        that was sent is not to be changed."""
        return self.request.items

    @items.setter
    def items(self, items: Iterable[NeMoGymResponseInputItem]) -> None:
        self.request = self.request.changed(input=GrowingList(items))

    def extend(self, items: Iterable[NeMoGymResponseInputItem]) -> None:
        """Add items to the conversation."""
        self.request = self.request.extended(items)

    @property
    def offered(self) -> set[str]:
        """The names of the tools that the model may call."""
        return set(offered_tools(self.request.params.tools))

    @property
    def given(self) -> list[NeMoGymResponseInputItem]:
        """The items of the row."""
        return self.items[: self.num_given]

    @property
    def output(self) -> list[NeMoGymResponseInputItem]:
        """Everything since."""
        return self.items[self.num_given :]

    @property
    def usage(self) -> NeMoGymResponseUsage | None:
        """The usage of all model calls together."""
        return sum_of(self._usages) if self._usages else None

    def add_message(self, text: str) -> None:
        """Say something to the model, as its user."""
        self.extend([NeMoGymEasyInputMessage(role="user", content=text, type="message")])

    def add(self, reply: NeMoGymResponse, *, seconds: float) -> None:
        """Take in a reply of the model."""
        extra = reply.__pydantic_extra__
        if extra and not AGENT_FIELDS.isdisjoint(extra):
            reply = reply.model_copy()
            reply.__pydantic_extra__ = {name: extra[name] for name in extra.keys() - AGENT_FIELDS}
        self.reply = reply
        self.extend(reply.output)
        if reply.usage:
            self._usages.append(reply.usage)
            if len(self._usages) == USAGES_KEPT:
                self._usages = [sum_of(self._usages)]
        self.steps += 1
        self.model_seconds += seconds
        self.step_seconds.append({"model": round(seconds, 6)})

    def add_tool_outputs(self, outputs: Iterable[NeMoGymResponseInputItem], *, seconds: float) -> None:
        """Take in what the tools of the last step replied."""
        self.extend(outputs)
        self.step_seconds[-1]["tools"] = round(seconds, 6)

    def response(self, **fields: Any) -> NeMoGymResponse:
        """The last reply, with the output and the usage of the whole conversation."""
        last = self.reply or NeMoGymResponse(id="resp_none", created_at=time.time(), model="", output=[])
        if self.steps == 1 and not fields and len(last.output) == len(self.items) - self.num_given:
            return last
        return changed(last, **{"output": self.output, "usage": self.usage, **fields})


class ToolCallingAgentConfig(BaseResponsesAPIAgentConfig):
    """Names the model and the environment, and limits the rollout."""

    model_config = ConfigDict(extra="forbid")

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=200, ge=1)
    """Maximum number of model calls. After it the rollout is scored without another one, its response has
    `ended_by: max_steps`, and it counts as cut off. Null: no limit but the time."""
    execute_tools: bool = True
    """Run the tool calls of the model. If false, a reply with calls ends the turn, as one with a message does: for
    rows that are scored by the calls alone."""
    concurrent_tool_calls: bool = False
    """Run the tool calls of one reply at the same time. Only for environments whose tools do not depend on each
    other's order."""
    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    model_timeout_s: float = Field(default=1800.0, gt=0)
    tool_timeout_s: float = Field(default=600.0, gt=0)
    seed_timeout_s: float = Field(default=600.0, gt=0)
    verify_timeout_s: float = Field(default=1200.0, gt=0)


class AgentRunRequest(BaseRunRequest):
    """A row, with all the fields its environment wants."""

    model_config = ConfigDict(extra="allow")


class ToolCallingAgent(SimpleResponsesAPIAgent):
    """Seeds the environment, lets the model act, verifies. Override `converse` to let it act in another way."""

    config: ToolCallingAgentConfig

    async def run(self, body: AgentRunRequest, jar: CookieJar) -> ServerReply:
        """One rollout. The reply is the environment's own, forwarded unread."""
        config, known, response = self.config, set(jar), None
        try:
            with timeout(config.rollout_timeout_s, what="The rollout"):
                await self.seed(body, jar)
                if "tools" not in body.responses_create_params.__pydantic_fields_set__:
                    body = await self.with_tools(body, config.resources_server.name)
                response = await self.converse(body, jar)
                if config.skip_verification:
                    return self.unverified(body, response)
                return await self.verify(body, response, jar)
        except (RolloutError, asyncio.CancelledError) as error:
            # for `ng_reverify`, which completes the rollout without the model; of a cancellation a timeout further out
            # makes such an error
            error.response = response  # type: ignore[union-attr]
            raise
        finally:
            if jar:
                await self.server_client.end_sessions(jar, known=known)

    async def seed(self, body: AgentRunRequest, jar: CookieJar) -> None:
        environment = self.config.resources_server.name
        await self.server_client.call(
            environment,
            "/seed_session",
            body,
            answer=ServerReply,
            cause="environment",
            jar=jar,
            timeout_s=self.config.seed_timeout_s,
        )

    async def verify(self, body: AgentRunRequest, response: NeMoGymResponse, jar: CookieJar) -> ServerReply:
        """Have the environment score the rollout. This ends its session."""
        return await self.server_client.call(
            self.config.resources_server.name,
            "/verify",
            {**set_fields(body), "response": response},
            answer=ServerReply,
            cause="verifier",
            jar=jar,
            timeout_s=self.config.verify_timeout_s,
            ends_session=True,
        )

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return await self.metrics_of(self.config.resources_server.name, body)

    async def converse(self, body: AgentRunRequest, jar: CookieJar) -> NeMoGymResponse:
        """Make the rollout between seed and verify: by default, one turn of the model."""
        if type(self).responses is ToolCallingAgent.responses:
            return await self.responses(body.responses_create_params, jar)
        # A subclass may have written it as a FastAPI route, so it is called as an endpoint.
        params = body.responses_create_params
        return await self.server_client.call(
            self.config.name, "/v1/responses", params, answer=NeMoGymResponse, jar=jar
        )

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming, jar: CookieJar) -> NeMoGymResponse:
        """One turn of the model. `output` holds every item after the input, tool outputs included."""
        conversation = Conversation.of(self.config.model_server.name, body)
        end = await self.play_turn(conversation, jar)
        ended_by = {"ended_by": end} if end == "max_steps" else {}
        record_step_seconds(conversation.step_seconds)
        return conversation.response(**ended_by)

    async def play_turn(self, conversation: Conversation, jar: CookieJar) -> TurnEnd:
        """The model acts, with tools as it likes, until it says something or may not go on."""
        silent_steps, max_steps = 0, self.config.max_steps
        while True:
            if conversation.steps % STEPS_WITHOUT_PAUSE == STEPS_WITHOUT_PAUSE - 1:
                await asyncio.sleep(0)
            reply = await self.ask_model(conversation, jar)
            calls = [item for item in reply.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
            if reply.incomplete_details:
                return "incomplete"
            if calls and not self.config.execute_tools:
                return "message"
            if not calls and any(item.type == "message" for item in reply.output):
                return "message"
            silent_steps = 0 if calls else silent_steps + 1
            if silent_steps == MAX_SILENT_STEPS:
                return "silent"
            if calls:
                started = time.perf_counter()
                outputs = await self.call_tools(calls, conversation.offered, jar)
                conversation.add_tool_outputs(outputs, seconds=time.perf_counter() - started)
            if max_steps is not None and conversation.steps >= max_steps:
                return "max_steps"

    async def ask_model(self, conversation: Conversation, jar: CookieJar) -> NeMoGymResponse:
        """Call the conversation's model once and add its reply."""
        started = time.perf_counter()
        reply = await self.server_client.call(
            conversation.model_server,
            "/v1/responses",
            conversation.request,
            answer=NeMoGymResponse,
            cause="model",
            jar=jar,
            timeout_s=self.config.model_timeout_s,
        )
        raise_response_failure(reply, server=conversation.model_server)
        conversation.add(reply, seconds=time.perf_counter() - started)
        return reply

    async def call_tools(
        self, calls: list[NeMoGymResponseFunctionToolCall], offered: set[str], jar: CookieJar
    ) -> list[NeMoGymFunctionCallOutput]:
        """The calls of one reply, one after the other unless `concurrent_tool_calls` is set; their outputs in the
        order of the calls. A call that fails the rollout ends the others."""
        if len(calls) < 2 or not self.config.concurrent_tool_calls:
            return [await self.call_tool(call, offered, jar) for call in calls]
        with raise_first_error():
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self.call_tool(call, offered, jar)) for call in calls]
        return [task.result() for task in running]

    async def call_tool(
        self, call: NeMoGymResponseFunctionToolCall, offered: set[str], jar: CookieJar
    ) -> NeMoGymFunctionCallOutput:
        """The tool's reply, errors included, for the model to see. Only a server that cannot be reached, that lost
        the session, or that fails with the cause `environment`, fails the rollout."""
        if call.name not in offered:
            text = encode({"error": no_such_tool(call.name, offered)}).decode()
        else:
            answer = await self.server_client.send(
                self.config.resources_server.name,
                f"/{call.name}",
                call.arguments.encode(),
                cause="tool",
                jar=jar,
                timeout_s=self.config.tool_timeout_s,
            )
            raise_environment_failure(answer)
            text = answer.text
        return NeMoGymFunctionCallOutput(call_id=call.call_id, output=tool_content(text))


Agent = ToolCallingAgent
"""Its name in scripts and notebooks, as `nemo_gym.Agent`."""
