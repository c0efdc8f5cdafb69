"""Several policies in one environment, as in a negotiation or in self-play: each has a conversation, a reward and a
token trace of its own. The environment is the referee: it says who acts next, and what that policy hears."""

import orjson
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from nemo_gym import (
    CookieJar,
    JsonObject,
    ModelServerRef,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    ServerReply,
)
from nemo_gym.base_responses_api_agent import AgentRunRequest, ToolCallingAgentConfig
from nemo_gym.client.call_log import record_step_seconds
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.json_codec import changed, set_fields
from nemo_gym.participants import ENVIRONMENT, MultiParticipantAgent, ParticipantConversation, participant_record


class MultiPolicyAgentConfig(ToolCallingAgentConfig):
    """The models, their environment, and time limits."""

    policy_model_servers: dict[str, ModelServerRef] = Field(default_factory=dict)
    """The models of single policies, by the policy's name. All others use `model_server`."""
    max_turns: int = Field(default=30, ge=1)
    """Maximum number of turns of all policies together. Then the rollout is scored as it is."""


class _Policies(BaseModel):
    policies: dict[str, JsonObject] = Field(min_length=1)


class _Rewards(BaseModel):
    rewards: dict[str, FiniteFloat]


class MultiPolicyAgent(MultiParticipantAgent):
    config: MultiPolicyAgentConfig

    async def converse(self, body: AgentRunRequest, jar: CookieJar) -> NeMoGymResponse:
        """The policies act in the order that the environment decides. The first one is the main one of the record."""
        policies = self._conversations(body)
        main, *others = policies.values()
        acting, turn, end = main, 0, None
        while end is None:
            new = acting.end_turn(turn)
            message = await self.environment_message(body, acting, new, turn=turn, jar=jar)
            if message is None:
                end = ENVIRONMENT
            elif turn == self.config.max_turns:
                end = "max_turns"
            else:
                acting = self._addressed(policies, message.to)
                acting.hear(message, produced_by=ENVIRONMENT, turn=turn)
                turn += 1
                reason = await self.play_participant(acting, jar)
                end = None if reason == "message" else reason
        acting.end_turn(turn)
        participants = {policy.name: participant_record(policy, is_trainable=True) for policy in others}
        record_step_seconds(main.step_seconds)
        return main.record(turns=turn, ended_by=end, participants=participants)

    async def verify(self, body: AgentRunRequest, response: NeMoGymResponse, jar: CookieJar) -> ServerReply:
        """The record has the request parameters of the main policy. The environment must give each policy a reward of
        its own, in `rewards`."""
        policies, server = self._conversations(body), self.config.resources_server.name
        names, main = list(policies), next(iter(policies.values()))
        reply = await super().verify(changed(body, responses_create_params=main.request.thawed()), response, jar)
        try:
            rewarded = _Rewards.model_validate(orjson.loads(reply.content())).rewards
        except (ValidationError, orjson.JSONDecodeError) as error:
            found = f"'{server}' gave no finite `rewards` for the policies {', '.join(names)}: {error}"
            raise RolloutError("verifier", found, server=server) from error
        if missing := [name for name in names if name not in rewarded]:
            found = f"The `rewards` of '{server}' are for {sorted(rewarded)}; missing: {', '.join(missing)}."
            raise RolloutError("verifier", found, server=server)
        return reply

    def _conversations(self, body: AgentRunRequest) -> dict[str, ParticipantConversation]:
        shared, servers = set_fields(body.responses_create_params), self.config.policy_model_servers
        policies = {}
        for name, own in self._policies(body).items():
            try:
                params = NeMoGymResponseCreateParamsNonStreaming.model_validate({**shared, **own})
            except ValidationError as error:
                raise RolloutError("input", f"The row's `policies.{name}` is not valid: {error}") from error
            policies[name] = self.conversation_of(name, servers.get(name, self.config.model_server).name, params)
        return policies

    def _policies(self, body: AgentRunRequest) -> dict[str, JsonObject]:
        try:
            return _Policies.model_validate(body.model_extra or {}).policies
        except ValidationError as error:
            found = "The row needs `policies`: the name of each policy, with its request parameters such as `input`."
            raise RolloutError("input", found) from error

    def _addressed(self, policies: dict[str, ParticipantConversation], name: str | None) -> ParticipantConversation:
        if name not in policies:
            server = self.config.resources_server.name
            found = f"next_message of '{server}' is to {name!r}; expected one of the policies {', '.join(policies)}."
            raise RolloutError("environment", found, server=server, retryable=False)
        return policies[name]
