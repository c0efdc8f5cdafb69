"""A random policy: says one of the row's choices, by the row's seed and the number of the turn. A choice that is JSON
with a `name` and `arguments` is a tool call."""

import json
import random
from typing import Any

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.testing import calls, response_of, says


def choice(choices: list[str], seed: str, turn: int) -> str:
    """What it says in a turn, from 0. The package's own loop in a test uses the same function."""
    return random.Random(f"{seed} {turn}").choice(choices)


class ChoosingModelConfig(BaseResponsesAPIModelConfig):
    choices: list[str] = []
    """For requests that bring none: then the first message is the seed."""


class ChoosingModel(SimpleResponsesAPIModel):
    config: ChoosingModelConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> dict[str, Any]:
        given, told = body.metadata or {}, body.input if isinstance(body.input, list) else []
        acts = [getattr(item, "role", None) == "assistant" or item.type == "function_call" for item in told]
        first = str(getattr(told[0], "content", "")) if told else ""
        choices, seed = json.loads(given.get("choices", "[]")), given.get("seed", first)
        said = choice(choices or self.config.choices, seed, sum(acts))
        return response_of(calls(**json.loads(said))) if said.startswith('{"name"') else says(said)

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> dict[str, Any]:
        messages = [dict(message) for message in body.messages]
        turn = sum(message["role"] == "assistant" for message in messages)
        said = choice(self.config.choices, str(messages[0]["content"]), turn)
        call = {"id": f"call_{turn}", "type": "function", "function": json.loads(said)} if said[0] == "{" else None
        if call is not None:
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        message = {"role": "assistant", "content": None if call else said, **({"tool_calls": [call]} if call else {})}
        reply = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "chat", "object": "chat.completion", "created": 0, "model": "choosing", "choices": [reply]}
