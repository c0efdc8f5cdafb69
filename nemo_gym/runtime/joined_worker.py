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
from nemo_gym.config.loading import ServerSpec, server_instances
from nemo_gym.config.secrets import Secrets, process_secrets, set_process_secrets
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.runtime.groups import grouped, is_shared, session_secret
from nemo_gym.runtime.membership import Membership, Registration
from nemo_gym.runtime.stack import StackSpec
from nemo_gym.runtime.venvs import VenvSettings
from nemo_gym.runtime.worker import ServeRows, serve
from nemo_gym.server.uvicorn_runner import bind


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What a worker needs to join. Pickled as it is if it travels to another machine."""

    servers: list[ServerSpec]
    config: dict[str, Any]
    addresses: dict[str, str]
    """Where the run has the servers that this worker does not hold."""
    head_url: str
    token: str
    host: str
    """The address that it listens on, and by which the run reaches it."""
    port: int = 0
    rows_port: int = 0
    secrets: dict[str, Any] | None = None
    """As `Secrets.to_json` gives them, for a worker that does not read the configuration itself."""


def plan_worker(config: DictConfig, *, token: str, host: str | None, port: int = 0, rows_port: int = 0) -> WorkerPlan:
    """The plan of a worker with this configuration. Slow if a virtualenv has to be made."""
    settings: dict[str, Any] = resolve(config, missing_ok=True)
    groups = grouped(server_instances(config), VenvSettings.of(settings))
    shared = [group for python, group in groups if is_shared(python, group)]
    if not shared:
        raise ConfigError("No server of this configuration can share a process with others, so a worker has none.")
    head = BaseServerConfig.model_validate(dict(config.head_server))
    head_url, own = base_url(head.host, head.port), {server.name for server in shared[0]}
    others = [server.name for _, group in groups for server in group if server.name not in own]
    return WorkerPlan(
        servers=shared[0],
        config=settings,
        addresses=_addresses(others, head_url, token),
        head_url=head_url,
        token=token,
        host=_reachable(host or shared[0][0].host),
        port=port,
        rows_port=rows_port,
    )


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
    known = process_secrets() if plan.secrets is None else Secrets.from_json(plan.secrets)
    set_process_secrets(known | Secrets(frozenset((plan.token,))))
    async with contextlib.AsyncExitStack() as opened:
        http, rows = (bind(plan.host, port) for port in (plan.port, plan.rows_port))
        url, rows_url = (base_url(*bound.getsockname()[:2]) for bound in (http, rows))
        registration = Registration(
            url=url,
            rows=rows_url.removeprefix("http://"),
            servers=tuple(server.name for server in plan.servers),
            pid=os.getpid(),
        )
        client = await opened.enter_async_context(HttpClient.of(plan.config))
        membership = Membership(client, plan.head_url, plan.token, registration)
        index = await membership.join()
        spec = StackSpec(
            servers=[replace(server, fd=None) for server in plan.servers],
            config=plan.config,
            addresses=plan.addresses,
            secret=session_secret(plan.token),
            token=plan.token,
            worker=index,
            http_fd=http.detach(),
            rows_fd=rows.detach(),
        )
        renewing = asyncio.create_task(_renew(membership, stop))
        try:
            await serve(spec, stop, serve_rows, lambda: on_ready(index))
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)


async def _renew(membership: Membership, stop: asyncio.Event) -> None:
    """Renew the lease until the worker stops. It drains without a lease."""
    lost = asyncio.create_task(membership.renew_until_lost())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({lost, stopped}, return_when=asyncio.FIRST_COMPLETED)
        await membership.leave()
        stop.set()
    finally:
        for task in (lost, stopped):
            task.cancel()


def _addresses(names: list[str], head_url: str, token: str) -> dict[str, str]:
    if not names:
        return {}
    text = orjson.loads(get_from_head(head_url, "/global_config_dict_yaml", token=token))
    client = ServerClient(global_config_dict=OmegaConf.create(text))
    return {name: client.url_of(name) for name in names}
