"""tau2's telecom domain for an agent who works alone: the tools of the carrier and those of the customer's phone."""

import asyncio
import json
from typing import Any

from pydantic import Field

from nemo_gym import JsonObject
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    Score,
    SessionState,
    SimpleResourcesServer,
    ToolName,
    any_tool,
)
from resources_servers.tau2.package import telecom_tables
from resources_servers.tau2.telecom import SOLO_TOOLS, Assertion, ExpectedAction, FunctionCall, Telecom

_NAMES = frozenset(tool["name"] for tool in SOLO_TOOLS)


class Tau2SeedSessionRequest(BaseSeedSessionRequest):
    beginning: list[FunctionCall]
    database: dict[str, Any] | None = None
    """The tables of the carrier, if they are not those of the package."""


class Tau2VerifyRequest(BaseVerifyRequest):
    assertions: list[Assertion] = Field(min_length=1)
    actions: list[ExpectedAction] = Field(default_factory=list)


class Work(SessionState):
    world: Telecom | None = None


class Tau2ResourcesServer(SimpleResourcesServer):
    given_history = "replay"

    @classmethod
    def tool_schemas(cls) -> list[JsonObject]:
        return SOLO_TOOLS

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse a row that is solved before anything is done. Rows of the package were all tried."""
        database = row.get("database")
        if not isinstance(database, dict):
            return
        world = Telecom(database, [FunctionCall.model_validate(each) for each in row["beginning"]])
        holds = world.failed_assertion([Assertion.model_validate(each) for each in row["assertions"]]) is None
        if holds and not row.get("actions"):
            raise ValueError("all assertions hold before anything is done")

    async def seed_session(self, body: Tau2SeedSessionRequest, work: Work) -> None:
        tables = body.database
        if tables is None:
            tables = await asyncio.to_thread(telecom_tables)  # the first call may download the package
        work.world = Telecom(tables, body.beginning)

    @any_tool
    async def call(self, name: ToolName, body: dict[str, Any], work: Work) -> str:
        """Call a tool of the carrier or of the phone."""
        if work.world is None or name not in _NAMES:
            return json.dumps({"error": f"There is no tool '{name}'."})
        return work.world.call(name, body)

    async def verify(self, body: Tau2VerifyRequest, work: Work) -> Score:
        """`failed` names the first assertion that does not hold, or else the first action that was not taken."""
        if work.world is None:
            raise RuntimeError("the session was not seeded")
        failed = work.world.failed_assertion(body.assertions) or work.world.missing_action(body.actions)
        return Score(float(failed is None), failed=failed, tool_calls=len(work.world.calls))


if __name__ == "__main__":
    Tau2ResourcesServer.run_webserver()
