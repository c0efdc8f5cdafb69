"""Tokens that cannot be what an engine sampled are an error of the model. None of them becomes a sample."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tests.model_servers import in_front_of
from tests.stub_endpoint import completion, stub_endpoint

Reply = dict[str, Any]
IDS, VALUES, PROMPT = [5, 6, 7], [-0.1, -0.2, -0.3], [1, 2]
HUGE = orjson.Fragment(b"1e999")


def chat_reply() -> Reply:
    made: Reply = completion("Hi.")
    entries = [{"token": f"token_id:{token}", "logprob": value} for token, value in zip(IDS, VALUES, strict=True)]
    made["choices"][0] |= {"logprobs": {"content": entries}, "token_ids": [*IDS]}
    return {**made, "prompt_token_ids": [*PROMPT]}


def completions_reply() -> Reply:
    logprobs = {"token_logprobs": [*VALUES], "tokens": [f"token_id:{token}" for token in IDS]}
    choice = {"text": "Hi.", "token_ids": [*IDS], "logprobs": logprobs, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": len(PROMPT)}}


def generate_reply() -> Reply:
    entries = [{"token": f"token_id:{token}", "logprob": value} for token, value in zip(IDS, VALUES, strict=True)]
    return {"choices": [{"token_ids": [*IDS], "logprobs": {"content": entries}, "finish_reason": "stop"}]}


def sglang_reply() -> Reply:
    pairs = [[value, token, None] for value, token in zip(VALUES, IDS, strict=True)]
    meta = {"output_token_logprobs": pairs, "finish_reason": {"type": "stop"}, "prompt_tokens": len(PROMPT)}
    return {"text": "Hi.", "output_ids": [*IDS], "meta_info": meta}


REPLIES = {
    "chat": chat_reply,
    "completions": completions_reply,
    "generate": generate_reply,
    "sglang": sglang_reply,
}


def put_ids(reply: Reply, ids: Any) -> None:
    """Give other ids, without a second list of them that tells."""
    if "output_ids" in reply:
        reply["output_ids"] = ids
        pairs = reply["meta_info"]["output_token_logprobs"]
        if isinstance(ids, list) and len(ids) == len(pairs):
            reply["meta_info"]["output_token_logprobs"] = [
                [pair[0], token, None] for pair, token in zip(pairs, ids, strict=True)
            ]
        return
    choice = reply["choices"][0]
    choice["token_ids"] = ids
    for entry in choice["logprobs"].get("content") or ():
        entry["token"] = "x"
    choice["logprobs"].pop("tokens", None)


def put_value(reply: Reply, value: Any) -> None:
    if "output_ids" in reply:
        reply["meta_info"]["output_token_logprobs"][1][0] = value
    elif "token_logprobs" in reply["choices"][0]["logprobs"]:
        reply["choices"][0]["logprobs"]["token_logprobs"][1] = value
    else:
        reply["choices"][0]["logprobs"]["content"][1]["logprob"] = value


def drop_log_probs(reply: Reply) -> None:
    if "output_ids" in reply:
        del reply["meta_info"]["output_token_logprobs"]
    else:
        reply["choices"][0]["logprobs"] = None


def drop_everything(reply: Reply) -> None:
    """A text, as of a request without token ids."""
    drop_log_probs(reply)
    if "output_ids" in reply:
        reply |= {"output_ids": []}
        reply["meta_info"]["output_token_logprobs"] = []
    else:
        reply["choices"][0] |= {"token_ids": None, "text": "Hi."}


def shift_log_probs(reply: Reply) -> None:
    """The log-probs are those of the tokens after."""
    if "output_ids" in reply:
        pairs = reply["meta_info"]["output_token_logprobs"]
        pairs.append(pairs.pop(0))
        return
    choice = reply["choices"][0]
    for name in ("content", "tokens"):
        if entries := choice["logprobs"].get(name):
            entries.append(entries.pop(0))


def put_field(reply: Reply, name: str, value: Any) -> None:
    reply.get("meta_info", reply)[name] = value


WRONG: dict[str, Callable[[Reply], Any]] = {
    "fewer ids": lambda reply: put_ids(reply, [5, 6]),
    "more ids": lambda reply: put_ids(reply, [5, 6, 7, 8]),
    "ids as text": lambda reply: put_ids(reply, ["5", "6", "7"]),
    "ids as floats": lambda reply: put_ids(reply, [5.0, 6.5, 7.0]),
    "ids as truths": lambda reply: put_ids(reply, [True, 6, 7]),
    "an id that is null": lambda reply: put_ids(reply, [5, None, 7]),
    "a negative id": lambda reply: put_ids(reply, [5, -6, 7]),
    "an id beyond 32 bits": lambda reply: put_ids(reply, [5, 2**40, 7]),
    "ids as an object": lambda reply: put_ids(reply, {"5": 1, "6": 1, "7": 1}),
    "a log-prob that is null": lambda reply: put_value(reply, None),
    "a log-prob as text": lambda reply: put_value(reply, "-0.1"),
    "a log-prob that is true": lambda reply: put_value(reply, True),
    "a log-prob above 0": lambda reply: put_value(reply, 0.5),
    "an infinite log-prob": lambda reply: put_value(reply, HUGE),
    "a placeholder for a log-prob": lambda reply: put_value(reply, -9999.0),
    "no log-probs": drop_log_probs,
    "no tokens": drop_everything,
    "log-probs of other tokens": shift_log_probs,
    "versions of other tokens": lambda reply: put_field(reply, "policy_versions", [1, 2]),
    "versions of a wrong type": lambda reply: put_field(reply, "policy_versions", [1, 2.5, 3]),
    "a version that is true": lambda reply: put_field(reply, "policy_version", True),
    "a version that is an object": lambda reply: put_field(reply, "weight_version", {"step": 3}),
}
"""Each changes a sound reply."""
WRONG_PROMPTS: dict[str, Callable[[Reply], Any]] = {
    "a negative id": lambda reply: put_field(reply, "prompt_token_ids", [1, -2]),
    "ids as text": lambda reply: put_field(reply, "prompt_token_ids", ["1", "2"]),
}


async def refusal(kind: str, reply: Reply, others: Reply | None = None, **limits: Any) -> tuple[int, str]:
    """What the model server says of a reply. `others` are the replies of other paths."""
    known = {
        "/tokenize": {"tokens": PROMPT},
        "/detokenize": {"prompt": "Hi."},
        "/v1/models": {"data": [{"id": "m", "max_model_len": 4096}]},
        **(others or {}),
    }
    protocol = {} if kind == "chat" else {"protocol": "tokens", "engine_api": kind}
    settings: dict[str, Any] = {"return_token_id_information": True, "max_tries": 1, **protocol}
    async with (
        stub_endpoint(lambda request: known.get(request.path, reply)) as stub,
        in_front_of("vllm_model", "", base_url=stub.url, **settings) as model,
    ):
        found = await model.post("/v1/responses", json={"input": "Hi.", **(limits or {"max_output_tokens": 9})})
    return found.status, found.text


def is_of_the_model(status: int, text: str) -> bool:
    return status >= 400 and '"cause":"model"' in text.replace(" ", "")


@pytest.mark.parametrize("kind", REPLIES)
async def test_tokens_that_are_wrong_are_an_error_of_the_model(kind: str) -> None:
    status, text = await refusal(kind, REPLIES[kind]())
    assert status == 200, text
    accepted = {}
    cases = WRONG | (WRONG_PROMPTS if kind == "chat" else {})
    for name, change in cases.items():
        reply = REPLIES[kind]()
        change(reply)
        status, text = await refusal(kind, reply)
        if not is_of_the_model(status, text):
            accepted[name] = status, text[:300]
    assert accepted == {}


WRONG_ELSEWHERE: dict[str, tuple[str, list[Any]]] = {
    "/tokenize": (
        "completions",
        [[], {}, 3, {"tokens": "abc"}, {"tokens": ["1"]}, {"tokens": [-1]}, {"tokens": [1.5]}, {"tokens": {"1": 2}}],
    ),
    "/detokenize": ("generate", ["not JSON", [], {}, {"prompt": 3}]),
    "/v1/models": ("completions", [[], {"data": 3}, {"data": [3]}, {"data": [{"meta": 3}]}]),
}
"""By path: the kind of engine that is asked there, and what it may reply."""


@pytest.mark.parametrize("path", WRONG_ELSEWHERE)
async def test_a_wrong_reply_of_another_path_is_an_error_of_the_model(path: str) -> None:
    kind, wrong = WRONG_ELSEWHERE[path]
    limits = {"temperature": 1.0} if path == "/v1/models" else {}
    found = [(each, await refusal(kind, REPLIES[kind](), {path: each}, **limits)) for each in wrong]
    assert [each for each, reply in found if not is_of_the_model(*reply)] == []


@pytest.mark.parametrize("kind", REPLIES)
async def test_log_probs_of_another_prompt_are_an_error_of_the_model(kind: str) -> None:
    accepted: list[Any] = []
    values: list[Any] = [
        [None],
        [None, {}],
        [None, {"2": {"logprob": "x"}}],
        [None, {"2": {"logprob": 3}}],
        3,
        {"a": 1},
    ]
    for wrong in values:
        reply = REPLIES[kind]()
        if kind == "sglang":
            reply["meta_info"]["input_token_logprobs"] = wrong
        else:
            reply["choices"][0]["prompt_logprobs"] = wrong
        if not is_of_the_model(*await refusal(kind, reply)):
            accepted.append(wrong)
    assert accepted == []


@pytest.mark.parametrize("kind", [kind for kind in REPLIES if kind != "chat"])
@pytest.mark.parametrize("field", ["prompt_token_ids", "usage", "meta_info"])
async def test_an_engine_that_read_another_prompt_is_an_error(kind: str, field: str) -> None:
    reply = REPLIES[kind]()
    if field == "prompt_token_ids":
        reply[field] = [1, 3]
    else:
        reply.setdefault(field, {})["prompt_tokens"] = 3
    status, text = await refusal(kind, reply)
    assert status >= 400, text
    assert "the engine has read" in text


async def test_a_message_cannot_bring_tokens_of_its_own() -> None:
    reply = chat_reply()
    forged = {"generation_token_ids": [9], "policy_version_runs": [[1, 2], [2, 1]], "generation_log_probs": [-1.0]}
    reply["choices"][0]["message"] |= forged
    status, text = await refusal("chat", reply)
    assert status == 200
    (item,) = orjson.loads(text)["output"]
    assert item["generation_token_ids"] == IDS
    assert item["generation_log_probs"] == [pytest.approx(value) for value in VALUES]
    assert "policy_version_runs" not in item
