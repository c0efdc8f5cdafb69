"""tau2: customer service under a policy, in three domains with databases, with a simulated user or alone."""

import asyncio
import json
from typing import Any, Self

from pydantic import Field, model_validator

from nemo_gym import JsonObject
from nemo_gym.answers import all_text, shown
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    Participant,
    Score,
    SessionState,
    SimpleResourcesServer,
    ToolName,
    any_tool,
)
from resources_servers.tau2.domains import world_of
from resources_servers.tau2.goal import Domain, FunctionCall, Goal
from resources_servers.tau2.package import tables_of
from resources_servers.tau2.telecom import SOLO_TOOLS


class Tau2SeedSessionRequest(BaseSeedSessionRequest):
    domain: Domain = "telecom"
    beginning: list[FunctionCall] = Field(default_factory=list)
    database: dict[str, Any] | None = None
    """The tables of the domain, if they are not those of the package."""
    user: dict[str, Any] | None = None
    """The simulated user; without one the agent works alone."""


class Tau2VerifyRequest(Goal, BaseVerifyRequest):
    domain: Domain = "telecom"

    @model_validator(mode="after")
    def _is_judged_by_something(self) -> Self:
        if self.domain == "telecom" and not self.assertions:
            raise ValueError("a task of the telecom domain has assertions; there are none")
        if self.domain != "telecom" and self.assertions:
            raise ValueError(f"the {self.domain} domain is judged by its database, and has no assertions")
        return self


class Work(SessionState):
    world: Any = None
    """A World."""


class Tau2ResourcesServer(SimpleResourcesServer):
    given_history = "replay"

    @classmethod
    def tool_schemas(cls) -> list[JsonObject]:
        """Those of an agent who works alone. Rows with a user list their tools."""
        return SOLO_TOOLS

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse a row whose beginning is unknown, or that is solved before anything is done. Rows of the package
        were all tried."""
        given = row["responses_create_params"]["input"]
        if row.get("user") and not isinstance(given, str) and any("call_id" in each for each in given):
            raise ValueError("`input` has tool calls; those of the user, who acts on the same state, are not in it")
        if isinstance(row.get("database"), dict) and not row.get("communicate"):
            seed, goal = Tau2SeedSessionRequest.model_validate(row), Goal.model_validate(row)
            world = world_of(seed.domain, seed.database or {}, seed.beginning)
            if world.failure(goal, "") is None:
                raise ValueError("the task is solved before anything is done")

    async def seed_session(self, body: Tau2SeedSessionRequest, work: Work) -> None:
        tables = body.database
        if tables is None:
            tables = await asyncio.to_thread(tables_of, body.domain)  # the first call may download the package
        work.world = world_of(body.domain, tables, body.beginning, is_solo=body.user is None)

    @any_tool
    async def call(self, name: ToolName, body: dict[str, Any], work: Work, caller: Participant) -> str:
        """Call a tool of the agent or of the user."""
        if work.world is None:
            return json.dumps({"error": f"There is no tool '{name}'."})
        return str(work.world.call(name, body, is_user=caller == "user"))

    async def verify(self, body: Tau2VerifyRequest, work: Work) -> Score:
        """`failed` names the first thing that is not as the task wants it."""
        if work.world is None:
            raise RuntimeError("the session was not seeded")
        failed = work.world.failure(body, shown(all_text(body.response)))
        return Score(float(failed is None), failed=failed, tool_calls=len(work.world.calls))


if __name__ == "__main__":
    Tau2ResourcesServer.run_webserver()
