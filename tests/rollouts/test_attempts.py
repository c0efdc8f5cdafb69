"""The figures of a rollout are the same whether its reply is a live object or bytes."""

from enum import Enum
from typing import Any

import pytest
from pydantic import ConfigDict, Field, computed_field

from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.client.server_client import ServerReply
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.attempts import scored_record
from nemo_gym.testing import example_row, response_of, says

USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


class Grade(Enum):
    GOOD = "good"


class Plain(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    grade: str = "good"
    notes: list[int] = Field(default_factory=list)


class Graded(BaseVerifyResponse):
    grade: Grade = Grade.GOOD


class Renamed(BaseVerifyResponse):
    grade: str = Field(default="good", serialization_alias="mark")


class Computed(BaseVerifyResponse):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> float:
        return 2 * self.reward


@pytest.mark.parametrize("kind", [Plain, Graded, Renamed, Computed])
@pytest.mark.parametrize("usage", [USAGE, None])
def test_figures_of_a_live_reply_are_those_of_its_json(kind: type[BaseVerifyResponse], usage: Any) -> None:
    fields = example_row(response={**says("hello"), "usage": usage}, reward=0.5, extra=7)
    live = ServerReply("agent", 200, kind.model_validate(fields))
    scored = scored_record(live)
    decoded = scored_record(ServerReply("agent", 200, scored.record))
    assert (scored.record, scored.figures) == (decoded.record, decoded.figures)
    assert set(scored.fields) == set(decoded.fields)
    assert scored.figures["reward"] == 0.5


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_live_reply_without_a_finite_reward_is_an_error(reward: float) -> None:
    live = Plain.model_validate(example_row(response=response_of(), reward=reward))
    with pytest.raises(RolloutError, match="expected a finite number"):
        scored_record(ServerReply("agent", 200, live))


def test_a_number_beyond_any_reader_is_an_error_and_not_an_unreadable_record() -> None:
    live = Plain.model_validate(example_row(response=response_of(), reward=1.0, count=10**5000))
    with pytest.raises(RolloutError, match="not JSON"):
        scored_record(ServerReply("agent", 200, live))
