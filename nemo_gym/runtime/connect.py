"""Connect a command to its servers: those of a running `ng_run`, or servers that the command holds itself."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import orjson
from omegaconf import DictConfig, OmegaConf

from nemo_gym.client.head import base_url, get_from_head, run_token
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.exceptions import raise_first_error
from nemo_gym.config.keys import USE_RUNNING_SERVERS_KEY_NAME
from nemo_gym.config.loading import CONFIG_PATHS_KEY_NAME, ServerSpec, dump, server_instances
from nemo_gym.config.sources import resolve
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import HeadServerError, NoServerInstancesError
from nemo_gym.runtime.class_loader import grouped, wants_ray, worker_count
from nemo_gym.runtime.launcher import Launcher, default_echo
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.runtime.tracing import tracing_of
from nemo_gym.runtime.venvs import needs_addresses

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def connect_servers(config: DictConfig) -> AsyncIterator[ServerClient]:
    """A client of the servers of `config`: those of a running `ng_run` if it names no config files, or if
    `use_running_servers` asks for them, else servers that this command starts."""
    head = BaseServerConfig.model_validate(dict(config.head_server))
    asked = bool(config.get(USE_RUNNING_SERVERS_KEY_NAME))
    is_running = not config.get(CONFIG_PATHS_KEY_NAME) or (asked and _runs_the_same(config, head))
    with tracing_of(config):
        async with (
            ServerClient.load_from_global_config(head, http=HttpClient.of(config)) if is_running else _started(config)
        ) as client:
            yield client


@contextlib.asynccontextmanager
async def _started(config: DictConfig) -> AsyncIterator[ServerClient]:
    """Start the servers: in this process, or all of them in workers if one cannot share it."""
    servers = server_instances(config)
    if not servers:
        raise NoServerInstancesError("The configuration has no server. Expected an agent, an environment and a model.")
    if (
        len(grouped(servers)) == 1
        and all(server.isolation == "shared" for server in servers)
        and worker_count(config, servers) == 1
        and not wants_ray(config)
        and not any(needs_addresses(server.folder) for server in servers)
    ):
        settings: dict[str, Any] = resolve(config, missing_ok=True)
        async with Stack(StackSpec(servers, settings)) as stack:
            yield stack.client
        return
    own = config.copy()
    own.head_server.port = 0
    async with Launcher(own, echo=default_echo) as launcher, launcher.client() as client:
        with raise_first_error():
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(launcher.watch())  # if it raises, so does the block
                yield client
                watching.cancel()


def _runs_the_same(config: DictConfig, head: BaseServerConfig) -> bool:
    """True if the run at `head` has every server of `config` with the same settings."""
    url = base_url(head.host, head.port)
    try:
        text = get_from_head(url, "/global_config_dict_yaml", token=run_token(head.port), timeout_s=2.0)
    except HeadServerError:
        return False
    running, wanted = (
        OmegaConf.to_container(OmegaConf.create(dumped)) for dumped in (orjson.loads(text), dump(config))
    )
    for server in server_instances(config):
        if _block(running, server) != _block(wanted, server):
            logger.warning(
                "a run is up at %s, but its '%s' has other settings than this command's configuration; "
                "this command starts its own servers",
                url,
                server.name,
            )
            return False
    logger.info("using the servers of the run at %s", url)
    return True


def _block(settings: Any, server: ServerSpec) -> Any:
    """The settings of a server, without its address."""
    try:
        block = settings[server.name][server.server_type][server.implementation]
    except (KeyError, TypeError):
        return None
    return {key: value for key, value in block.items() if key not in ("host", "port")}
