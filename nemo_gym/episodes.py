"""Environments that are reset and then stepped, such as games: the policy's message is the action, the observation is
the next message, the rewards of all steps are summed. `multi_turn_agent` plays them."""

import asyncio
import importlib
import math
import warnings
from typing import Any, NamedTuple, Protocol

from nemo_gym.answers import last_text
from nemo_gym.base_resources_server import (
    BaseNextMessageRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SessionState,
    SimpleResourcesServer,
)
from nemo_gym.errors import MissingExtraError, RolloutError

LEFT = ("incomplete", "silent", "max_steps")
"""Ends of a rollout (`ended_by`) by which a policy leaves an episode that goes on."""


class EpisodeStep(NamedTuple):
    """The result of an action."""

    observation: str
    reward: float = 0.0
    is_over: bool = False


class Episode(Protocol):
    """One run of an environment. Its methods may block: they are called in a thread, one at a time."""

    def reset(self) -> str:
        """The first observation."""

    def step(self, action: str) -> EpisodeStep:
        """Act. An invalid action only costs the policy a turn."""

    def close(self) -> None:
        """Release what the environment holds."""


class EpisodeSession(SessionState):
    """The episode of a rollout, and what it has brought so far."""

    episode: Any = None
    reward: float = 0.0
    steps: int = 0
    is_over: bool = False
    is_open: bool = False
    """True if the policy has seen the first observation."""

    def add_step(self, reward: float, *, is_over: bool) -> None:
        """Count a step that the episode has made."""
        if not math.isfinite(reward):
            raise RolloutError("environment", f"Step {self.steps + 1} has the reward {reward}.")
        self.steps, self.reward, self.is_over = self.steps + 1, self.reward + reward, is_over

    def close(self) -> None:
        if self.episode is not None:
            self.episode.close()


class EpisodeVerifyResponse(BaseVerifyResponse):
    steps: int
    is_over: bool
    """False if the rollout ended before the episode did."""


class EpisodeResourcesServer(SimpleResourcesServer):
    """Subclass, and write a `seed_session` that puts an Episode into the session."""

    given_history = "refuse"

    def next_message(  # type: ignore[override]
        self, body: BaseNextMessageRequest, session: EpisodeSession
    ) -> str | None:
        """Act, in a thread of its own. Turn 0 is the first observation."""
        if session.episode is None:
            raise RolloutError("input", "The session has no episode: call /seed_session first.")
        open_episode(body, session)
        if body.turn == 0:
            return str(session.episode.reset())
        if session.is_over:
            return None
        step = session.episode.step(last_text(body.response))
        session.add_step(step.reward, is_over=step.is_over)
        return None if step.is_over else step.observation

    def reward_of_leaving(self, session: EpisodeSession) -> float:
        """What a policy gets, besides its reward so far, that falls silent before the episode is over. It must not
        be more than what it would get if it went on."""
        return 0.0

    async def verify(self, body: BaseVerifyRequest, session: EpisodeSession) -> EpisodeVerifyResponse:
        reward = session.reward
        if session.episode is not None and not session.is_over and has_left(body):
            reward += await asyncio.to_thread(self.reward_of_leaving, session)
        return EpisodeVerifyResponse(
            responses_create_params=body.responses_create_params,
            response=body.response,
            reward=reward,
            steps=session.steps,
            is_over=session.is_over,
        )


def open_episode(body: BaseNextMessageRequest, session: EpisodeSession) -> None:
    """Refuse an action without a first observation: the row ended with a message of the user."""
    session.is_open = session.is_open or body.turn == 0
    if not session.is_open:
        raise RolloutError("input", "The environment opens the conversation: `input` may not end with a user message.")


def has_left(body: BaseVerifyRequest) -> bool:
    """True if the policy ended its rollout itself: by silence, an endless reply or endless tool calls."""
    return (body.response.model_extra or {}).get("ended_by") in LEFT


def import_extra(module: str, *, extra: str) -> Any:
    """Import a package that is an optional install, without the warnings that it has for its own authors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(module, extra) from error
