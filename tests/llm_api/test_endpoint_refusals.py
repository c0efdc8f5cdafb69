"""Which refusals end a rollout, in the words of each endpoint, and which are errors."""

from typing import Any

import orjson
import pytest

from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.endpoint_errors import ending_of
from nemo_gym.llm_api.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.llm_api.responses_chat import completion_refusal, response_refusal


def refusal(body: Any, status: int = 400) -> UpstreamError:
    return UpstreamError("http://model", status, body if isinstance(body, str) else orjson.dumps(body).decode())


def openai_error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": "messages", "code": code}}


def vllm_error(message: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}


OVERFLOWS: list[Any] = [
    openai_error(
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please "
        "reduce the length of the messages.",
        "context_length_exceeded",
    ),
    openai_error("Your input exceeds the context window of this model.", "context_length_exceeded"),
    openai_error("Your input exceeds the context window of this model. Please adjust your input and try again."),
    vllm_error(
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the "
        "messages, 1000 in the completion). Please reduce the length of the messages or completion."
    ),
    vllm_error(
        "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens. Please "
        "reduce the length of the input messages."
    ),
    {
        "error": vllm_error(
            "'max_tokens' or 'max_completion_tokens' is too large: 2048. This model's maximum context length is 4096 "
            "tokens and your request has 3000 input tokens (2048 > 4096 - 3000)."
        )
    },
    vllm_error("The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure ..."),
    vllm_error("Input length (5000) exceeds model's maximum context length (4096)."),
    vllm_error(
        "You passed 4000 input tokens and requested 1000 output tokens. However, the model's context length is only "
        "4096 tokens, resulting in a maximum input length of 3096 tokens."
    ),
    vllm_error("The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
    vllm_error(
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
        "5000 tokens: 4900 tokens from the input messages and 100 tokens for the completion."
    ),
    vllm_error("Input length (5000 tokens) exceeds the maximum allowed length (4091 tokens)."),
    openai_error(
        "litellm.ContextWindowExceededError: litellm.BadRequestError: prompt is too long: 210000 tokens > 200000 "
        "maximum",
        "400",
    ),
    {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 600,
            "n_ctx": 512,
        }
    },
    openai_error(
        "This model's maximum context length is 512 tokens, however you requested 600 tokens (500 in your prompt; 100 "
        "for the completion). Please reduce your prompt; or completion length.",
        "context_length_exceeded",
    ),
    {"detail": "Requested tokens (600) exceed context window of 512"},
    "This model's maximum context length is 512 tokens, and that is not JSON.",
]


@pytest.mark.parametrize("body", OVERFLOWS)
def test_no_room_left_is_an_ending(body: Any) -> None:
    assert ending_of(refusal(body)) == "max_output_tokens"


FILTERED: list[Any] = [
    {
        "error": {
            "message": "The response was filtered due to the prompt triggering Azure's content management policy.",
            "type": None,
            "param": "prompt",
            "code": "content_filter",
            "status": 400,
            "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {}},
        }
    },
    openai_error("Your prompt was flagged as potentially violating our usage policy.", "invalid_prompt"),
    openai_error("litellm.ContentPolicyViolationError: the prompt was refused", "400"),
]


@pytest.mark.parametrize("body", FILTERED)
def test_filtered_content_is_an_ending(body: Any) -> None:
    assert ending_of(refusal(body)) == "content_filter"


ERRORS: list[tuple[Any, int]] = [
    (openai_error("max_tokens must be at least 1, got 0."), 400),
    (
        openai_error("Unsupported parameter: 'max_tokens' is not supported with this model.", "unsupported_parameter"),
        400,
    ),
    (openai_error("max_tokens is too large: 100000. This model supports at most 16384 completion tokens."), 400),
    (
        vllm_error(
            "'max_tokens' or 'max_completion_tokens' is too large: 65536. This model's maximum context length is 4096 "
            "tokens and your request has 20 input tokens (65536 > 4096 - 20)."
        ),
        400,
    ),
    (
        vllm_error(
            "This model's maximum context length is 4096 tokens. However, you requested 9020 tokens (20 in the "
            "messages, 9000 in the completion). Please reduce the length of the messages or completion."
        ),
        400,
    ),
    (vllm_error("context length is a number"), 400),
    ({"detail": [{"type": "missing", "loc": ["body"], "input": "This model's maximum context length is 5"}]}, 422),
    (OVERFLOWS[0], 500),
    (OVERFLOWS[0], 429),
    (OVERFLOWS[0], 0),
    ("", 400),
    ("null", 400),
    ("[1]", 400),
    ({"error": "bad"}, 400),
]


@pytest.mark.parametrize(("body", "status"), ERRORS)
def test_every_other_refusal_is_an_error(body: Any, status: int) -> None:
    error = refusal(body, status)
    assert ending_of(error) is None
    with pytest.raises(UpstreamError) as caught:
        completion_refusal(error, model="m")
    assert caught.value is error


@pytest.mark.parametrize(
    ("body", "reason", "finish"),
    [(OVERFLOWS[0], "max_output_tokens", "length"), (FILTERED[0], "content_filter", "content_filter")],
)
def test_an_ending_is_visible_and_says_nothing(body: Any, reason: str, finish: str) -> None:
    asked = NeMoGymResponseCreateParamsNonStreaming(input="Hi.", temperature=0.5)
    response = response_refusal(refusal(body), asked, model="m")
    assert (response.status, response.output, response.temperature) == ("incomplete", [], 0.5)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == reason
    assert response.usage is not None
    assert response.usage.total_tokens == 0
    completion = completion_refusal(refusal(body), model="m")
    assert (completion.choices[0].finish_reason, completion.choices[0].message.content) == (finish, None)
