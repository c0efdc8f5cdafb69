"""Any environment registered with Gymnasium: the policy names an action, and reads what it observes."""

import json
import re
import threading
from typing import Any

from pydantic import Field

from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseSeedSessionRequest
from nemo_gym.episodes import EpisodeResourcesServer, EpisodeSession, EpisodeStep, import_extra
from nemo_gym.errors import RolloutError

_WHOLE_NUMBER = re.compile(r"-?\d+")


class GymnasiumConfig(BaseResourcesServerConfig, extra="forbid"):
    modules: list[str] = Field(default_factory=list)
    """Packages to import first, because they register environments."""


class GymnasiumRow(BaseSeedSessionRequest):
    env_id: str
    """As `gymnasium.make` takes it."""
    seed: int | None = None
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment. `render_mode: ansi` makes the text that it draws the observation."""


_MAKE = threading.Lock()
"""Gymnasium imports the module of an environment when it is first made; two threads at it fail each other's import."""


class GymnasiumEpisode:
    def __init__(self, row: GymnasiumRow) -> None:
        self.gymnasium = import_extra("gymnasium", extra="gymnasium")
        try:
            with _MAKE:
                self.env = self.gymnasium.make(row.env_id, **row.env_kwargs)
        except (self.gymnasium.error.Error, TypeError) as error:
            raise RolloutError("input", f"Gymnasium cannot make {row.env_id!r}: {error}") from error
        self.seed = row.seed

    def reset(self) -> str:
        observation, _info = self.env.reset(seed=self.seed)
        return f"Actions: {self.env.action_space}\n\n{self._observation_text(observation)}"

    def step(self, action: str) -> EpisodeStep:
        try:
            chosen = self.read_action(action)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            return EpisodeStep(f"That is no action: {error}. Actions: {self.env.action_space}")
        observation, reward, terminated, truncated, _info = self.env.step(chosen)
        return EpisodeStep(self._observation_text(observation), float(reward), terminated or truncated)

    def close(self) -> None:
        self.env.close()

    def read_action(self, text: str) -> Any:
        """The last whole number of the text for a discrete space, the text itself for a text space, otherwise JSON."""
        space, spaces = self.env.action_space, self.gymnasium.spaces
        if isinstance(space, spaces.Discrete):
            numbers = _WHOLE_NUMBER.findall(text)
            action: Any = int(numbers[-1]) if numbers else None
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
    config: GymnasiumConfig

    def seed_session(self, body: GymnasiumRow, session: EpisodeSession) -> None:  # type: ignore[override]
        for module in self.config.modules:
            import_extra(module, extra="gymnasium")
        session.episode = GymnasiumEpisode(body)
