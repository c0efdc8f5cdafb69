"""An environment, an agent in it and a model, as most tests need them: as server specs, or as a configuration file."""

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from nemo_gym.client.call_log import Send
from nemo_gym.client.server_client import LocalServer, ServerClient, ServerReply
from nemo_gym.server.base import SimpleServer
from nemo_gym.testing import ServerSpec, client_for, running_servers, server_spec


def references(environment: str, model: str = "policy_model") -> dict[str, Any]:
    """The two settings by which an agent finds its servers."""
    return {
        "resources_server": {"type": "resources_servers", "name": environment},
        "model_server": {"type": "responses_api_models", "name": model},
    }


def simple_agent(environment: str, **config: Any) -> ServerSpec:
    return server_spec("agent", "responses_api_agents", "simple_agent", **references(environment), **config)


def scripted_model(replies: Sequence[Any], **config: Any) -> ServerSpec:
    return server_spec("policy_model", "responses_api_models", "scripted_model", replies=list(replies), **config)


def counter(**config: Any) -> ServerSpec:
    return server_spec("counter", "resources_servers", "example_stateful_counter", domain="agent", **config)


def weather(**config: Any) -> ServerSpec:
    return server_spec("weather", "resources_servers", "example_simple_weather", domain="agent", **config)


def scripted_servers(environment: ServerSpec, replies: Sequence[Any], **agent: Any) -> list[ServerSpec]:
    """The environment, a model that replies from a script, and an agent with these settings."""
    return [environment, scripted_model(replies), simple_agent(environment.name, **agent)]


async def rollout_of(
    environment: ServerSpec, row: dict[str, Any], replies: Sequence[Any], **agent: Any
) -> dict[str, Any]:
    """The record of one rollout."""
    async with running_servers(scripted_servers(environment, replies, **agent)) as client:
        record: dict[str, Any] = await (await client.post("agent", "/run", json=row)).json()
        return record


async def verified_by(server: type[SimpleServer], row: dict[str, Any], **config: Any) -> dict[str, Any]:
    """The reply of an environment to `/verify`."""
    async with client_for(server, **config) as environment:
        answer = await environment.post("/verify", json=row)
        assert answer.status == 200, answer.text
        record: dict[str, Any] = answer.json()
        return record


def agent_config(
    environment: str,
    *,
    model: str = "scripted_model",
    agent: str = "simple_agent",
    isolation: str = "shared",
    **model_settings: Any,
) -> str:
    """YAML with three servers: the environment, under the name of its folder, `agent` and `policy_model`."""
    own = {"entrypoint": "app.py", "domain": "other", "isolation": isolation}
    return json.dumps(
        {
            environment: {"resources_servers": {environment: own}},
            "agent": {"responses_api_agents": {agent: {"entrypoint": "app.py", **references(environment)}}},
            "policy_model": {"responses_api_models": {model: {"entrypoint": "app.py", **model_settings}}},
        }
    )


Intercept = Callable[[Any, Send], Awaitable[ServerReply]]


class _Intercepted:
    def __init__(self, server: LocalServer, intercept: Intercept) -> None:
        self._server, self._intercept = server, intercept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def direct(self, method: str, path: str, body: Any, *arguments: Any, **options: Any) -> Awaitable[ServerReply]:
        return self._intercept(body, partial(self._server.direct, method, path, body, *arguments, **options))


def intercept(client: ServerClient, server: str, function: Intercept) -> None:
    """Have every direct call of a server made by `function`, which gets its body and what makes the call."""
    client.local = {**client.local, server: _Intercepted(client.local[server], function)}
