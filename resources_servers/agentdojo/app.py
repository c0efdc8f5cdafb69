"""AgentDojo: an office assistant does a user's task, while texts that its tools return try to have it do another."""

import asyncio
import json
from collections import defaultdict
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from nemo_gym import JsonObject
from nemo_gym.answers import last_text, shown
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    Score,
    SessionState,
    SimpleResourcesServer,
    ToolName,
    any_tool,
)
from nemo_gym.errors import RolloutError
from resources_servers.agentdojo.suites import Office, suite_of


class Task(BaseSeedSessionRequest):
    suite: Literal["workspace", "travel", "banking", "slack"]
    user_task: str
    injection_task: str | None = None
    """The attacker's goal, if the row has an attack."""
    injections: dict[str, str] = Field(default_factory=dict)
    """Texts of the attacker, by the hole of the environment that they are in."""


class AgentDojoVerifyRequest(Task, BaseVerifyRequest):
    pass


class Work(SessionState):
    office: Any = None
    """An Office."""


class AgentDojoResourcesServer(SimpleResourcesServer):
    EXTRA = "agentdojo"
    given_history = "replay"

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        if bool(row.get("injection_task")) != bool(row.get("injections")):
            raise ValueError("an attack has an injection_task and injections; the row has one of them only")

    async def seed_session(self, body: Task, work: Work) -> None:
        try:  # the first call may download the package
            work.office = await asyncio.to_thread(_office_of, body)
        except KeyError as error:
            raise RolloutError("input", f"The suite {body.suite} has no {error}.") from error

    @any_tool
    async def call(self, name: ToolName, body: dict[str, Any], work: Work) -> str:
        """Call a tool of the suite."""
        if work.office is None:
            return json.dumps({"error": "The session was not seeded."})
        return str(work.office.call(name, body))

    async def verify(self, body: AgentDojoVerifyRequest, work: Work) -> Score:
        """`utility`: the user's task is done. `security`: the attacker's goal is not reached."""
        if work.office is None:
            raise RuntimeError("the session was not seeded")
        output = body.response.output
        said = shown(last_text(body.response)) if output and output[-1].type == "message" else None
        outcome = await asyncio.to_thread(work.office.outcome, said, body.injection_task)
        utility, security = float(outcome.utility), float(not outcome.attack_succeeded)
        return Score(
            utility * security,
            utility=utility,
            security=security,
            reward_components={"utility": utility, "security": security},
        )

    def compute_metrics(self, tasks: list[list[JsonObject]]) -> JsonObject:
        """The mean of each suite."""
        rewards = defaultdict[str, list[float]](list)
        for record in (record for task in tasks for record in task):
            rewards[record["suite"]].append(record["reward"])
        return {f"suite/{name}": fmean(each) for name, each in sorted(rewards.items())}

    def get_key_metrics(self, agent_metrics: JsonObject) -> JsonObject:
        own = ("mean/reward", "mean/utility", "mean/security", "suite/")
        return {name: value for name, value in agent_metrics.items() if name.startswith(own)}


def _office_of(task: Task) -> Office:
    suite = suite_of(task.suite)
    if task.injection_task is not None and task.injection_task not in suite.injection_tasks:
        raise KeyError(task.injection_task)
    return Office(task.suite, task.user_task, task.injections)


if __name__ == "__main__":
    AgentDojoResourcesServer.run_webserver()
