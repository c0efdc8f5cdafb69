"""What is a row, and why not."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.data.row_check import BadRowError, RowCheck, count_separators

GOOD = {"responses_create_params": {"input": [{"role": "user", "content": "Hi: there"}]}, "expected_answer": "a:b"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"[1]", "found a list"),
        (b'"text"', "found a text"),
        (b"3", "found a number"),
        (b"null", "found null"),
        (b"{}", "responses_create_params: Field required"),
        (b'{"responses_create_params": null}', "responses_create_params"),
        (b'{"responses_create_params": [1]}', "responses_create_params"),
        (b'{"responses_create_params": {}}', "responses_create_params -> input: Field required"),
        (b'{"responses_create_params": {"input": 3}}', "Input should be a text or a list"),
        (b'{"responses_create_params": {"input": [{"role": "robot", "content": "x"}]}}', "Must be one of"),
        (b'{"responses_create_params": {"input": "x", "temprature": 1}}', "temprature"),
        (b'{"responses_create_params": {"input": "x", "temperature": "hot"}}', "temperature"),
        (b'{"responses_create_params": {"input": "x"}, "a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'{"responses_create_params": {"input": "x", "input": "y"}}', "the key 'input' occurs twice"),
        (b'{"responses_create_params": {"input": "\\u003a"}, "a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}", "not valid JSON"),
        (b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}", "nested too deeply"),
    ],
)
def test_a_bad_row_is_refused_with_its_reason(line: bytes, reason: str) -> None:
    with pytest.raises(BadRowError) as caught:
        RowCheck().read(line)
    assert reason in str(caught.value)


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":"), (" , ", " : ")])
def test_a_good_row_is_read_however_it_is_written(separators: tuple[str, str]) -> None:
    import json

    row = RowCheck().read(json.dumps(GOOD, separators=separators).encode())
    assert row.params == GOOD["responses_create_params"]
    assert row.fields == {"expected_answer": "a:b"}


def test_a_text_with_an_escaped_colon_is_no_duplicate_key() -> None:
    assert RowCheck().read(b'{"responses_create_params": {"input": "\\u003a:"}}').params == {"input": "::"}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-2, 2)
    | st.sampled_from(["", "user", "function", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "name", "strict", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
PARAMS = st.dictionaries(
    st.sampled_from(["input", "tools", "temperature", "top_p", "instructions", "tool_choice", "model", "x"]), JSON
)


@given(PARAMS)
def test_a_quick_accept_never_admits_what_the_schema_refuses(params: dict[str, Any]) -> None:
    line = orjson.dumps({"responses_create_params": params})
    try:
        BaseRunRequest.model_validate_json(line)
    except ValidationError:
        with pytest.raises(BadRowError):
            RowCheck().read(line)
    else:
        assert RowCheck().read(line).separators == count_separators(params)
