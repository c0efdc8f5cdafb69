"""An object handed over becomes what its bytes would have become."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse
from nemo_gym.codec import Decoder, detached, encode
from nemo_gym.testing import calls, example_row, message, response_of, tool_output


class Sender(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class Receiver(BaseVerifyRequest):
    expected: Any
    optional: int = 3


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
items = st.lists(
    st.builds(message, st.text())
    | st.builds(calls, st.text(), st.text(), call_id=st.text())
    | st.builds(tool_output, st.text()),
    max_size=4,
)


@given(expected=json_values, output=items)
def test_decoding_an_object_is_decoding_its_bytes(expected: Any, output: list[dict[str, Any]]) -> None:
    sender = Sender.model_validate(example_row(expected=expected, response=response_of(*output)))
    direct = Decoder(Receiver)(sender)
    over_the_wire = Decoder(Receiver)(encode(sender, exclude_unset=True))
    assert direct == over_the_wire
    assert encode(direct) == encode(over_the_wire)


def test_a_nested_object_is_taken_over_not_validated_again() -> None:
    sender = Sender.model_validate(example_row(expected=1, response=response_of(message("hi"))))
    received = Decoder(Receiver)(sender)
    assert type(received.response) is type(sender.response)
    assert received.response is not sender.response
    assert received.response.output[0] is not sender.response.output[0]


class OtherResponse(BaseModel):
    id: str
    model_config = ConfigDict(extra="ignore")


class OtherReceiver(BaseModel):
    response: OtherResponse


def test_a_nested_object_of_another_class_goes_the_long_way() -> None:
    sender = Sender.model_validate(example_row(expected=1, response=response_of(message("hi"))))
    assert Decoder(OtherReceiver)(sender).response == OtherResponse(id="resp_test")


def test_a_detached_copy_shares_nothing_mutable() -> None:
    record = BaseVerifyResponse.model_validate(
        example_row(response=response_of(message("hi"), metadata={"a": "b"}), reward=1)
    )
    copy = detached(record)
    assert copy == record
    copy.response.output[0].content[0].text = "changed"  # type: ignore[union-attr]
    copy.response.output.clear()
    copy.response.metadata["a"] = "changed"  # type: ignore[index]
    assert record.response.output[0].content[0].text == "hi"  # type: ignore[union-attr]
    assert record.response.metadata == {"a": "b"}


def test_an_empty_body_is_an_empty_object() -> None:
    class Empty(BaseModel):
        pass

    assert Decoder(Empty)(b"") == Decoder(Empty)(None) == Empty()
