"""Types of `ng_agent_observations`: model and tool calls, compactions, sandboxes, and gaps that an agent observed.

Agents that run an external program put an `AgentObservationBundle` into their reply. The record keeps it unchanged.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.llm_api.responses import NeMoGymResponse, NeMoGymResponseInputItem

Status = Literal["completed", "failed", "incomplete", "unknown"]
ToolStatus = Literal["completed", "failed", "incomplete", "unknown", "timeout", "cancelled"]
NotNegative = Annotated[float, Field(ge=0)]


class _Observation(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class ModelCallRef(_Observation):
    """Identifies a model call: by its own id, or by model and response."""

    model_call_id: str | None = None
    model_ref: Any = None
    response_id: str | None = None

    @model_validator(mode="after")
    def _names_a_call(self) -> Self:
        if self.model_call_id is None and (self.model_ref is None or self.response_id is None):
            raise ValueError("a model_call_id is required, or both of model_ref and response_id")
        return self


class AgentInvocation(_Observation):
    kind: Literal["agent_invocation"] = "agent_invocation"
    invocation_id: str
    parent_invocation_id: str | None = None
    spawned_by_tool_call_id: str | None = None
    status: Status = "unknown"
    duration_ms: NotNegative | None = None
    error_type: str | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    conversation: list[NeMoGymResponseInputItem] = Field(default_factory=list)


class ToolCallObservation(_Observation):
    kind: Literal["tool_call"] = "tool_call"
    invocation_id: str
    tool_call_id: str
    sandbox_id: str | None = None
    tool_name: str | None = None
    started_at: float | None = None
    """Seconds since the epoch, as all times here."""
    completed_at: float | None = None
    duration_ms: NotNegative | None = None
    timing_source: Literal["executor", "artifact", "harness"] | None = None
    status: ToolStatus = "unknown"
    error_type: str | None = None

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> Self:
        if self.started_at is not None and self.completed_at is not None and self.completed_at < self.started_at:
            raise ValueError("completed_at is before started_at")
        return self


class ContextCompactionObservation(_Observation):
    kind: Literal["context_compaction"] = "context_compaction"
    invocation_id: str
    observed_at: float | None = None
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    outcome: Literal["completed", "failed", "aborted", "unknown"] = "unknown"
    summary: str | None = None
    first_kept_item_id: str | None = None
    before_model_call: ModelCallRef | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    after_model_call: ModelCallRef | None = None


class SandboxObservation(_Observation):
    model_config = ConfigDict(extra="allow", validate_assignment=True)

    kind: Literal["sandbox"] = "sandbox"
    role: Literal["agent", "verifier", "environment"]
    provider: str | None = None
    sandbox_id: str | None = None
    outcome: str = "unknown"
    exit_code: int | None = None
    wall_time_s: NotNegative | None = None
    cpu_time_s: NotNegative | None = None
    peak_memory_mib: NotNegative | None = None


class ObservationGap(_Observation):
    """Something that the agent could not observe."""

    code: str
    invocation_id: str | None = None
    detail: str | None = None


AnyObservation = AgentInvocation | ToolCallObservation | ContextCompactionObservation | SandboxObservation


class AgentObservationBundle(_Observation):
    source: str
    records: list[Annotated[AnyObservation, Field(discriminator="kind")]] = Field(default_factory=list)
    gaps: list[ObservationGap] = Field(default_factory=list)

    @model_validator(mode="after")
    def _invocations_are_a_forest(self) -> Self:
        _check_invocations(record for record in self.records if isinstance(record, AgentInvocation))
        return self


@dataclass(frozen=True)
class AgentEpisode:
    """The response of an agent, and its observations."""

    response: NeMoGymResponse
    observations: AgentObservationBundle


class TrajectoryTurn(_Observation):
    invocation_id: str
    task_id: str
    rollout_id: str
    turn_no: int = Field(ge=1)
    timestamp: float
    question: Any = None
    answer: Any = None
    reasoning_content: Any = None
    resolved: bool | None = None
    step_count: int = Field(default=0, ge=0)
    model_calls: list[ModelCallRef] = Field(default_factory=list)


class TrajectoryToolCall(ToolCallObservation):
    output: Any = None


class ModelCallMetadata(_Observation):
    """Return the known fields of the response to a model call."""

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    response_id: str | None = None
    response_status: str | None = None


class TrajectoryModelCall(_Observation):
    """A captured model call."""

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    model_call_id: str | None = None
    request: Any = None
    response: Any = None
    response_metadata: ModelCallMetadata = Field(default_factory=ModelCallMetadata)

    @model_validator(mode="before")
    @classmethod
    def _reads_metadata(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "response_metadata" in values:
            return values
        given = values.get("response")
        response = given if isinstance(given, dict) else {}
        found = {"response_id": values.get("response_id"), "response_status": values.get("response_status")}
        known = {"response_id": response.get("id"), "response_status": response.get("status")}
        metadata = {name: value if value is not None else known[name] for name, value in found.items()}
        return {**values, "response_metadata": metadata}


class TrajectoryRecord(_Observation):
    schema_version: Literal["1.0"] = "1.0"
    task_id: str
    rollout_id: str
    invocations: list[AgentInvocation] = Field(default_factory=list)
    turns: list[TrajectoryTurn] = Field(default_factory=list)
    model_calls: list[TrajectoryModelCall] = Field(default_factory=list)
    tool_calls: list[TrajectoryToolCall] = Field(default_factory=list)
    gaps: list[ObservationGap] = Field(default_factory=list)

    @model_validator(mode="after")
    def _belongs_to_one_rollout(self) -> Self:
        _check_invocations(self.invocations)
        own = (self.task_id, self.rollout_id)
        if any((turn.task_id, turn.rollout_id) != own for turn in self.turns):
            raise ValueError(f"a turn is not of task {self.task_id} and rollout {self.rollout_id}")
        return self


def _check_invocations(invocations: Iterable[AgentInvocation]) -> None:
    found = list(invocations)
    twice = [name for name, times in Counter(each.invocation_id for each in found).items() if times > 1]
    if twice:
        raise ValueError(f"the invocation_id {twice[0]!r} is used twice")
    parents = {each.invocation_id: each.parent_invocation_id for each in found}
    for start in parents:
        seen, at = {start}, parents[start]
        while at is not None:
            if at in seen:
                raise ValueError(f"the invocation {start!r} is its own ancestor")
            seen.add(at)
            at = parents.get(at)
