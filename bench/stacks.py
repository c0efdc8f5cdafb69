"""The weather environment with an agent and a model, as the load meets it: held in this process, or served."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from bench.load import Call
from bench.stub import MODEL_NAME, Served, launched
from nemo_gym.client.pool import HttpClient
from nemo_gym.errors import GymError
from nemo_gym.testing import running, servers_of

WEATHER_CONFIG = "resources_servers/example_simple_weather/configs/simple_weather.yaml"
MODEL_CONFIG = "responses_api_models/openai_model/configs/openai_model.yaml"
CONFIGS = [WEATHER_CONFIG, MODEL_CONFIG]
AGENT = "simple_weather_simple_agent"
CALL_TIMEOUT_S = 60.0

REQUEST = {
    "input": [
        {"role": "developer", "content": "You are a helpful personal assistant. Use a tool when one helps."},
        {"role": "user", "content": "Should I pack a scarf for Oslo?"},
    ],
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": "Tell the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The city's name."}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,
        }
    ],
}
ROW = orjson.dumps({"responses_create_params": REQUEST})
BARE_REQUEST = orjson.dumps({**REQUEST, "model": MODEL_NAME})
"""What a rollout sends to the model endpoint."""


class BenchError(GymError):
    """What was to be measured did not work, so there is no figure."""


@asynccontextmanager
async def bare_client(stub: Served) -> AsyncIterator[Call]:
    """One request to the model endpoint, by the HTTP client that everything here uses, with nothing around it."""
    limit = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, timeout=limit, headers=headers) as session:

        async def call() -> None:
            async with session.post(f"{stub.url}/responses", data=BARE_REQUEST) as answer:
                _check(answer.status, await answer.read(), b'"output"')

        yield call


@asynccontextmanager
async def held_stack(stub: Served) -> AsyncIterator[Call]:
    """One rollout in this process: a row goes in as bytes, a record comes out as bytes."""
    async with running(servers_of(*CONFIGS, **_policy(stub))) as client:

        async def call() -> None:
            answer = await client.send(AGENT, "/run", ROW)
            _check(answer.status, answer.content(), b'"reward":1.0')

        yield call


@dataclass(frozen=True, slots=True)
class ServedStack:
    """One rollout by servers in processes of their own."""

    call: Call
    pids: list[int]


@asynccontextmanager
async def served_stack(stub: Served) -> AsyncIterator[ServedStack]:
    """As `held_stack`, but the servers run as `ng_run` starts them and are called over HTTP."""
    async with launched(AGENT, {"config_paths": CONFIGS, **_policy(stub)}) as agent, HttpClient() as http:

        async def call() -> None:
            answer = await http.fetch("POST", f"{agent.url}/run", body=ROW, timeout_s=CALL_TIMEOUT_S)
            _check(answer.status, answer.body, b'"reward":1.0')

        yield ServedStack(call, agent.pids)


def _policy(stub: Served) -> dict[str, Any]:
    return {"policy_base_url": stub.url, "policy_api_key": "none", "policy_model_name": MODEL_NAME}


def _check(status: int, body: bytes, expected: bytes) -> None:
    if status != 200 or expected not in body:
        raise BenchError(f"Expected a 200 with {expected!r} in it, found {status}: {body[:500]!r}")
