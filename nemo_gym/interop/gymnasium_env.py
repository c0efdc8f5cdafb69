"""One of our environments as a Gymnasium environment whose observations and actions are texts."""

import copy
import json
from typing import Any, ClassVar

from nemo_gym.episodes import import_extra
from nemo_gym.interop.environment_host import EnvironmentHost, HostedEpisode, message_texts
from nemo_gym.llm_api.base import JsonObject

gymnasium: Any = import_extra("gymnasium", extra="gymnasium")

CONVERSATION = ("responses_create_params", "response")
HOW_TO_CALL = 'To call a tool, reply with {"name": ..., "arguments": {...}} and nothing else. Tools:'


class AnyText(gymnasium.spaces.Text):  # type: ignore[misc]
    """Texts of any length, in any alphabet. Samples are short."""

    def __init__(self) -> None:
        super().__init__(max_length=100)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


class NeMoGymEnv(gymnasium.Env):  # type: ignore[misc]
    """An episode is a row, chosen by the seed unless `options={"row": ...}` brings one.

    An action that is JSON with `name` and `arguments` calls a tool; any other is a message. The reward comes with the
    last step: when the environment ends the conversation or, if it does not talk, with the first message. After
    `max_steps` the episode is truncated and scored as it stands. The last `info` has what the verifier says.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        *config_paths: str,
        host: EnvironmentHost | None = None,
        rows: list[JsonObject] | None = None,
        max_steps: int = 200,
        **settings: Any,
    ) -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()
        self._owns_host = host is None
        self.host = host or EnvironmentHost(*config_paths, **settings)
        self.rows = self.host.rows() if rows is None else rows
        self.max_steps = max_steps
        self.episode: HostedEpisode | None = None
        self.record: JsonObject = {}
        """Of the last episode that was scored."""
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
        if self._owns_host:
            self.host.close()

    def _give_up(self) -> None:
        if self.episode is not None:
            self.episode.close()
            self.episode = None


def read_call(action: str) -> tuple[str, JsonObject] | None:
    """The tool call that an action is; None if it is a message."""
    try:
        parsed = json.loads(action)
    except (ValueError, RecursionError):
        return None
    match parsed:
        case {"name": str(name), "arguments": dict(arguments)}:
            return name, arguments
    return None
