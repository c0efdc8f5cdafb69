"""Rollouts with several participants, such as a policy and a simulated user: each has a conversation of its own, and
every item of the record says who produced it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from nemo_gym.base_resources_server import NextMessage, NextMessageReply
from nemo_gym.base_responses_api_agent import AgentRunRequest, Conversation, ToolCallingAgent, TurnEnd
from nemo_gym.client.server_client import CookieJar
from nemo_gym.config.keys import MASK_SAMPLE
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import TOKEN_METADATA_FIELDS, JsonObject, TokenIDLogProbMixin
from nemo_gym.llm_api.json_codec import changed, encode, set_fields
from nemo_gym.llm_api.responses import (
    RESPONSES_TO_TRAIN,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputMessage,
    ResponseItem,
)
from nemo_gym.server.tools import PARTICIPANT_COOKIE
from nemo_gym.server.tools import POLICY as POLICY

TOOL, USER, ENVIRONMENT, HARNESS = "tool", "user", "environment", "harness"
"""Producers of items, besides the policies."""
_WITHOUT_TOKENS = {with_tokens: kind for kind, with_tokens in RESPONSES_TO_TRAIN.items()}


class Origin(NamedTuple):
    """The producer of an item, and its turn, counted over all participants of the rollout."""

    produced_by: str
    turn: int


@dataclass(slots=True)
class ParticipantConversation(Conversation):
    """The conversation of one participant."""

    name: str = POLICY
    origins: list[Origin] = field(default_factory=list)
    """One for each item of `output`."""

    def hear(self, message: NextMessage, *, produced_by: str, turn: int) -> None:
        """Add a message of another participant or of the environment."""
        heard = NeMoGymEasyInputMessage(role=message.role, content=message.content, type="message")
        if message.added_tools:
            self.request = self.request.changed(tools=[*self.request.params.tools, *message.added_tools])
        self.extend([heard])
        self.origins.append(Origin(produced_by, turn))

    def end_turn(self, turn: int) -> NeMoGymResponse:
        """Return the items that this participant and its tools have added in the turn."""
        new = self.output[len(self.origins) :]
        own = (TOOL if isinstance(item, NeMoGymFunctionCallOutput) else self.name for item in new)
        self.origins.extend(Origin(name, turn) for name in own)
        return self.response(output=new)

    def record(self, **fields: Any) -> NeMoGymResponse:
        """The response as it is recorded: every item labelled, with the number and the time of the model's calls."""
        labelled = [changed(item, **one._asdict()) for item, one in zip(self.output, self.origins, strict=True)]
        costs = {"model_calls": self.steps, "model_seconds": round(self.model_seconds, 6)}
        return self.response(output=labelled, participant=self.name, **costs, **fields)


class MultiParticipantAgent(ToolCallingAgent):
    """The base of agents whose rollouts have more than one participant."""

    def conversation_of(
        self, name: str, model_server: str, params: NeMoGymResponseCreateParamsNonStreaming
    ) -> ParticipantConversation:
        """The conversation of a participant, as it begins."""
        participant = ParticipantConversation.of(model_server, params)
        participant.name = name
        return participant

    async def play_participant(self, participant: ParticipantConversation, jar: CookieJar) -> TurnEnd:
        """One turn of a participant. Tools that it calls can learn who calls them, by a cookie that no model can
        set."""
        own = CookieJar({**jar, PARTICIPANT_COOKIE: participant.name})
        try:
            return await self.play_turn(participant, own)
        finally:
            jar.merge({name: value for name, value in own.items() if name != PARTICIPANT_COOKIE})

    async def environment_message(
        self,
        body: AgentRunRequest,
        participant: ParticipantConversation,
        response: NeMoGymResponse,
        *,
        turn: int,
        jar: CookieJar,
    ) -> NextMessage | None:
        """Return the environment's answer to the turn of a participant; None if the conversation is over."""
        server = self.config.resources_server.name
        response = changed(response, output=[without_tokens(item) for item in response.output])
        request = changed(body, response=response, turn=turn, participant=participant.name)
        reply = await self.server_client.send(
            server, "/next_message", request, cause="environment", jar=jar, timeout_s=self.config.tool_timeout_s
        )
        if reply.status == 404:
            message = f"'{server}' has no next_message, which {type(self).__name__} needs to continue a conversation."
            raise RolloutError("environment", message, server=server, retryable=False)
        if reply.status >= 300:
            raise reply.failure("/next_message", "environment")
        return reply.decode(NextMessageReply, "/next_message", "environment").message


def participant_record(participant: ParticipantConversation, *, is_trainable: bool) -> JsonObject:
    """Return the part of a record about a participant besides the main one, in the form of a rollout."""
    response = participant.record()
    if not is_trainable:
        response = changed(response, output=[without_tokens(item) for item in response.output])
    params = participant.request.changed(input=participant.given)
    parts = {"responses_create_params": params, "response": response}
    as_json = {name: orjson.loads(encode(part, exclude_unset=True)) for name, part in parts.items()}
    return {**as_json, "is_trainable": is_trainable}


def policy_records(record: JsonObject) -> dict[str, JsonObject]:
    """The policies of a rollout, each as a record of its own with its conversation, token trace and reward. Most
    rollouts have one. Fields of the environment are those of the main policy; all are masked if the rollout is."""
    response = record["response"]
    main, others = response.get("participant") or POLICY, response.get("participants") or {}
    own = {name: value for name, value in response.items() if name != "participants"}
    shared = {name: value for name, value in record.items() if name.startswith("_") or name == MASK_SAMPLE}
    policies = {main: {**record, "response": own}}
    policies |= {name: {**shared, **other} for name, other in others.items() if other["is_trainable"]}
    rewards = record.get("rewards") or {}
    return {name: {**part, "reward": rewards.get(name, record.get("reward"))} for name, part in policies.items()}


def without_tokens(item: NeMoGymResponseInputItem) -> ResponseItem:
    """The item without token ids and log-probs."""
    if not isinstance(item, TokenIDLogProbMixin):
        return item
    kept = {name: value for name, value in set_fields(item).items() if name not in TOKEN_METADATA_FIELDS}
    return _WITHOUT_TOKENS[type(item)].model_construct(**kept)


def message_text(items: Iterable[NeMoGymResponseInputItem]) -> str:
    """Return the text of messages, without reasoning and tool calls."""
    kinds = NeMoGymEasyInputMessage | NeMoGymMessage | NeMoGymResponseOutputMessage
    parts = (item.content for item in items if isinstance(item, kinds))
    texts = ([part] if isinstance(part, str) else map(_part_text, part) for part in parts)
    return "\n".join(text for each in texts for text in each if isinstance(text, str)).strip()


def _part_text(part: Any) -> Any:
    return part.get("text") or part.get("refusal")
