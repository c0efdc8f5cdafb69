"""A conversation of an agent with its model."""

import orjson

from nemo_gym.base_responses_api_agent import Conversation
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.responses import NeMoGymResponseCreateParamsNonStreaming


def test_items_that_are_assigned_are_those_of_the_next_requests() -> None:
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(
        {"input": [{"role": "user", "content": text} for text in ("one", "two", "three")]}
    )
    talk = Conversation.of("model", params)
    assert len(_sent(talk)) == 3
    talk.items = talk.items[:1] + talk.items[-1:]
    assert _sent(talk) == ["one", "three"]
    talk.add_message("four")
    assert _sent(talk) == ["one", "three", "four"]
    talk.request = talk.request.changed(temperature=0.5)
    assert b'"temperature":0.5' in encode(talk.request)
    assert len(params.input) == 3


def _sent(talk: Conversation) -> list[str]:
    request = orjson.loads(encode(talk.request, exclude_unset=True))
    return [item["content"] for item in request["input"]]
