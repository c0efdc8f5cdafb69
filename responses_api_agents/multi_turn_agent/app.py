"""Conversations of several turns: the policy acts until it says something, then the environment or a simulated user
answers, until one of them ends it."""

from pydantic import Field

from nemo_gym import CookieJar, JsonObject, ModelServerRef, NeMoGymResponse
from nemo_gym.base_responses_api_agent import AgentRunRequest, ToolCallingAgentConfig
from nemo_gym.client.call_log import record_step_seconds
from nemo_gym.participants import ENVIRONMENT, POLICY, MultiParticipantAgent, ParticipantConversation
from responses_api_agents.multi_turn_agent.simulated_user import Answer, SimulatedUser, UserConfig, is_addressed


class MultiTurnAgentConfig(UserConfig, ToolCallingAgentConfig):
    """The model, its environment, who answers the model, and time limits."""

    max_turns: int = Field(default=30, ge=1)
    """Maximum number of turns of the policy. Then the rollout is scored as it is."""
    user_model_server: ModelServerRef | None = None
    """The model that plays the user. Without it the environment's `next_message` answers the policy."""


class MultiTurnAgent(MultiParticipantAgent):
    config: MultiTurnAgentConfig

    async def converse(self, body: AgentRunRequest, jar: CookieJar) -> NeMoGymResponse:
        """The policy and its partner take turns. Turn 0 is an opening by the partner, if the row needs one."""
        policy = self.conversation_of(POLICY, self.config.model_server.name, body.responses_create_params)
        other = self._partner_of(body, policy)
        turn, end = 0, None
        if not is_addressed(policy.given):
            end = await self._hear(policy, other, turn, jar)
        while end is None:
            turn += 1
            reason = await self.play_participant(policy, jar)
            if reason == "message":
                end = await self._hear(policy, other, turn, jar)
            else:
                policy.end_turn(turn)
                end = reason
            if end is None and turn == self.config.max_turns:
                end = "max_turns"
        record_step_seconds(policy.step_seconds)
        return policy.record(turns=turn, ended_by=end, **other.records())

    async def _hear(
        self, policy: ParticipantConversation, other: "AnsweringEnvironment | SimulatedUser", turn: int, jar: CookieJar
    ) -> str | None:
        """Give the policy the answer to its turn, and return who or what ended the conversation, if it is over."""
        answer = await other.answer(policy.end_turn(turn), turn, jar)
        if answer.message is not None:
            policy.hear(answer.message, produced_by=other.NAME, turn=turn)
        return answer.end

    def _partner_of(
        self, body: AgentRunRequest, policy: ParticipantConversation
    ) -> "AnsweringEnvironment | SimulatedUser":
        if self.config.user_model_server is None:
            return AnsweringEnvironment(self, body, policy)
        return SimulatedUser.of(self, self.config, self.config.user_model_server.name, body, policy)


class AnsweringEnvironment:
    """The environment answers, by its `next_message`."""

    NAME = ENVIRONMENT

    def __init__(self, agent: MultiTurnAgent, body: AgentRunRequest, policy: ParticipantConversation) -> None:
        self._agent, self._body, self._policy = agent, body, policy

    async def answer(self, response: NeMoGymResponse, turn: int, jar: CookieJar) -> Answer:
        message = await self._agent.environment_message(self._body, self._policy, response, turn=turn, jar=jar)
        return Answer(message, ENVIRONMENT if message is None else None)

    def records(self) -> JsonObject:
        """Nothing: the environment's messages are in the policy's conversation."""
        return {}
