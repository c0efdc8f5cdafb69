"""Office tasks: mail, calendar, web analytics, project tasks and customers, solved by tool calls.

A rollout is scored by its calls alone: they are replayed on fresh tables, and so are the expected ones; the tables
must be equal then."""

from typing import Any

from pydantic import BaseModel, Field, PrivateAttr
from starlette.exceptions import HTTPException

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    SessionState,
    SimpleResourcesServer,
    ToolName,
    any_tool,
)
from nemo_gym.openai_utils import NeMoGymResponseFunctionToolCall
from nemo_gym.server_utils import Compute, LimitExceededError, find
from resources_servers.workplace_assistant.schemas import tool_schemas
from resources_servers.workplace_assistant.tables import Office, load_office
from resources_servers.workplace_assistant.toolbox import (
    call_tool,
    have_same_outcome,
    may_take_long,
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


class WorkplaceAssistantVerifyRequest(BaseVerifyRequest):
    id: int
    ground_truth: list[Action] | str
    """The calls that solve the task. A text means that nothing is to be done."""
    category: str
    environment_name: str


class Workplace(SessionState):
    office: Office | None = None
    """None until the session is seeded."""


class WorkplaceAssistantResourcesServer(SimpleResourcesServer):
    config: WorkplaceAssistantResourcesServerConfig

    _office: Office = PrivateAttr()

    def model_post_init(self, _context: Any, /) -> None:
        self._office = load_office(find(self.config.tables_dirpath, what="folder of tables"))

    @classmethod
    def tool_schemas(cls) -> list[dict[str, Any]]:
        return tool_schemas()

    async def seed_session(self, session: Workplace) -> None:
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
        timeout_s = self.config.search_timeout_s
        try:
            return {"output": await compute.run(call_tool, session.office, str(name), body, timeout_s=timeout_s)}
        except LimitExceededError:
            return {"output": f"Error executing tool '{name}': the search took too long"}

    async def verify(self, body: WorkplaceAssistantVerifyRequest, compute: Compute) -> float:
        items = body.response.output
        calls = [(item.name, item.arguments) for item in items if isinstance(item, NeMoGymResponseFunctionToolCall)]
        actions = [] if isinstance(body.ground_truth, str) else body.ground_truth
        expected = [(action.name, action.arguments) for action in actions]
        if not replay_may_take_long(calls):
            return float(have_same_outcome(self._office, calls, expected))
        timeout_s = self.config.replay_timeout_s
        try:
            return float(await compute.run(have_same_outcome, self._office, calls, expected, timeout_s=timeout_s))
        except LimitExceededError:
            return 0.0

    @classmethod
    def gold_response(cls, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The expected calls."""
        actions = row["ground_truth"] if isinstance(row["ground_truth"], list) else []
        return [{"type": "function_call", "call_id": f"call_{n}", **action} for n, action in enumerate(actions)]


if __name__ == "__main__":
    WorkplaceAssistantResourcesServer.run_webserver()
