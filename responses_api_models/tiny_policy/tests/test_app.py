"""What the tiny model samples is what it says it sampled, with the weights it says."""

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_gym.testing import client_for
from nemo_gym.training import trace_of
from responses_api_models.tiny_policy.app import TinyPolicy
from responses_api_models.tiny_policy.network import Network, Shape, initial_weights
from responses_api_models.tiny_policy.sampler import SHAPE, save_weights
from responses_api_models.tiny_policy.vocabulary import ID_OF, decode_reply, encode_messages, encode_text

TOOL = {
    "type": "function",
    "name": "increment_counter",
    "parameters": {"type": "object", "properties": {"count": {"type": "integer"}}},
}
CHAT_TOOL = {"type": "function", "function": {key: TOOL[key] for key in ("name", "parameters")}}
ASK: dict[str, Any] = {"input": "Add 3, and tell me the count.", "tools": [TOOL], "metadata": {"seed": "5"}}


def random_network(seed: int) -> Network:
    weights = initial_weights(SHAPE, seed)
    weights["output"] = np.random.default_rng(seed).normal(0, 0.3, weights["output"].shape)
    return Network(SHAPE, weights)


def test_gradients_are_those_of_the_log_probs() -> None:
    chance = np.random.default_rng(1)
    shape = Shape(vocabulary=7, context=9, width=8, heads=2, layers=2)
    weights = initial_weights(shape, 0)
    weights["output"] = chance.normal(0, 0.3, weights["output"].shape)
    network = Network(shape, weights)
    ids, coefficients = chance.integers(0, 7, (3, 6)), chance.normal(size=(3, 5))

    def weighted_sum() -> float:
        row, column = np.indices(coefficients.shape)
        return float((network.log_probs(ids[:, :-1])[row, column, ids[:, 1:]] * coefficients).sum())

    gradients = network.gradients(ids, coefficients)
    assert gradients.keys() == weights.keys()
    for name, values in weights.items():
        place = tuple(int(chance.integers(min(size, 5))) for size in values.shape)
        before = values[place]
        values[place] = before + 1e-5
        above = weighted_sum()
        values[place] = before - 1e-5
        slope = (above - weighted_sum()) / 2e-5
        values[place] = before
        assert gradients[name][place] == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_padding_does_not_change_what_comes_before_it() -> None:
    network = random_network(3)
    ids = np.array([[1, 2, 3, 0, 0]])
    assert np.allclose(network.log_probs(ids)[0, 2], network.next_log_probs([1, 2, 3]))


@pytest.mark.parametrize(
    ("reply", "arguments"),
    [("+ 3 <end>", '{"count": 3}'), ("+ 4 2 <end>", '{"count": 42}'), ("+ 0 7 <end>", '{"count": 7}')],
)
def test_a_plus_and_digits_are_a_tool_call(reply: str, arguments: str) -> None:
    (call,) = decode_reply([ID_OF[word] for word in reply.split()], [CHAT_TOOL])["tool_calls"]
    assert call["function"] == {"name": "increment_counter", "arguments": arguments}


@pytest.mark.parametrize("reply", ["", "<end>", "+ <end>", "+ 3", "+ 3 add <end>", "3 <end>", ". <end>"])
def test_any_other_reply_is_a_message(reply: str) -> None:
    assert "tool_calls" not in decode_reply([ID_OF[word] for word in reply.split()], [CHAT_TOOL])
    assert "tool_calls" not in decode_reply([ID_OF["+"], ID_OF["3"], ID_OF["<end>"]], [])


def test_a_message_with_tokens_is_continued_from_them() -> None:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3]}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "ignored"},
        {"role": "assistant", "content": "ignored", **tokens},
        {"role": "tool", "content": "true"},
    ]
    assert encode_messages(messages) == [1, 2, 3, ID_OF["<tool>"], *encode_text("true"), ID_OF["<model>"]]


async def test_log_probs_are_those_of_the_served_weights(tmp_path: Path) -> None:
    network = random_network(7)
    save_weights(tmp_path / "weights.npz", network, 3)
    async with client_for(TinyPolicy, weights_fpath=str(tmp_path / "weights.npz")) as client:
        bodies = [{**ASK, "metadata": {"seed": str(seed)}} for seed in range(6)]
        answers = await asyncio.gather(*(client.another().post("/v1/responses", json=body) for body in bodies))
    for answer in answers:
        (segment,) = trace_of({"response": answer.json()}).segments
        (call,) = segment.calls
        assert call.policy_version == 3
        for at, token in enumerate(call.sampled_ids):
            expected = network.next_log_probs([*call.prompt_ids, *call.sampled_ids[:at]])[token]
            assert call.log_probs[at] == pytest.approx(float(expected))


async def test_the_newest_weights_answer(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    save_weights(path, random_network(1), 1)
    async with client_for(TinyPolicy, weights_fpath=str(path)) as client:
        first = (await client.post("/v1/responses", json=ASK)).json()
        again = (await client.post("/v1/responses", json=ASK)).json()
        save_weights(path, random_network(2), 2)
        os.utime(path, ns=(1, 1))  # a clock that stands still must not hide a change
        after = (await client.post("/v1/responses", json=ASK)).json()
    versions = [fields["output"][-1]["policy_version"] for fields in (first, again, after)]
    assert versions == [1, 1, 2]
    assert first["output"][-1]["generation_token_ids"] == again["output"][-1]["generation_token_ids"]


async def test_a_prompt_that_does_not_fit_is_cut_off() -> None:
    async with client_for(TinyPolicy) as client:
        answer = (await client.post("/v1/responses", json={"input": "add " * 100})).json()
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][-1]["generation_token_ids"] == []


async def test_temperature_zero_is_greedy(tmp_path: Path) -> None:
    network = random_network(9)
    save_weights(tmp_path / "weights.npz", network, 0)
    async with client_for(TinyPolicy, weights_fpath=str(tmp_path / "weights.npz")) as client:
        answer = (await client.post("/v1/responses", json={**ASK, "temperature": 0})).json()
    fields = answer["output"][-1]
    assert fields["generation_token_ids"][0] == int(np.argmax(network.next_log_probs(fields["prompt_token_ids"])))
