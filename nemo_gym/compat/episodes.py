"""Episodes: what an environment server of the public NeMo Gym is asked to play, and what it answers."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from nemo_gym.analysis.observations import AgentObservationBundle
from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.config.keys import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_MESSAGE_KEY,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
    TASK_SOURCE_KEY_NAME,
)
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

Task = TypeVar("Task")
Result = TypeVar("Result")
FailureStage = Literal["admission", "seed", "agent", "verification", "cleanup"]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]
Reason = Annotated[str, StringConstraints(max_length=2000)]
_ATTEMPT_SUFFIX = r"-a\d+$"
TASK_ID_FIELDS = ("task_id", "problem_id", "instance_id")
"""Fields of rows that name their task. The first one that a row has counts."""
FAILED = "environment_server_failed"
_OWN_FIELDS = frozenset(("ng_trajectory", "ng_model_call_capture", "ng_perf"))
_NOT_INPUT = frozenset((AGENT_REF_KEY_NAME, SKILLS_REF_KEY_NAME, TASK_SOURCE_KEY_NAME))


class Strict(BaseModel):
    """A message without other fields."""

    model_config = ConfigDict(extra="forbid")


class EpisodeId(Strict):
    """One attempt at a rollout."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rollout_id: Identifier
    attempt: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _names_no_attempt(self) -> Self:
        if re.search(_ATTEMPT_SUFFIX, self.rollout_id):
            raise ValueError(f"the rollout_id {self.rollout_id!r} ends like one with an attempt; set `attempt`")
        return self

    @property
    def capture_key(self) -> str:
        """The id under which the model calls of the attempt are captured."""
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id


class TaskId(Strict):
    """A task of a set. By convention the set is `<environment>:<taskset>`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    taskset: NonEmpty
    task_id: NonEmpty


class MaterializedTask(Strict, Generic[Task]):
    """A task with its input."""

    task_id: TaskId
    task_input: Task


class BaseEpisodeRequest(Strict, Generic[Task]):
    """Play a task."""

    episode_id: EpisodeId
    task: MaterializedTask[Task]


class EpisodeFailure(Strict):
    """Why an episode has no result."""

    failure_reason: Reason
    terminal: bool
    """Never try again."""
    failure_kind: str | None = None
    stage: FailureStage | None = None

    @model_serializer(mode="wrap")
    def _without_unknown(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        values: JsonObject = handler(self)
        return {
            name: value for name, value in values.items() if value is not None or name not in ("failure_kind", "stage")
        }


class BaseEpisodeResponse(Strict, Generic[Result]):
    """The result of an episode, or why it has none."""

    episode_id: EpisodeId
    task_id: TaskId
    result: Result | None = None
    failure: EpisodeFailure | None = None

    @model_validator(mode="after")
    def _has_one_of_both(self) -> Self:
        if (self.result is None) == (self.failure is None):
            raise ValueError("an episode has either a `result` or a `failure`")
        return self


def is_materialized_task_row(row: Mapping[str, Any]) -> bool:
    """True for a row that has its task in `task_id` and `task_input`."""
    return isinstance(row.get("task_id"), Mapping) and "task_input" in row


def episode_of(row: Mapping[str, Any]) -> JsonObject:
    """Return the request to play a row, which has its task in `task_id` and `task_input`."""
    name = row.get(ROLLOUT_ID_KEY_NAME) or f"{row.get(TASK_INDEX_KEY_NAME)}-{row.get(ROLLOUT_INDEX_KEY_NAME)}"
    episode = {"rollout_id": name, "attempt": row.get(ATTEMPT_INDEX_KEY_NAME, 0)}
    return {"episode_id": episode, "task": {name: row[name] for name in ("task_id", "task_input")}}


def record_of(answer: Mapping[str, Any]) -> JsonObject:
    """Return the record of an episode, or the fields that say why it has none. Raises ValueError if a field of the
    result is one that records have of their own."""
    failure, result = answer.get("failure"), answer.get("result") or {}
    if failure is not None:
        named = {f"_ng_failure_{key}": failure[key] for key in ("terminal", "stage") if key in failure}
        partial = failure.get("partial_response")
        why = {NG_FAILURE_CLASS_KEY: FAILED, NG_FAILURE_MESSAGE_KEY: failure["failure_reason"], **named}
        return why if partial is None else {**why, "response": partial}
    taken = sorted(name for name in result if name.startswith("_ng_") or name in _OWN_FIELDS)
    if taken:
        raise ValueError(f"the result has {', '.join(taken)}, which are fields of records")
    return {**result, "_ng_task_id": answer["task_id"]}


def materialize_task(row: Mapping[str, Any], *, taskset: str, task_index: int | None = None) -> JsonObject:
    """Return the task of a flat row."""
    given = next((row[name] for name in TASK_ID_FIELDS if row.get(name) not in (None, "")), None)
    index = row.get("_ng_task_index") if task_index is None else task_index
    name = index if given is None else given
    if name is None:
        raise ValueError(f"The row has none of {', '.join(TASK_ID_FIELDS)}, and no index is given")
    kept = {key: value for key, value in row.items() if key not in _NOT_INPUT and not key.startswith("_ng_")}
    return {"task_id": {"taskset": taskset, "task_id": str(name)}, "task_input": kept}


# One turn of one agent


class SingleAgentTurnTaskInput(BaseModel):
    """The request of an agent, and the row's own fields. Fields beside them are the row's own, too."""

    model_config = ConfigDict(extra="forbid")

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    task_data: JsonObject = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _collects_flat_fields(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        flat = {name: value for name, value in values.items() if name not in cls.model_fields}
        own = values.get("task_data") or {}
        twice = sorted(name for name in flat if name in own and own[name] != flat[name])
        if twice:
            raise ValueError(f"{', '.join(twice)} stands both in the row and in its task_data, with other values")
        kept = {name: value for name, value in values.items() if name in cls.model_fields}
        return {**kept, "task_data": {**flat, **own}}


class SingleAgentTurnRequest(BaseEpisodeRequest[SingleAgentTurnTaskInput]):
    """Play one turn."""


class SingleAgentTurnResult(BaseVerifyResponse):
    """The reply of the verifier."""

    model_config = ConfigDict(extra="allow")

    ng_agent_observations: AgentObservationBundle | None = None


class SingleAgentTurnFailure(EpisodeFailure):
    """With what the agent has answered, if it has."""

    partial_response: NeMoGymResponse | None = None


class SingleAgentTurnResponse(BaseEpisodeResponse[SingleAgentTurnResult]):
    """The result of one turn."""

    failure: SingleAgentTurnFailure | None = None
