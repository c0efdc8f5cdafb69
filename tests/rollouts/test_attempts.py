"""The metrics of a rollout are the same whether its reply is a live object or bytes."""

from enum import Enum
from typing import Any

import orjson
import pytest
from pydantic import ConfigDict, Field, computed_field

from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.client.server_client import ServerReply
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.attempts import read_reply
from nemo_gym.rollouts.types import Row, metric_fields, results_of
from nemo_gym.testing import example_row, response_of, says

ROW = Row(0, 0, "0" * 16, "agent", b'{"mine": 1, "score": 5}')
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
def test_metrics_of_a_live_reply_are_those_of_its_json(kind: type[BaseVerifyResponse], usage: Any) -> None:
    fields = example_row(response={**says("hello"), "usage": usage}, reward=0.5, extra=7)
    live = ServerReply("agent", 200, kind.model_validate(fields))
    scored = read_reply(live, ROW)
    decoded = read_reply(ServerReply("agent", 200, live.content()), ROW)
    assert scored == decoded
    assert scored.values["reward"] == 0.5


CUT_OFF: list[dict[str, Any]] = [
    {"status": "incomplete"},
    {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
    {"ended_by": "max_steps"},
]


@pytest.mark.parametrize("ending", [{}, {"status": "completed"}, *CUT_OFF])
def test_a_rollout_that_was_cut_off_is_known_live_and_by_its_record(ending: dict[str, Any]) -> None:
    live = Plain.model_validate(example_row(response={**says("hello"), **ending}, reward=0.5))
    scored = read_reply(ServerReply("agent", 200, live), ROW)
    assert scored.is_cut_off == metric_fields(orjson.loads(scored.record))["is_cut_off"] == (ending in CUT_OFF)


def test_an_answer_that_is_a_list_is_a_vote_live_and_by_its_record() -> None:
    live = Plain.model_validate(example_row(response=says("hello"), reward=0.5, extracted_answer=["a", "b"]))
    scored = read_reply(ServerReply("agent", 200, live), ROW)
    assert scored.values["extracted_answer"] == ["a", "b"]
    assert scored.values == metric_fields(orjson.loads(scored.record))["values"]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_live_reply_without_a_finite_reward_is_an_error(reward: float) -> None:
    live = Plain.model_validate(example_row(response=response_of(), reward=reward))
    with pytest.raises(RolloutError, match="expected a finite number"):
        read_reply(ServerReply("agent", 200, live), ROW)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('"reward": NaN', "The reward is nan; expected a finite number"),
        ('"reward": -Infinity', "The reward is -inf; expected a finite number"),
        ('"reward": 1e999', "The reward is inf; expected a finite number"),
        (f'"reward": 1{"0" * 5000}', "The reward is inf; expected a finite number"),
        ('"reward": 1, "loss": {"mean": NaN}', "it has the number NaN. Expected finite numbers"),
        ('"reward": 1, "count": 1e400', "it has the number 1e400. Expected finite numbers"),
    ],
)
def test_a_number_that_is_not_finite_is_a_failure_of_the_verifier(fields: str, message: str) -> None:
    with pytest.raises(RolloutError, match=message) as error:
        read_reply(ServerReply("agent", 200, f"{{{fields}}}".encode()), ROW)
    assert (error.value.cause, error.value.server) == ("verifier", "agent")


@pytest.mark.parametrize(("kind", "cause"), [("judge_failed", "judge"), ("broken", "environment")])
def test_a_rollout_that_its_verifier_masks_for_a_failure_has_no_result(kind: str, cause: str) -> None:
    fields = example_row(response=says("hello"), reward=0.0, mask_sample=True, failure_kind=kind)
    live = ServerReply("agent", 200, Plain.model_validate(fields))
    for reply in (live, ServerReply("agent", 200, live.content())):
        with pytest.raises(RolloutError) as error:
            read_reply(reply, ROW)
        assert (error.value.cause, error.value.code) == (cause, kind)
        assert error.value.response["output"]


@pytest.mark.parametrize("reply", [b"", b"{", b'{"reward": 1', b'{"text": "\\ud800", "reward": 1}'])
def test_a_reply_that_is_not_json_is_an_internal_failure(reply: bytes) -> None:
    with pytest.raises(RolloutError, match="The reply is not JSON:") as error:
        read_reply(ServerReply("agent", 200, reply), ROW)
    assert error.value.cause == "internal"


@pytest.mark.parametrize("claimed", [["reward"], ["score"], "reward", {}, 7, None])
def test_a_reply_cannot_say_which_fields_are_those_of_its_row(claimed: Any) -> None:
    scored = read_reply(reply_with(claimed), ROW)
    assert (scored.values["reward"], scored.values["score"]) == (1.0, 2.0)
    assert orjson.loads(scored.record)["_row_fields"] == ["mine"]


def test_a_reply_can_say_that_it_wants_no_fields_of_its_row() -> None:
    scored = read_reply(reply_with([]), ROW)
    assert orjson.loads(scored.record) == {"reward": 1.0, "score": 2.0}


def reply_with(row_fields: Any) -> ServerReply:
    return ServerReply("agent", 200, orjson.dumps({"reward": 1.0, "score": 2.0, "_row_fields": row_fields}))


def test_indices_that_a_row_brings_are_not_written_beside_those_of_the_record() -> None:
    row = Row(0, 1, "0" * 16, "agent", b'{"_ng_task_index": 7, "_ng_rollout_index": 3, "answer": 4}')
    line = read_reply(ServerReply("agent", 200, b'{"reward":1}'), row).line()
    assert line.count(b'"_ng_task_index"') == line.count(b'"_ng_rollout_index"') == 1
    assert (orjson.loads(line)["_ng_rollout_index"], orjson.loads(line)["_row_fields"]) == (1, ["answer"])


def test_the_reward_is_a_result_whatever_a_record_says() -> None:
    record = {"reward": 1.0, "answer": 4, "_row_fields": ["reward", "answer"]}
    assert results_of(record) == {"reward": 1.0, "_row_fields": ["reward", "answer"]}


def test_a_number_beyond_any_reader_is_an_error_and_not_an_unreadable_record() -> None:
    live = Plain.model_validate(example_row(response=response_of(), reward=1.0, count=10**5000))
    with pytest.raises(RolloutError, match="not JSON"):
        read_reply(ServerReply("agent", 200, live), ROW)
