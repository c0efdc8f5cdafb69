"""Functions for agents of the public NeMo Gym that run a program in a sandbox."""

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel

from nemo_gym.client.reply import get_response_json, raise_for_status
from nemo_gym.config.keys import NEMO_GYM_MCP_METADATA_KEY
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.sandbox import agent_tools
from nemo_gym.sandbox.contract import SandboxSpec, SandboxUnavailableError

LOOPBACK = "127.0.0.1"
WITH_POLICY = "opensandbox"
"""The provider that can keep a sandbox from other hosts."""
AGENT_RUN_ERROR = "agent_run_error"


def sandbox_server_url(name: str, *, require_reachable: bool = False) -> str:
    """Return the address of a server, for a program in a sandbox."""
    parts = urlsplit(str(agent_tools.get_server_url(name)))
    host = parts.hostname or LOOPBACK
    if host in ("0.0.0.0", "::"):
        host = LOOPBACK
    if require_reachable and _is_of_this_machine(host):
        raise ValueError(f"The server '{name}' listens on {host}, which a remote sandbox cannot reach; set its host.")
    return urlunsplit((parts.scheme, f"{host}:{parts.port}", parts.path, "", ""))


def _is_of_this_machine(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    except ValueError:
        return host == "localhost"


def restricted_network_policy(provider: str, urls: Iterable[str]) -> JsonObject:
    """Return the options of a sandbox that reaches these addresses only."""
    if provider != WITH_POLICY:
        raise ValueError(
            f"The sandbox provider '{provider}' has no network policy; expected {WITH_POLICY} (OpenSandbox)."
        )
    hosts = sorted({str(urlsplit(url).hostname) for url in urls})
    local = next(filter(_is_of_this_machine, hosts), None)
    if local is not None:
        raise ValueError(f"'{local}' is not reachable from a remote sandbox; set the host of the server.")
    return {"defaultAction": "deny", "egress": [{"action": "allow", "target": host} for host in hosts]}


async def seed_mcp_servers(
    client: Any,
    refs: Iterable[Any],
    body: Any,
    cookies: Any,
    *,
    timeout_s: float,
    require_reachable: bool = False,
) -> dict[str, JsonObject]:
    """Seed environments that serve their tools over MCP. Return how to connect to each."""
    servers: dict[str, JsonObject] = {}
    for ref in refs:
        async with asyncio.timeout(timeout_s):
            reply = await client.post(server_name=ref.name, url_path="/seed_session", json=body, cookies=cookies)
            await raise_for_status(reply)
            mcp = (await get_response_json(reply)).get(NEMO_GYM_MCP_METADATA_KEY)
        if not isinstance(mcp, Mapping):
            raise ValueError(f"'{ref.name}' has no authenticated MCP endpoint for tools; set expose_tools_over_mcp.")
        root = agent_tools.sandbox_server_url(ref.name, require_reachable=require_reachable)
        servers[str(mcp.get("server_name") or ref.name)] = {
            "url": root + str(mcp["url_path"]),
            "headers": dict(mcp.get("headers") or {}),
            "enabled": True,
            "timeout": timeout_s,
        }
    return servers


async def verify_agent_response(
    client: Any,
    ref: Any,
    body: BaseModel | JsonObject,
    response: BaseModel | JsonObject,
    cookies: Any,
    *,
    force_zero_reward: bool,
) -> JsonObject:
    """Score a response. One of an agent that failed is scored as an empty one, and must get 0."""
    row, answered = _as_json(body), _as_json(response)
    asked = {**answered, "output": []} if force_zero_reward else answered
    reply = await client.post(
        server_name=ref.name, url_path="/verify", json={**row, "response": asked}, cookies=cookies
    )
    await raise_for_status(reply)
    scored: JsonObject = await get_response_json(reply)
    if force_zero_reward:
        if scored.get("reward") != 0 or scored.get("mask_sample"):
            raise ValueError(f"'{ref.name}' gives {scored.get('reward')!r} for an empty response; expected 0.")
        scored = {**scored, "response": answered, "failure_kind": AGENT_RUN_ERROR}
    return scored


def _as_json(value: BaseModel | JsonObject) -> JsonObject:
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value


class AsyncSandboxCompose:
    """A sandbox for each service of a compose file. No provider here can make them."""

    def __init__(
        self,
        provider: Any,
        compose_file: str | Path,
        *,
        service_specs: Mapping[str, SandboxSpec],
        timeout_s: float = 1200,
        **options: Any,
    ) -> None:
        self.provider, self.compose_file, self.service_specs = provider, Path(compose_file), service_specs
        self.timeout_s, self.options = timeout_s, options

    async def start(self) -> Any:
        raise SandboxUnavailableError(f"No sandbox provider can run {self.compose_file}.")

    async def stop(self) -> None:
        """Do nothing: nothing was started."""
