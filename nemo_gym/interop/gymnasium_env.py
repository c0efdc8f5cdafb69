"""A NeMo Gym environment as a Gymnasium environment whose observations and actions are texts."""

import copy
import json
from contextlib import ExitStack
from pathlib import Path
from string import ascii_letters
from typing import Any, ClassVar

from nemo_gym.episodes import import_extra
from nemo_gym.errors import ConfigError
from nemo_gym.interop.environment_host import EnvironmentHost, HostedEpisode, message_texts
from nemo_gym.llm_api.base import JsonObject

gymnasium: Any = import_extra("gymnasium", extra="gymnasium")

CONVERSATION = ("responses_create_params", "response")
HOW_TO_CALL = 'To call a tool, reply with {"name": ..., "arguments": {...}} and nothing else. Tools:'


class AnyText(gymnasium.Space):  # type: ignore[misc]
    """Texts of any length, in any alphabet, unlike `gymnasium.spaces.Text`. Samples are short."""

    def __init__(self) -> None:
        super().__init__(shape=(), dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "".join(self.np_random.choice(list(ascii_letters), size=10))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)


class NeMoGymEnv(gymnasium.Env):  # type: ignore[misc]
    """An episode is one row, chosen by the seed or given as `options={"row": ...}`.

    An action that is JSON with `name` and `arguments` calls a tool. Any other action is a message. The last step has
    the reward: when the environment ends the conversation or, if it has no conversation, at the first message. After
    `max_steps` the episode is truncated and scored. The last `info` has the fields of the verifier.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        *config_paths: str | Path,
        host: EnvironmentHost | None = None,
        rows: list[JsonObject] | None = None,
        max_steps: int = 200,
        **settings: Any,
    ) -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()
        self._owns_host = host is None
        self.host = host or EnvironmentHost(*config_paths, **settings)
        with ExitStack() as opened:
            opened.callback(self._close_host)
            self.rows = self.host.rows() if rows is None else rows
            if not self.rows:
                raise ConfigError("There are no rows to play: `rows` is empty.")
            opened.pop_all()
        self.max_steps = max_steps
        self.episode: HostedEpisode | None = None
        self.record: JsonObject = {}
        """The record of the last scored episode."""
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, JsonObject]:
        super().reset(seed=seed)
        self._give_up()
        row = (options or {}).get("row") or self.rows[int(self.np_random.integers(len(self.rows)))]
        self.episode, self.steps = HostedEpisode(self.host, row), 0
        texts = [*message_texts(self.episode.messages), self.episode.open()]
        if self.episode.tools:
            texts.append(f"{HOW_TO_CALL} {json.dumps(self.episode.tools)}")
        return "\n\n".join(filter(None, texts)), {"row": copy.deepcopy(row)}

    def step(self, action: str) -> tuple[str, float, bool, bool, JsonObject]:
        if self.episode is None:
            raise gymnasium.error.ResetNeeded("The episode is over: call reset().")
        if not isinstance(action, str):
            raise gymnasium.error.InvalidAction(f"Expected a text, found {type(action).__name__}.")
        self.steps += 1
        call = read_call(action)
        if call is not None:
            observation: str | None = self.episode.call_tool(*call).text
        else:
            observation = self.episode.say(action)
        is_truncated = observation is not None and self.steps >= self.max_steps
        if observation is not None and not is_truncated:
            return observation, 0.0, False, False, {}
        self.record, self.episode = self.episode.score(), None
        fields = {name: value for name, value in self.record.items() if name not in CONVERSATION}
        return observation or "", float(fields["reward"]), not is_truncated, is_truncated, fields

    def close(self) -> None:
        self._give_up()
        self._close_host()

    def _close_host(self) -> None:
        if self._owns_host:
            self.host.close()

    def _give_up(self) -> None:
        episode, self.episode = self.episode, None
        if episode is not None:
            episode.close()


def read_call(action: str) -> tuple[str, JsonObject] | None:
    """Parse an action as a tool call; None if it is a message."""
    try:
        parsed = json.loads(action)
    except (ValueError, RecursionError):
        return None
    match parsed:
        case {"name": str(name), "arguments": dict(arguments)}:
            return name, arguments
    return None
