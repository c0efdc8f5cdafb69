"""A counter for each rollout: seeded from the row, moved by a tool, compared with what the row expects."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, StrictInt

from nemo_gym import JsonObject
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    Score,
    SessionState,
    SimpleResourcesServer,
    tool,
)


def _not_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a whole number")
    return value


Number = Annotated[int, BeforeValidator(_not_boolean)]


class Counter(SessionState):
    count: int | None = None
    """None until something touches it: an untouched counter equals no expectation, not even 0."""


class CounterSeedRequest(BaseSeedSessionRequest):
    initial_count: StrictInt


class CounterVerifyRequest(BaseVerifyRequest):
    expected_count: StrictInt


class StatefulCounterResourcesServer(SimpleResourcesServer):
    given_history = "replay"

    async def seed_session(self, body: CounterSeedRequest, session: Counter) -> None:
        """Start the counter, once: a second seed of a rollout changes nothing."""
        if session.count is None:
            session.count = body.initial_count

    @tool
    async def increment_counter(self, count: Number, session: Counter) -> dict[str, bool]:
        """Add to the counter."""
        session.count = (session.count or 0) + count
        return {"success": True}

    @tool
    async def get_counter_value(self, session: Counter) -> dict[str, int]:
        """Read the counter."""
        session.count = session.count or 0
        return {"count": session.count}

    async def verify(self, body: CounterVerifyRequest, session: Counter) -> Score:
        states = {"final_state": {"count": session.count}, "expected_state": {"count": body.expected_count}}
        return Score(float(session.count == body.expected_count), **states)

    @classmethod
    def gold_response(cls, row: JsonObject) -> list[JsonObject]:
        """One call that adds what is missing."""
        arguments = json.dumps({"count": row["expected_count"] - row["initial_count"]})
        return [{"type": "function_call", "call_id": "call_0", "name": "increment_counter", "arguments": arguments}]
