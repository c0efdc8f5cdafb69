"""A server of OpenEnv with two environments: a game whose action is a text, and tools over MCP.

Usage: python server.py <JSON list of [seed, [actions]]>. Prints the rewards that the environments' own loops have for
these actions, then the port on which it serves the game and the port of the tools, one JSON value a line.
"""

import asyncio
import json
import random
import socket
import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

MAX_STEPS = 6


class Walk(Action):
    message: str


class Seen(Observation):
    text: str


class WalkEnvironment(Environment[Walk, Seen, State]):
    """Find a treasure on a line: the colder, the less reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        self.chance = random.Random(seed)
        self.place, self.treasure, self.steps = 0, self.chance.choice([-2, -1, 1, 2]), 0
        return Seen(text="You stand at 0. Say left or right.")

    def step(self, action: Walk, timeout_s: float | None = None, **_: Any) -> Seen:
        if action.message == "crash":
            raise RuntimeError("The floor gave way.")
        self.steps += 1
        self.place += {"left": -1, "right": 1}.get(action.message, 0)
        found = self.place == self.treasure
        reward = 1.0 if found else -0.1 * abs(self.place - self.treasure) + self.chance.random() / 100
        return Seen(text=f"You stand at {self.place}.", reward=reward, done=found or self.steps == MAX_STEPS)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


class ToolEnvironment(MCPEnvironment):
    """One tool; a call of it with the right number has a reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("tools")
        self.secret = 0

        @server.tool
        def guess(number: int) -> str:
            return "right" if number == self.secret else "wrong"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self.secret = random.Random(seed).randint(1, 3)
        return Observation()

    async def step_async(self, action: Any, timeout_s: float | None = None, **more: Any) -> Observation:
        seen = await super().step_async(action, timeout_s, **more)
        is_right = isinstance(action, CallToolAction) and action.arguments.get("number") == self.secret
        seen.reward, seen.done = float(is_right), is_right
        return seen

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()


def own_loop(seed: int, actions: list[str]) -> float:
    env, total = WalkEnvironment(), 0.0
    env.reset(seed=seed)
    for action in actions:
        seen = env.step(Walk(message=action))
        total += float(seen.reward or 0.0)
        if seen.done:
            break
    return total


async def main() -> None:
    print(json.dumps([own_loop(seed, actions) for seed, actions in json.loads(sys.argv[1])]), flush=True)
    game = create_fastapi_app(WalkEnvironment, Walk, Seen, max_concurrent_envs=64)
    tools = create_fastapi_app(ToolEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=64)
    serving = []
    for app in (game, tools):
        listening = socket.create_server(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        serving.append(uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve([listening]))
    await asyncio.gather(*serving)


asyncio.run(main())
