"""What samples carry beside ids, mask and log-probs."""

from collections.abc import Callable
from typing import Any

import pytest

from nemo_gym.llm_api.builders import calls, message, response_of
from nemo_gym.training import TokenTraceError, TrainingSample, samples_of, skyrl_sample, slime_sample, verl_sample
from nemo_gym.training.token_traces import ImageSpan, RewardSpan, RoleSpan
from tests.model_servers import in_front_of
from tests.stub_endpoint import Request, stub_endpoint
from tests.test_image_outputs import IMAGE

PICTURE = {"type": "input_image", "image_url": IMAGE}
SEEN = 99
"""The token that stands for an image."""


def tokens(prompt: list[int], sampled: list[int], **more: Any) -> dict[str, Any]:
    values = [-0.5] * len(sampled)
    return {"prompt_token_ids": prompt, "generation_token_ids": sampled, "generation_log_probs": values, **more}


def record(**fields: Any) -> dict[str, Any]:
    """Two images, one given and one of a tool, then a user speaks."""
    extras: dict[str, Any] = {"image_token_id": SEEN, "log_prob_mode": "processed"}
    first, second = [1, SEEN, SEEN, 2], [1, SEEN, SEEN, 2, 3, 4, 5, SEEN, 6]
    third = [*second, 7, 8]
    output = [
        {**calls("look", {}, call_id="c"), **tokens(first, [3, 4], **extras)},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Here:"}, PICTURE]},
        {**message("Hm."), **tokens(second, [7], routed_experts=[[[1]]], **extras)},
        {"role": "user", "content": "And?"},
        {**message("Yes."), **tokens(third, [9, 10], routed_experts=[[[2]]], **extras)},
    ]
    asked = {"role": "user", "content": [PICTURE, {"type": "input_text", "text": "What is it?"}]}
    return {"reward": 1.0, "responses_create_params": {"input": [asked]}, "response": response_of(*output), **fields}


def sample(**fields: Any) -> TrainingSample:
    (only,) = samples_of(record(**fields))
    return only


def test_every_token_has_a_role_and_images_have_places() -> None:
    flat = sample().tokens
    assert flat.roles == [
        *(RoleSpan(0, 1, "prompt"), RoleSpan(1, 3, "image"), RoleSpan(3, 4, "prompt"), RoleSpan(4, 6, "sampled")),
        *(RoleSpan(6, 7, "tool"), RoleSpan(7, 8, "image"), RoleSpan(8, 9, "tool"), RoleSpan(9, 10, "sampled")),
        *(RoleSpan(10, 11, "user"), RoleSpan(11, 13, "sampled")),
    ]
    assert [at for start, end, role in flat.roles if role == "sampled" for at in range(start, end)] == [
        at for at, is_sampled in enumerate(flat.loss_mask) if is_sampled
    ]
    given = "responses_create_params.input.0.content.0"
    assert flat.images == [ImageSpan(1, 3, given), ImageSpan(7, 8, "response.output.1.output.1")]
    assert flat.log_prob_mode == "processed"


@pytest.mark.parametrize("place", [1, 3])
def test_tokens_of_a_tool_or_a_user_are_not_sampled(place: int) -> None:
    made = record()
    made["response"]["output"][place] |= tokens([1], [99999])
    (only,) = samples_of(made)
    assert only.tokens == sample().tokens


def test_images_whose_number_does_not_fit_have_no_place() -> None:
    made = record()
    made["responses_create_params"]["input"] = "What is it?"
    (only,) = samples_of(made)
    assert [image.place for image in only.tokens.images] == [None, None]


def test_rewards_of_steps_and_of_spans_are_at_their_tokens() -> None:
    assert sample(step_rewards=[0.25, 0, 1]).tokens.rewards == [
        RewardSpan(4, 6, 0.25),
        RewardSpan(9, 10, 0),
        RewardSpan(11, 13, 1),
    ]
    spans = sample(token_rewards=[[0, 1, 2, 0.5], [4, 0, 1, -1.0]])
    assert spans.tokens.rewards == [RewardSpan(5, 6, 0.5), RewardSpan(11, 12, -1.0)]
    assert skyrl_sample(spans)["rewards"] == [0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0]
    assert skyrl_sample(sample())["rewards"] == [0.0] * 8 + [1.0]


def test_components_and_experts_are_where_trainers_read_them() -> None:
    made = sample(reward_components={"right": 1, "polite": 0.5})
    assert made.reward_components == {"right": 1.0, "polite": 0.5}
    assert verl_sample(made)["extra_fields"]["reward_extra_info"] == {"right": 1.0, "polite": 0.5}
    assert verl_sample(made)["routed_experts"] == slime_sample(made)["rollout_routed_experts"] == [[[2]]]


