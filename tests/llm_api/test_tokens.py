"""Arrays of tokens read like lists, and the calls of a conversation share one."""

import pickle
from array import array

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.tokens import LOG_PROBS, PROMPT, SAMPLED, TokenTraceError, call_tokens, log_probs, token_ids

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)
PLACES = st.one_of(st.none(), st.integers(-25, 25))


@given(IDS, PLACES, PLACES, st.sampled_from([None, 1, 2, -1]))
def test_an_array_reads_like_the_list_it_was_made_of(
    ids: list[int], start: int | None, stop: int | None, step: int | None
) -> None:
    numbers, place = token_ids(ids), slice(start, stop, step)
    assert numbers == ids
    assert ids == numbers
    assert [*numbers[place]] == ids[place]
    assert len(numbers[place]) == len(ids[place])
    assert ids + numbers == ids + ids
    assert numbers + ids == ids + ids
    assert pickle.loads(pickle.dumps(numbers)) == ids
    assert orjson.loads(encode({"ids": numbers})) == {"ids": ids}
    assert np.array(numbers, dtype=np.int32).tolist() == ids


def test_a_place_beyond_the_array_is_an_index_error() -> None:
    numbers = token_ids([1, 2, 3])[1:]
    assert (numbers[0], numbers[-1]) == (2, 3)
    for place in (2, -3):
        with pytest.raises(IndexError):
            numbers[place]


def test_a_call_that_continues_the_one_before_shares_its_array() -> None:
    first = call_tokens([1, 2], [3], [-0.5])
    second = call_tokens([1, 2, 3, 4], [5], [-0.25], before=first)
    third = call_tokens([1, 2, 3, 9], [6], [-0.25], before=first)
    assert (first[PROMPT], first[SAMPLED]) == ([1, 2], [3])
    assert (second[PROMPT], second[SAMPLED]) == ([1, 2, 3, 4], [5])
    assert (third[PROMPT], third[SAMPLED]) == ([1, 2, 3, 9], [6])
    assert second[PROMPT]._array is first[PROMPT]._array
    assert third[PROMPT]._array is not first[PROMPT]._array


@pytest.mark.parametrize("prompt", [[1, 2, 4, 5], [1, 2], []])
def test_a_call_that_does_not_continue_the_one_before_has_an_array_of_its_own(prompt: list[int]) -> None:
    first = call_tokens([1, 2], [3], [-0.5])
    second = call_tokens(prompt, [7], [-0.25], before=first)
    assert (second[PROMPT], second[SAMPLED]) == (prompt, [7])
    assert (first[PROMPT], first[SAMPLED]) == ([1, 2], [3])


def test_log_probs_are_float32_only_if_no_value_changes() -> None:
    exact = array("f", [-0.1, -3.7]).tolist()
    assert log_probs(exact)._array.typecode == "f"
    assert log_probs(exact) == exact
    assert call_tokens([1], [2], [-0.1])[LOG_PROBS] == [-0.1]


@pytest.mark.parametrize("ids", [[1.5], ["1"], [None], [2**31]])
def test_what_is_no_token_id_is_refused(ids: list[int]) -> None:
    with pytest.raises(TokenTraceError):
        token_ids(ids)
