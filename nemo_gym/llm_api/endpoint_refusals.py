"""Replies that say how a rollout ended, for an endpoint that refused to go on."""

import time
from uuid import uuid4

from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.chat import NeMoGymChatCompletion
from nemo_gym.llm_api.endpoint_errors import ending_of
from nemo_gym.llm_api.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.llm_api.responses_chat import response_from_completion


def completion_refusal(error: UpstreamError, *, model: str) -> NeMoGymChatCompletion:
    """The completion that says how the rollout ended, with nothing in it. Raises `error` if it is just an error."""
    cut_off = ending_of(error)
    if cut_off is None:
        raise error
    finish = "length" if cut_off == "max_output_tokens" else "content_filter"
    message = {"role": "assistant", "content": None}
    return NeMoGymChatCompletion.model_validate(
        {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "choices": [{"index": 0, "finish_reason": finish, "message": message}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }
    )


def response_refusal(
    error: UpstreamError, params: NeMoGymResponseCreateParamsNonStreaming, *, model: str
) -> NeMoGymResponse:
    """As `completion_refusal`, in the Responses dialect."""
    return response_from_completion(params, completion_refusal(error, model=model), model=model)
