"""A live body is decoded as its JSON, also into types that take anything."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, field_validator, model_validator

from nemo_gym.base_resources_server import BaseVerifyRequest
from nemo_gym.llm_api.json_codec import Decoder, encode, live_fields
from nemo_gym.llm_api.responses import NeMoGymResponse
from nemo_gym.testing import message, response_of


class AnyField(BaseModel):
    response: Any


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")

    label: str = ""


class Inside(BaseModel):
    responses: list[Any] = []
    by_name: Mapping[str, Any] = {}


class Nested(BaseModel):
    turns: list[AnyField] = []
    tree: "Nested | None" = None


class OfUnion(BaseModel):
    response: NeMoGymResponse | dict | None = None  # type: ignore[type-arg]


def read_text(response: Any) -> Any:
    return response["output"][0]["content"][0]["text"]


class ReadsField(BaseModel):
    response: str

    _text = field_validator("response", mode="before")(read_text)


class ReadsAnnotated(BaseModel):
    response: Annotated[str, BeforeValidator(read_text)]


class ReadsAll(BaseModel):
    text: str

    @model_validator(mode="before")
    @classmethod
    def _read(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {"text": read_text(fields["response"])}


class Typed(BaseModel):
    response: NeMoGymResponse | None = None
    names: list[str] = []
    kind: Literal["any"] = "any"
    tree: "Typed | None" = None
    json_value: JsonValue = None


def live() -> NeMoGymResponse:
    return NeMoGymResponse.model_validate(response_of(message("Hi.")))


BODIES: list[tuple[Any, Any]] = [
    (AnyField, {"response": live()}),
    (AnyField, {"response": [{"at": live()}, 10**30, None]}),
    (AnyField, AnyField(response=live())),
    (Extra, {"label": "x", "response": live()}),
    (Extra, Extra(label="x", response=live())),
    (Inside, {"responses": [live()], "by_name": {"a": [live()]}}),
    (Nested, {"turns": [{"response": live()}], "tree": {"turns": [AnyField(response=live())]}}),
    (OfUnion, {"response": live()}),
    (ReadsField, {"response": live()}),
    (ReadsAnnotated, {"response": live()}),
    (ReadsAll, {"response": live()}),
    (Any, live()),
    (Any, [live()]),
    (dict, {"response": live(), "number": 1}),
    (dict[str, Any], AnyField(response=live())),
    (list[Any], [live()]),
    (Typed, {"response": live(), "names": ["a"]}),
]


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_an_object_is_decoded_as_its_json(kind: Any, body: Any, is_given: bool) -> None:
    decode, before = Decoder(kind), encode(body, exclude_unset=True)
    assert repr(decode(body, is_given=is_given)) == repr(decode(before))
    assert encode(body, exclude_unset=True) == before


def test_the_parts_of_a_body_are_used_as_they_are_only_if_it_is_given_away() -> None:
    response = live()
    row = {"responses_create_params": {"input": []}, "response": response}
    assert Decoder(BaseVerifyRequest)(row, is_given=True).response is response
    assert Decoder(BaseVerifyRequest)(row).response is not response


@pytest.mark.parametrize("kind", [ReadsField, ReadsAnnotated, ReadsAll, OfUnion, AnyField, Any, dict])
def test_a_field_that_is_read_as_json_takes_no_object(kind: Any) -> None:
    assert "response" not in live_fields(kind)
