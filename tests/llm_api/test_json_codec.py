from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from nemo_gym.base_resources_server import BaseVerifyRequest
from nemo_gym.llm_api.chat import NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.llm_api.json_codec import Decoder, changed, encode
from nemo_gym.llm_api.responses import (
    FrozenRequest,
    NeMoGymEasyInputMessage,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.llm_api.responses_anthropic import MessagesParams


class Inner(BaseModel):
    words: list[str] = []


class Outer(BaseModel):
    model_config = ConfigDict(extra="allow")

    number: int = 1
    inner: Inner = Inner()
    items: list[Any] = []
    table: dict[str, Any] = {}
    _seen: list[int] = PrivateAttr(default_factory=list)


def example() -> Outer:
    return Outer.model_validate(
        {"inner": {"words": ["a"]}, "items": [1, {"b": [2]}], "table": {"c": {"d": 3}}, "more": {"e": [4]}}
    )


@pytest.mark.parametrize(
    "fields", [{}, {"number": 7}, {"items": [8], "table": {}}, {"more": 9}, {"fresh": 1, "number": 2}]
)
def test_a_changed_model_is_what_model_copy_makes_and_leaves_the_original_alone(fields: dict[str, Any]) -> None:
    original = example()
    copied, expected = changed(original, **fields), original.model_copy(update=fields)
    assert copied == expected
    assert copied.model_fields_set == expected.model_fields_set
    assert original == example()
    assert original.model_fields_set == example().model_fields_set


def said(text: str) -> NeMoGymEasyInputMessage:
    return NeMoGymEasyInputMessage(role="user", content=text)


def asked(**fields: Any) -> FrozenRequest:
    return FrozenRequest.of(NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": [], **fields}))


def test_an_item_of_a_growing_conversation_is_encoded_once() -> None:
    encoded: list[str] = []

    def encode_item(item: NeMoGymEasyInputMessage) -> bytes:
        encoded.append(str(item.content))
        return encode(item, exclude_unset=True)

    request = asked(temperature=0.5)
    for text in ("one", "two", "three"):
        request = request.extended([said(text)])
        whole = b"".join(request.pieces(encode_item))
        assert orjson.loads(whole) == orjson.loads(encode(request.thawed(), exclude_unset=True))
    assert encoded == ["one", "two", "three"]
    assert encode(request).count(b'"content":') == 3


def test_two_continuations_of_a_request_do_not_mix() -> None:
    request = asked(input=[{"role": "user", "content": "one"}])
    before = encode(request)
    continued = [request.extended([said(text)]) for text in ("two", "three")]
    assert [encode(one) for one in continued] == [encode(one.thawed(), exclude_unset=True) for one in continued]
    assert encode(request) == before


def test_a_changed_request_is_another_value() -> None:
    tool = {"type": "function", "name": "one"}
    request = asked(input=[{"role": "user", "content": "one"}], tools=[tool], temperature=0.5)
    before = encode(request)
    warmer = request.changed(temperature=1.5)
    assert orjson.loads(encode(warmer)) == {**orjson.loads(before), "temperature": 1.5}
    other = request.changed(input=[said("other")])
    assert orjson.loads(encode(other))["input"] == [{"role": "user", "content": "other"}]
    assert encode(request) == before


def test_a_request_of_the_sender_is_not_changed_through_the_frozen_one() -> None:
    params = NeMoGymResponseCreateParamsNonStreaming(input=[said("one")])
    request = FrozenRequest.of(params)
    params.input.append(said("two"))  # type: ignore[union-attr]
    params.temperature = 1.5
    assert orjson.loads(encode(request)) == {"input": [{"role": "user", "content": "one"}]}
    with pytest.raises(AttributeError):
        request.items.append(said("three"))  # type: ignore[attr-defined]
    assert len(params.input) == 2


def test_a_text_is_sent_as_it_is_until_more_is_said() -> None:
    request = asked(input="Hi.", user="me")
    assert orjson.loads(encode(request)) == {"input": "Hi.", "user": "me"}
    assert orjson.loads(encode(request.extended(()))) == {"input": [{"role": "user", "content": "Hi."}], "user": "me"}


def test_a_long_conversation_is_sent_in_pieces_that_later_requests_share() -> None:
    request = asked()
    pieces: tuple[bytes, ...] = ()
    for number in range(200):
        request = request.extended([said(f"{number} " + "x" * 1000)])
        before, pieces = pieces, request.pieces()
        assert orjson.loads(b"".join(pieces))["input"][-1]["content"].startswith(f"{number} ")
    assert 10 < len(pieces) < 20
    assert all(one is other for one, other in zip(before[1:-2], pieces[1:-2], strict=True))


def test_a_request_of_nothing_but_items_is_json() -> None:
    assert encode(asked()) == b'{"input":[]}'
    assert b"".join(asked(model="a").pieces(model="b")) == b'{"model":"b","input":[]}'


def test_encoded_parts_stay_json_beside_a_number_beyond_64_bits() -> None:
    encoded = encode({"n": 10**30, "parts": orjson.Fragment(b'[{"a":1}]')})
    assert encoded == b'{"n":%d,"parts":[{"a":1}]}' % (10**30)


class AnswersRequest(BaseVerifyRequest):
    answers: list[int]


MANY = 10_000


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (NeMoGymResponseCreateParamsNonStreaming, ("input", "tools", "include")),
        (NeMoGymChatCompletionCreateParamsNonStreaming, ("messages", "tools", "modalities")),
        (MessagesParams, ("messages", "tools", "stop_sequences")),
        (AnswersRequest, ("answers",)),
    ],
)
@pytest.mark.parametrize("item", [{}, 0.5, []])
def test_a_list_is_invalid_at_its_first_invalid_item(
    kind: type[BaseModel], fields: tuple[str, ...], item: Any
) -> None:
    with pytest.raises(ValidationError) as caught:
        Decoder(kind)(orjson.dumps(dict.fromkeys(fields, [item] * MANY)))
    assert caught.value.error_count() < 20


def test_the_parts_of_a_message_are_invalid_at_the_first_one() -> None:
    message = {"role": "user", "content": [0] * MANY}
    with pytest.raises(ValidationError) as caught:
        Decoder(NeMoGymChatCompletionCreateParamsNonStreaming)(orjson.dumps({"messages": [message]}))
    assert caught.value.error_count() < 20
