"""Any environment registered with Gymnasium: the policy names an action, and reads what it observes."""

import json
import re
import threading
from typing import Any

from pydantic import Field

from nemo_gym.answers import Declaration, final_declaration, shown
from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseSeedSessionRequest
from nemo_gym.episodes import EpisodeResourcesServer, EpisodeSession, EpisodeStep, import_extra
from nemo_gym.errors import RolloutError

_WHOLE_NUMBER = re.compile(r"(?<![\w.])-?[0-9]+(?![\w]|\.\d)")
BAD_ARGUMENTS = (TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""Exceptions of environments whose `env_kwargs` do not fit."""
TRIED_STEPS = 100
"""Random steps by which the reward of an invalid action is found."""
UNLIMITED_STEPS = 200
"""The length of an episode without a limit of its own, for the reward of leaving it."""


class GymnasiumConfig(BaseResourcesServerConfig, extra="forbid"):
    modules: list[str] = Field(default_factory=list)
    """Packages to import first, because they register environments."""


class GymnasiumRow(BaseSeedSessionRequest):
    env_id: str
    """The id for `gymnasium.make`."""
    seed: int | None = Field(default=None, ge=0)
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment. `render_mode: ansi` makes the text that it draws the observation."""


_MAKE = threading.Lock()
"""Gymnasium imports the module of an environment when it is first made; two threads at it fail each other's import."""


class GymnasiumEpisode:
    def __init__(self, row: GymnasiumRow) -> None:
        self.gymnasium = import_extra("gymnasium", extra="gymnasium")
        self.row, self.seed = row, row.seed
        self.invalid_reward: float | None = None
        self.env = self._made()

    def _made(self) -> Any:
        row = self.row
        try:
            with _MAKE:
                return self.gymnasium.make(row.env_id, **row.env_kwargs)
        except (self.gymnasium.error.Error, *BAD_ARGUMENTS) as error:
            raise RolloutError("input", f"Gymnasium cannot make {row.env_id!r}: {error}") from error

    def reset(self) -> str:
        observation, _info = self.env.reset(seed=self.seed)
        return f"Actions: {self.env.action_space}\n\n{self._observation_text(observation)}"

    def step(self, action: str) -> EpisodeStep:
        try:
            chosen = self.read_action(action)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            return EpisodeStep(f"That is no action: {error}. Actions: {self.env.action_space}", self.worst_reward())
        observation, reward, terminated, truncated, _info = self.env.step(chosen)
        return EpisodeStep(self._observation_text(observation), float(reward), terminated or truncated)

    def close(self) -> None:
        self.env.close()

    def worst_reward(self) -> float:
        """The lowest reward of random steps, at most 0: not to act must not pay where acting costs something."""
        if self.invalid_reward is None:
            self.invalid_reward = self._found_worst_reward()
        return self.invalid_reward

    def steps_left(self, steps: int) -> int:
        limit = self.env.spec.max_episode_steps if self.env.spec else None
        return max(1, (limit or UNLIMITED_STEPS) - steps)

    def _found_worst_reward(self) -> float:
        env, worst = self._made(), 0.0
        env.reset(seed=self.seed)
        env.action_space.seed(self.seed)
        for _ in range(TRIED_STEPS):
            _observation, reward, terminated, truncated, _info = env.step(env.action_space.sample())
            worst = min(worst, float(reward))
            if terminated or truncated:
                env.reset()
        env.close()
        return worst

    def read_action(self, text: str) -> Any:
        """The last whole number of the text for a discrete space, as `final_declaration` decides, the text itself for
        a text space, otherwise JSON. Thoughts and hidden text are left out."""
        space, spaces, text = self.env.action_space, self.gymnasium.spaces, shown(text)
        if isinstance(space, spaces.Discrete):
            numbers = [Declaration(*number.span(), number[0]) for number in _WHOLE_NUMBER.finditer(text)]
            last = final_declaration(text, numbers)
            action: Any = int(last.content) if last and _WHOLE_NUMBER.fullmatch(last.content) else None
        elif isinstance(space, spaces.Text):
            action = text
        else:
            action = self._member(space, json.loads(text))
        if action is None or not space.contains(action):
            raise ValueError(f"{action!r:.100} is not in the action space")
        return action

    def _member(self, space: Any, value: Any) -> Any:
        """A value of JSON as a member of a space."""
        spaces = self.gymnasium.spaces
        if isinstance(space, spaces.Tuple):
            return tuple(self._member(each, item) for each, item in zip(space, value, strict=True))
        if isinstance(space, spaces.Dict):
            return {name: self._member(each, value[name]) for name, each in space.items()}
        is_scalar = isinstance(space, spaces.Discrete | spaces.Text)
        return value if is_scalar else space.from_jsonable([value])[0]

    def _observation_text(self, observation: Any) -> str:
        if self.env.render_mode == "ansi":
            return str(self.env.render())
        return json.dumps(_plain(observation), default=str)


def _plain(value: Any) -> Any:
    """An observation as JSON has it: arrays and numbers of numpy become lists and numbers."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


class GymnasiumResourcesServer(EpisodeResourcesServer):
    EXTRA = "gymnasium"

    config: GymnasiumConfig

    def seed_session(self, body: GymnasiumRow, session: EpisodeSession) -> None:  # type: ignore[override]
        for module in self.config.modules:
            import_extra(module, extra="gymnasium")
        session.episode = GymnasiumEpisode(body)

    def reward_of_leaving(self, session: EpisodeSession) -> float:
        """The penalty of invalid actions until the end of the episode, so that not acting does not pay."""
        episode: GymnasiumEpisode = session.episode
        return episode.worst_reward() * episode.steps_left(session.steps)
