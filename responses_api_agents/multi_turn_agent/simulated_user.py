"""A model plays the user: it knows its persona and what the policy says, and nothing else of the policy."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemo_gym import CookieJar, JsonObject, NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.base_resources_server import NextMessage
from nemo_gym.base_responses_api_agent import AgentRunRequest
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.responses import NeMoGymResponseInputItem, NeMoGymResponseOutputMessage, NeMoGymToolParam
from nemo_gym.participants import (
    POLICY,
    USER,
    MultiParticipantAgent,
    ParticipantConversation,
    message_text,
    participant_record,
)

TEMPLATE = """\
You play a person who talks to an assistant. Stay in this role:

{persona}

Write only what this person says next, in one short message. Do not reveal everything at once, do not invent facts, and
do not play the assistant. When all you want is done, or cannot be done, reply with {stop_marker} alone."""


class UserConfig(BaseModel):
    """The settings of the simulated user. A row's `user` may override the first three."""

    user_template: str = TEMPLATE
    """The system prompt of the user model. `{persona}` and `{stop_marker}` are replaced."""
    user_stop_marker: str = Field(default="###STOP###", min_length=1)
    """The user ends the conversation with a message that contains this. What comes before it is still said."""
    user_max_turns: int = Field(default=30, ge=1)
    """Maximum number of messages of the user. Then the conversation ends."""
    user_opening: str = "Hello. How can I help you?"
    """The first message to the user model."""
    user_responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Request parameters for the user model, such as its temperature."""


class UserSpec(BaseModel):
    """The row's `user`: who it is, and what it can do."""

    model_config = ConfigDict(extra="forbid")

    persona: str
    """The user's role, wishes and knowledge. Only the user model sees it."""
    greeting: str | None = None
    """The first message of the user, if the row's `input` has none. Without it the user model writes it."""
    template: str | None = None
    stop_marker: str | None = Field(default=None, min_length=1)
    max_turns: int | None = Field(default=None, ge=1)
    tools: list[NeMoGymToolParam] = Field(default_factory=list)
    """The environment's tools that the user may call."""


class Answer(NamedTuple):
    """A message to the policy, and who or what ended the conversation if it is over."""

    message: NextMessage | None
    end: str | None = None


class SimulatedUser:
    """A user who answers the policy, played by a model."""

    NAME = USER

    def __init__(
        self,
        agent: MultiParticipantAgent,
        user: ParticipantConversation,
        *,
        stop_marker: str,
        max_turns: int,
        greeting: str | None,
    ) -> None:
        self._agent, self._user, self._greeting = agent, user, greeting
        self._stop_marker, self._turns_left = stop_marker, max_turns

    @classmethod
    def of(
        cls,
        agent: MultiParticipantAgent,
        config: UserConfig,
        server: str,
        body: AgentRunRequest,
        policy: ParticipantConversation,
    ) -> Self:
        spec = _spec_of(body)
        stop_marker = spec.stop_marker or config.user_stop_marker
        template = spec.template or config.user_template
        prompt = template.replace("{persona}", spec.persona).replace("{stop_marker}", stop_marker)
        is_opened = is_addressed(policy.given)
        greeting = None if is_opened else spec.greeting
        said = [*seen_by_user(policy.given), *([_message("assistant", greeting)] if greeting else [])]
        start = [_message("system", prompt), _message("user", config.user_opening), *said]
        params = {**config.user_responses_create_params, "input": start, "tools": spec.tools}
        user = agent.conversation_of(USER, server, NeMoGymResponseCreateParamsNonStreaming.model_validate(params))
        max_turns = spec.max_turns or config.user_max_turns
        return cls(agent, user, stop_marker=stop_marker, max_turns=max_turns, greeting=greeting)

    def records(self) -> JsonObject:
        """The user's own conversation, for the record of the rollout."""
        return {"participants": {USER: participant_record(self._user, is_trainable=False)}}

    async def answer(self, response: NeMoGymResponse, turn: int, jar: CookieJar) -> Answer:
        """Return the user's answer to the policy's turn."""
        if turn == 0 and self._greeting is not None:
            self._turns_left -= 1
            return Answer(NextMessage(content=self._greeting))
        if self._turns_left == 0:
            return Answer(None, "user_max_turns")
        self._turns_left -= 1
        if turn:
            self._user.hear(NextMessage(content=message_text(response.output)), produced_by=POLICY, turn=turn)
        said = await self._say(turn, jar)
        before, marker, _ = said.partition(self._stop_marker)
        message = NextMessage(content=before.strip()) if before.strip() else None
        return Answer(message, USER if marker else None)

    async def _say(self, turn: int, jar: CookieJar) -> str:
        """The user's next message. One that is missing, cut off or a refusal is a failure of the simulator, never a
        score."""
        reason = await self._agent.play_participant(self._user, jar)
        response = self._user.end_turn(turn)
        text = message_text(response.output)
        code = failure_in_message(response, text) if reason == "message" else reason
        if code is None:
            return text
        server = self._user.model_server
        raise RolloutError(
            "model", f"The simulated user of {server} gave no message: {code}.", server=server, code=code
        )


def failure_in_message(response: NeMoGymResponse, text: str) -> str | None:
    """Why the messages of a turn are not what the user says; None if they are."""
    messages = [item for item in response.output if isinstance(item, NeMoGymResponseOutputMessage)]
    if response.status == "incomplete" or any(message.status != "completed" for message in messages):
        return "incomplete"
    if any(part.type == "refusal" for message in messages for part in message.content):
        return "refused"
    return None if text else "empty"


def is_addressed(items: Sequence[NeMoGymResponseInputItem]) -> bool:
    """True if the last item is a message to the policy, so that the policy acts first."""
    return bool(items) and getattr(items[-1], "role", None) == "user"


def seen_by_user(items: Iterable[NeMoGymResponseInputItem]) -> list[JsonObject]:
    """The conversation that a row begins with, as its user sees it: the messages of both, with roles exchanged."""
    roles = {"user": "assistant", "assistant": "user"}
    said = [(roles.get(getattr(item, "role", "")), message_text([item])) for item in items]
    return [_message(role, text) for role, text in said if role and text]


def _message(role: str, text: str) -> JsonObject:
    return {"role": role, "content": text}


def _spec_of(body: AgentRunRequest) -> UserSpec:
    try:
        return UserSpec.model_validate((body.model_extra or {}).get("user"))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, ("user", *found["loc"])))
        raise RolloutError(
            "input", f"The row's `{place}`: {found['msg']}. A simulated user needs a persona."
        ) from error
