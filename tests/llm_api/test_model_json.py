"""Models are written as pydantic writes them."""

import datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Annotated, Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, RootModel, computed_field, field_serializer

from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.llm_api.base import TOKEN_METADATA_FIELDS
from nemo_gym.llm_api.json_codec import encode_model, has_plain_json
from nemo_gym.llm_api.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.testing import says


def by_pydantic(value: BaseModel) -> bytes:
    return value.__pydantic_serializer__.to_json(value, by_alias=True, warnings=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


class Scored(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    detail: Any = None


def scored(**fields: Any) -> Scored:
    params = NeMoGymResponseCreateParamsNonStreaming(input=[{"role": "user", "content": "Hi"}], tools=[])
    return Scored(responses_create_params=params, response=NeMoGymResponse(**says("B")), reward=1, **fields)


@given(detail=JSON, more=JSON)
def test_a_record_with_any_json_in_it_is_written_as_by_pydantic(detail: Any, more: Any) -> None:
    record = scored(detail=detail, more=more)
    assert encode_model(record) == by_pydantic(record)


NAME = st.text(min_size=1).filter(lambda name: name not in TOKEN_METADATA_FIELDS)
"""Some token fields without the others are refused."""


@given(item=st.dictionaries(NAME, JSON, max_size=4))
def test_items_with_unknown_fields_are_written_as_by_pydantic(item: dict[str, Any]) -> None:
    reply = NeMoGymResponse.model_validate({**says("B"), "output": [{**item, "type": "something_new"}]})
    assert encode_model(reply) == by_pydantic(reply)


class Color(Enum):
    RED = "red"


class Point(BaseModel):
    x: int


class NamedPoint(Point):
    name: str = "origin"


class Points(RootModel[list[Point]]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        datetime.timedelta(seconds=90),
        Decimal("1.50"),
        UUID(int=7),
        Color.RED,
        b"bytes",
        {1, 2},
        (1, "two"),
        {1: "a number as a key"},
        10**30,
        NamedPoint(x=1),
        [NamedPoint(x=1)],
        Points([NamedPoint(x=1)]),
    ],
    ids=repr,
)
def test_what_is_not_json_is_written_as_by_pydantic(value: Any) -> None:
    record = scored(detail=value)
    assert encode_model(record) == by_pydantic(record)


class Declared(Scored):
    """A field that declares a class is written as that class, also if its value has more fields."""

    point: Point


class WithAlias(Scored):
    total: int = Field(default=1, serialization_alias="sum")


class Excluded(Scored):
    secret: str = Field(default="s", exclude=True)


class Rounded(Scored):
    parts: list[Annotated[float, PlainSerializer(lambda value: round(value, 1))]] = Field(default=[0.123])


class Serialized(Scored):
    score: float = 0.123

    @field_serializer("score")
    def round_score(self, score: float) -> str:
        return f"{score:.1f}"


class Computed(Scored):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def doubled(self) -> float:
        return 2 * self.reward


class Cached(Scored):
    @cached_property
    def note(self) -> str:
        return "no field"


class Constants(Scored):
    model_config = ConfigDict(ser_json_inf_nan="constants")

    score: float = float("inf")


@pytest.mark.parametrize("kind", [WithAlias, Excluded, Rounded, Serialized, Computed, Cached, Constants])
def test_a_class_that_changes_its_json_is_left_to_pydantic(kind: type[Scored]) -> None:
    record = kind(**scored().__dict__)
    if isinstance(record, Cached):
        assert record.note
    assert not has_plain_json(kind)
    assert encode_model(record) == by_pydantic(record)


def test_a_declared_class_is_written_without_the_fields_of_its_subclass() -> None:
    record = Declared(**scored().__dict__, point=NamedPoint(x=1))
    assert orjson.loads(encode_model(record))["point"] == {"x": 1}
