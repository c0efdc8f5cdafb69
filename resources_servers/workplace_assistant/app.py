"""Office tasks: mail, calendar, web analytics, project tasks and customers, solved by tool calls.

A rollout is scored by its calls alone: they are replayed on fresh tables, and so are the expected ones; the tables
must be equal then."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, model_validator
from starlette.exceptions import HTTPException

from nemo_gym.answers import last_text, says_something, shown, strict_json
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    Score,
    SessionState,
    SimpleResourcesServer,
    ToolName,
    any_tool,
    offered_tools,
)
from nemo_gym.common.paths import find
from nemo_gym.compute import Compute
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.responses import NeMoGymResponseCreateParamsNonStreaming, NeMoGymResponseFunctionToolCall
from resources_servers.workplace_assistant.schemas import tool_schemas
from resources_servers.workplace_assistant.tables import Office, changes, equal_offices, load_office
from resources_servers.workplace_assistant.toolbox import (
    TOOLS,
    ToolCall,
    call_tool,
    check_call,
    has_outcome,
    may_take_long,
    replay,
    replay_may_take_long,
)

NOT_SEEDED = "Session not initialized. Please call seed_session first."


class WorkplaceAssistantResourcesServerConfig(BaseResourcesServerConfig, extra="forbid"):
    tables_dirpath: str = "resources_servers/workplace_assistant/data/csv_data"
    """The folder of the tables, with `processed/` and `raw/` in it. Rows belong to the tables they were made for."""

    search_timeout_s: float = Field(default=5.0, gt=0)
    """Time limit for a search. Its pattern comes from the model, and a pattern can run for ever."""

    replay_timeout_s: float = Field(default=10.0, gt=0)
    """Time limit for replaying a rollout with an unusual number of calls. Past it, the reward is 0."""


class Action(BaseModel):
    """A tool call."""

    name: str
    arguments: str

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        check_call(self.name, self.arguments)
        return self


def _listed(ground_truth: Any) -> Any:
    """The expected calls, which datasets also store as JSON text."""
    if not isinstance(ground_truth, str) or not ground_truth:
        return ground_truth
    try:
        found = strict_json(ground_truth)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise ValueError("expected a list of calls, or an empty text if nothing is to be done")
    return found


GroundTruth = Annotated[list[Action] | Literal[""], BeforeValidator(_listed)]
"""The calls that solve the task. Without any, nothing is to be done."""


class WorkplaceRow(BaseModel):
    """The expected outcome of a rollout."""

    ground_truth: GroundTruth = ""


class WorkplaceAssistantVerifyRequest(BaseVerifyRequest):
    id: int
    ground_truth: GroundTruth
    category: str
    environment_name: str


class Workplace(SessionState):
    office: Office | None = None
    """None until the session is seeded."""


class WorkplaceAssistantResourcesServer(SimpleResourcesServer):
    config: WorkplaceAssistantResourcesServerConfig

    given_history = "replay"

    _office: Office = PrivateAttr()

    def model_post_init(self, _context: Any, /) -> None:
        self._office = load_office(find(self.config.tables_dirpath, what="folder of tables"))

    @classmethod
    def tool_schemas(cls) -> list[dict[str, Any]]:
        return tool_schemas()

    async def seed_session(self, row: WorkplaceRow, session: Workplace) -> None:
        self._solved_office(row.ground_truth)
        session.office = self._office.fork()

    @any_tool
    async def use_tool(
        self, name: ToolName, body: dict[str, Any], session: Workplace, compute: Compute
    ) -> dict[str, Any]:
        """Always answers `output`: what the tool gives, or an error in words."""
        if session.office is None:
            raise HTTPException(400, NOT_SEEDED)
        if not may_take_long(name, body):
            return {"output": call_tool(session.office, name, body)}
        late, timeout_s = f"Error executing tool '{name}': the search took too long", self.config.search_timeout_s
        output = await compute.run(call_tool, session.office, str(name), body, timeout_s=timeout_s, on_limit=late)
        return {"output": output}

    async def verify(self, body: WorkplaceAssistantVerifyRequest, compute: Compute) -> float | Score:
        expected = self._solved_office(body.ground_truth)
        if expected is self._office and not says_something(shown(last_text(body.response))):
            return 0.0
        calls, given = made_calls(body), given_calls(body.responses_create_params)
        if given and expected is not self._office and equal_offices(replay(self._office, given), expected):
            raise RolloutError("input", "The calls in the row's `input` do all that `ground_truth` asks for.")
        if not replay_may_take_long(calls):
            final = replay(self._office, calls)
            states = {"final_state": changes(self._office, final), "expected_state": changes(self._office, expected)}
            return Score(float(equal_offices(final, expected)), **states)
        timeout_s = self.config.replay_timeout_s
        return float(
            await compute.run(has_outcome, self._office, calls, expected, timeout_s=timeout_s, on_limit=False)
        )

    def _solved_office(self, ground_truth: list[Action] | Literal[""]) -> Office:
        """The office after the expected calls; the loaded one itself if nothing is to be done."""
        if not ground_truth:
            return self._office
        solved = replay(self._office, [(action.name, action.arguments) for action in ground_truth])
        if equal_offices(solved, self._office):
            tables = self.config.tables_dirpath
            raise RolloutError("input", f"The calls in `ground_truth` change nothing in the tables of '{tables}'.")
        return solved

    @classmethod
    def gold_response(cls, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The expected calls."""
        actions = _listed(row["ground_truth"]) or []
        return [{"type": "function_call", "call_id": f"call_{n}", **action} for n, action in enumerate(actions)]


def made_calls(body: BaseVerifyRequest) -> list[ToolCall]:
    """All calls that reached the environment: those that the row begins with, and those since. A call of a tool that
    the row does not offer was refused."""
    params = body.responses_create_params
    return [*given_calls(params), *_calls(body.response.output, params)]


def given_calls(params: NeMoGymResponseCreateParamsNonStreaming) -> list[ToolCall]:
    """The calls that the row begins with."""
    return [] if isinstance(params.input, str) else _calls(params.input, params)


def _calls(items: Iterable[Any], params: NeMoGymResponseCreateParamsNonStreaming) -> list[ToolCall]:
    offered = offered_tools(params.tools) if "tools" in params.model_fields_set else TOOLS
    calls = (item for item in items if isinstance(item, NeMoGymResponseFunctionToolCall))
    return [(item.name, item.arguments) for item in calls if item.name in offered]
