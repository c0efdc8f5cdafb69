"""A worker that joins a run from outside. It reads the same configuration as the run, and holds all servers that can
share a process; others it calls where the run has them."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson
from omegaconf import DictConfig, OmegaConf

from nemo_gym.client.head import base_url, get_from_head, run_token
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.config.interpolation import resolve
from nemo_gym.config.loading import server_instances
from nemo_gym.config.secrets import Secrets, process_secrets, set_process_secrets
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.runtime.groups import grouped, session_secret, shared_servers
from nemo_gym.runtime.membership import Membership, Registration
from nemo_gym.runtime.stack import StackSpec
from nemo_gym.runtime.venvs import VenvSettings
from nemo_gym.runtime.worker import ServeRows, serve
from nemo_gym.server.uvicorn_runner import bind


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What a worker needs to join. Pickled as it is if it travels to another machine."""

    stack: StackSpec
    head_url: str
    host: str
    """The address that it listens on, and by which the run reaches it."""
    port: int = 0
    rows_port: int = 0


def plan_worker(config: DictConfig, *, token: str, host: str | None, port: int = 0, rows_port: int = 0) -> WorkerPlan:
    """The plan of a worker with this configuration. Slow if a virtualenv has to be made."""
    settings: dict[str, Any] = resolve(config, missing_ok=True)
    groups = grouped(server_instances(config), VenvSettings.of(settings))
    servers = shared_servers(groups)
    head = BaseServerConfig.model_validate(dict(config.head_server))
    head_url = base_url(head.host, head.port)
    others = [server.name for group in groups for server in group.servers if not group.is_shared]
    set_process_secrets(process_secrets() | Secrets(frozenset((token,))))
    stack = StackSpec(
        servers=servers,
        config=settings,
        addresses=_addresses(others, head_url, token),
        secret=session_secret(token),
        token=token,
    )
    host = _reachable(host or servers[0].host)
    return WorkerPlan(stack=stack, head_url=head_url, host=host, port=port, rows_port=rows_port)


def _reachable(host: str) -> str:
    if host in ("", "0.0.0.0", "::"):
        raise ConfigError(
            f"The worker would listen on '{host}', an address by which the run cannot reach it. Set "
            "+worker_host to this machine's address, or +use_absolute_ip=true."
        )
    return host


def token_of(config: DictConfig) -> str:
    """The token of the run that `config` names."""
    token = config.get("run_token") or run_token(config.head_server.port)
    if not token:
        raise ConfigError(
            "A worker joins a run with the run's token, and there is none. Set NEMO_GYM_RUN_TOKEN to the same text "
            "here and where the run starts."
        )
    return str(token)


async def join_and_serve(
    plan: WorkerPlan,
    serve_rows: ServeRows,
    stop: asyncio.Event,
    on_ready: Callable[[int], None],
) -> None:
    """Join the run and serve until `stop` is set or the run is gone."""
    async with contextlib.AsyncExitStack() as opened:
        http, rows = (bind(plan.host, port) for port in (plan.port, plan.rows_port))
        url, rows_url = (base_url(*bound.getsockname()[:2]) for bound in (http, rows))
        registration = Registration(
            url=url,
            rows=rows_url.removeprefix("http://"),
            servers=tuple(server.name for server in plan.stack.servers),
            pid=os.getpid(),
        )
        client = await opened.enter_async_context(HttpClient.of(plan.stack.config))
        membership = Membership(client, plan.head_url, plan.stack.token, registration)
        index = await membership.join()
        spec = replace(plan.stack, worker=index, http_fd=http.detach(), rows_fd=rows.detach())
        leased = asyncio.create_task(membership.keep(stop))
        try:
            await serve(spec, stop, serve_rows, lambda: on_ready(index))
        finally:
            leased.cancel()
            await asyncio.gather(leased, return_exceptions=True)


def _addresses(names: list[str], head_url: str, token: str) -> dict[str, str]:
    if not names:
        return {}
    text = orjson.loads(get_from_head(head_url, "/global_config_dict_yaml", token=token))
    client = ServerClient(global_config_dict=OmegaConf.create(text))
    return {name: client.url_of(name) for name in names}