WRONG: list[dict[str, Any]] = [
    {"step_rewards": [1.0]},
    {"step_rewards": [1.0, None, 0.0]},
    {"step_rewards": [1.0, float("nan"), 0.0]},
    {"step_rewards": "1"},
    {"token_rewards": [[0, 1, 3, 0.5]]},
    {"token_rewards": [[1, 0, 1, 0.5]]},
    {"token_rewards": [[0, 1, 0.5]]},
    {"token_rewards": [[0, 0, 1, float("inf")]]},
    {"reward_components": {"right": None}},
    {"reward_components": [1.0]},
]


@pytest.mark.parametrize("fields", WRONG, ids=repr)
def test_rewards_that_fit_no_tokens_are_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(TokenTraceError, match=next(iter(fields))):
        sample(**fields)


def chat(request: Request) -> Any:
    prompt = [5, 6, 7, 8, 9] if len(request.body["messages"]) > 1 else [5, 6]
    top = [{"token": "token_id:7", "logprob": -0.25}, {"token": "token_id:4", "logprob": -30.0}]
    entries = [{"token": "token_id:7", "logprob": -0.25, "top_logprobs": top}]
    read = [None, *({str(token): {"logprob": -0.5 * token}} for token in prompt[1:])]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi."}}
    choice |= {"token_ids": [7], "logprobs": {"content": entries}}
    return {"id": "c", "choices": [choice], "prompt_token_ids": prompt, "prompt_logprobs": read}


def completions(request: Request) -> Any:
    if request.path == "/tokenize":
        return {"tokens": [5, 6] if len(request.body["messages"]) == 1 else [len(str(request.body)), 8, 9]}
    prompt = request.body["prompt"]
    assert (request.body["logprobs"], request.body["prompt_logprobs"]) == (2, 0)
    logprobs = {"token_logprobs": [-0.25], "top_logprobs": [{"token_id:7": -0.25, "token_id:4": -30.0}]}
    read = [None, *({str(token): {"logprob": -0.5 * token}} for token in prompt[1:])]
    return {"choices": [{"text": "Hi.", "token_ids": [7], "logprobs": logprobs, "prompt_logprobs": read}]}


def generate(request: Request) -> Any:
    if request.path == "/detokenize":
        return {"prompt": "Hi."}
    if request.path == "/tokenize":
        return completions(request)
    sampling = request.body["sampling_params"]
    assert (sampling["logprobs"], sampling["prompt_logprobs"]) == (2, 0)
    reply = chat(Request("", {}, {}, {"messages": request.body["token_ids"][2:]}))
    return {**reply, "prompt_token_ids": None}


def sglang(request: Request) -> Any:
    if request.path == "/tokenize":
        return completions(request)
    assert (request.body["top_logprobs_num"], request.body["logprob_start_len"]) == (2, 0)
    read = [[None if not at else -0.5 * token, token, None] for at, token in enumerate(request.body["input_ids"])]
    tops = [[[-0.25, 7, None], [-30.0, 4, None]]]
    meta = {"output_token_logprobs": [[-0.25, 7, None]], "input_token_logprobs": read, "output_top_logprobs": tops}
    return {"text": "Hi.", "output_ids": [7], "meta_info": {**meta, "finish_reason": {"type": "stop"}}}


@pytest.mark.parametrize("endpoint", [chat, completions, generate, sglang], ids=lambda each: each.__name__)
async def test_top_and_prompt_log_probs_come_with_the_tokens(endpoint: Callable[[Request], Any]) -> None:
    protocol = {} if endpoint is chat else {"protocol": "tokens", "engine_api": endpoint.__name__}
    settings: dict[str, Any] = {"return_token_id_information": True, "log_prob_mode": "raw", **protocol}
    settings["extra_body"] = {"prompt_logprobs": 0}
    async with stub_endpoint(endpoint) as stub, in_front_of("vllm_model", "", base_url=stub.url, **settings) as model:
        items: list[dict[str, Any]] = [{"role": "user", "content": "Hi."}]
        output: list[dict[str, Any]] = []
        for _ in range(2):
            body = {"input": items, "top_logprobs": 2, "max_output_tokens": 9}
            reply = await model.post("/v1/responses", json=body)
            assert reply.status == 200, reply.text
            new = [*reply.json()["output"], {"role": "user", "content": "And?"}]
            items, output = [*items, *new], [*output, *new]
    (made,) = samples_of({"reward": 1.0, "response": {"output": output}})
    assert made.tokens.ids == [5, 6, 7, 8, 9, 7]
    assert [[*map(tuple, each)] for each in made.tokens.top_log_probs] == [
        *([], [], [(7, -0.25), (4, -30.0)]),
        *([], [], [(7, -0.25), (4, -30.0)]),
    ]
    assert made.tokens.prompt_log_probs == [None, -3.0, None, -4.0, -4.5, None]
    assert made.tokens.log_prob_mode == "raw"
