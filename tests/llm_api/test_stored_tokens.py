"""Records and logs hold each prompt id once; readers give whole prompts, also of records with whole lists."""

import json
import pickle
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.llm_api.builders import message, response_of, tool_output
from nemo_gym.llm_api.responses import FrozenRequest, NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.llm_api.stored_tokens import (
    PromptIndex,
    encode_stored,
    encode_without_tokens,
    expand_prompts,
    read_record,
    read_reply,
    shorten_prompts,
)
from nemo_gym.llm_api.tokens import LOG_PROBS, PROMPT, SAMPLED, TokenArray, TokenTraceError

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6)


def said(prompt: list[int], sampled: list[int]) -> dict[str, Any]:
    return {**message("Hi."), PROMPT: prompt, SAMPLED: sampled, LOG_PROBS: [-0.5] * len(sampled)}


@st.composite
def outputs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls that continue any earlier one, or none, with other items between them."""
    output: list[dict[str, Any]] = []
    wholes: list[list[int]] = [[]]
    for _ in range(draw(st.integers(1, 6))):
        prompt = draw(st.sampled_from(wholes)) + draw(IDS)
        sampled = draw(IDS)
        wholes.append(prompt + sampled)
        output += [said(prompt, sampled), *draw(st.sampled_from([[], [tool_output("x")]]))]
    return output


@given(outputs())
def test_what_is_read_is_what_was_stored(output: list[dict[str, Any]]) -> None:
    record = {"reward": 1.0, "response": response_of(*output)}
    stored = encode_stored(record)
    assert read_record(stored) == record
    assert read_record(orjson.dumps(record)) == record, "with whole lists"
    live = {"reward": 1.0, "response": NeMoGymResponse.model_validate(record["response"])}
    prompts = [
        [item.get(PROMPT) for item in orjson.loads(each)["response"]["output"]]
        for each in (encode_stored(live), stored)
    ]
    assert prompts[0] == prompts[1]


def conversation(turns: int) -> list[dict[str, Any]]:
    ids: list[int] = []
    output = []
    for turn in range(turns):
        ids = [*ids, *range(1000 + turn, 1010 + turn)]
        output += [said(ids, [7, 8]), tool_output("x")]
        ids = [*ids, 7, 8]
    return output


def test_a_stored_conversation_has_each_prompt_id_once() -> None:
    stored = orjson.loads(encode_stored({"response": response_of(*conversation(20))}))
    prompts = [item[PROMPT] for item in stored["response"]["output"] if PROMPT in item]
    assert prompts[:3] == [
        list(range(1000, 1010)),
        {"continues": 0, "new": list(range(1001, 1011))},
        {"continues": 2, "new": list(range(1002, 1012))},
    ]
    assert all(len(prompt["new"]) == 10 for prompt in prompts[1:])


def test_the_calls_of_a_record_that_was_read_share_one_array() -> None:
    output = read_record(encode_stored({"response": response_of(*conversation(5))}))["response"]["output"]
    assert len({id(item[name]._array) for item in output[::2] for name in (PROMPT, SAMPLED)}) == 1


def test_a_record_that_was_read_is_json_and_can_be_pickled() -> None:
    record = {"response": response_of(*conversation(5))}
    read = read_record(encode_stored(record))
    assert isinstance(read["response"]["output"][-2][PROMPT], TokenArray)
    assert json.loads(json.dumps(read)) == record
    assert json.loads(json.dumps(read, indent=1, sort_keys=True)) == record
    again = pickle.loads(pickle.dumps(read))
    assert again == record
    assert json.loads(json.dumps(again)) == record


def test_prompts_of_other_participants_are_stored_once_too() -> None:
    other = {"response": response_of(*conversation(3)), "is_trainable": True}
    record = {"response": response_of(*conversation(2), participants={"critic": other})}
    stored = orjson.loads(encode_stored(record))
    critic = stored["response"]["participants"]["critic"]["response"]["output"]
    assert critic[2][PROMPT] == {"continues": 0, "new": list(range(1001, 1011))}
    assert expand_prompts(stored) == record


@pytest.mark.parametrize(
    "prompt",
    [
        {"continues": 7, "new": [1]},
        {"continues": None, "new": None},
        {"continues": 0, "new": ["1"]},
        {"continues": [0], "new": [1]},
        {"new": "abc"},
        {"continues": 0, "new": [-1]},
        [True],
        [2**31],
        "abc",
    ],
)
def test_a_prompt_that_is_not_valid_stays_as_it_is(prompt: Any) -> None:
    output = [said([1], [2]), {**said([], [3]), PROMPT: prompt}]
    line = orjson.dumps({"response": response_of(*output)})
    assert read_record(line)["response"]["output"] == output


def test_replies_of_a_log_name_the_call_that_they_continue() -> None:
    replies = [response_of(item) for item in conversation(3)[::2]]
    index = PromptIndex()
    stored = [shorten_prompts(reply, index, place=f"call {number}") for number, reply in enumerate(replies)]
    assert stored[2]["output"][0][PROMPT] == {"continues": "call 1", "new": list(range(1002, 1012))}
    texts = [encode_stored(each).decode() for each in stored]
    index = PromptIndex()
    assert [read_reply(text, index, place=f"call {number}") for number, text in enumerate(texts)] == replies
    with pytest.raises(TokenTraceError, match="call 1"):
        read_reply(texts[2], PromptIndex(), place="call 2")


def test_a_chat_completion_is_stored_like_a_response() -> None:
    first, second = conversation(2)[::2]
    replies = [{"choices": [{"index": 0, "message": item}]} for item in (first, second)]
    index = PromptIndex()
    stored = [shorten_prompts(reply, index, place=str(number)) for number, reply in enumerate(replies)]
    assert stored[1]["choices"][0]["message"][PROMPT]["continues"] == "0"  # type: ignore[index]
    index = PromptIndex()
    read = [read_reply(encode_stored(each).decode(), index, place=str(number)) for number, each in enumerate(stored)]
    assert read == replies


def test_a_request_is_logged_without_the_tokens_of_earlier_replies() -> None:
    items = NeMoGymResponse.model_validate(response_of(said([1, 2], [3]), message("Bye."))).output
    params = NeMoGymResponseCreateParamsNonStreaming.model_construct(input=[*items], temperature=0.5)
    sent = orjson.loads(encode_without_tokens(FrozenRequest.of(params)))
    first, second = sent.pop("input")
    assert sent == {"temperature": 0.5}
    assert first.keys() == second.keys() >= {"type", "role", "content"}
