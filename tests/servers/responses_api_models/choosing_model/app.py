"""A random policy: says one of the row's choices, by the row's seed and the number of the turn."""

import json
import random
from typing import Any

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.testing import says


def choice(choices: list[str], seed: str, turn: int) -> str:
    """What it says in a turn, from 0. The package's own loop in a test uses the same function."""
    return random.Random(f"{seed} {turn}").choice(choices)


class ChoosingModelConfig(BaseResponsesAPIModelConfig):
    pass


class ChoosingModel(SimpleResponsesAPIModel):
    config: ChoosingModelConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> dict[str, Any]:
        given, told = body.metadata or {}, body.input if isinstance(body.input, list) else []
        turn = sum(getattr(item, "role", None) == "assistant" for item in told)
        return says(choice(json.loads(given["choices"]), given["seed"], turn))

    async def chat_completions(self, *_args: Any) -> Any:
        raise NotImplementedError
