"""Connect a command to its servers: those of a running `ng_run`, or servers that the command holds itself."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from omegaconf import DictConfig, OmegaConf

from nemo_gym.client.head import base_url, get_from_head, run_token
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.exceptions import raise_first_error
from nemo_gym.config.keys import ENVIRONMENT_SERVERS, USE_RUNNING_SERVERS_KEY_NAME, changes, dotted
from nemo_gym.config.loading import CONFIG_PATHS_KEY_NAME, ServerSpec, dump, server_instances
from nemo_gym.config.sources import resolve
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import ConfigError, HeadServerError, NoServerInstancesError

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def connect_servers(
    config: DictConfig, classes: Mapping[str, type[Any]] | None = None
) -> AsyncIterator[ServerClient]:
    """A client of the servers of `config`: those of a running `ng_run` if it names no config files, or if
    `use_running_servers` asks for them, else servers that this command starts. The servers in `classes`, by name, are
    always started, in this process."""
    head = BaseServerConfig.model_validate(dict(config.head_server))
    asked = bool(config.get(USE_RUNNING_SERVERS_KEY_NAME))
    is_running = not config.get(CONFIG_PATHS_KEY_NAME) or (asked and _runs_the_same(config, head))
    is_running = is_running and not classes
    async with contextlib.AsyncExitStack() as opened:
        if config.get("tracing_enabled"):
            from nemo_gym.runtime.tracing import tracing_of

            opened.enter_context(tracing_of(config))
        running = ServerClient.load_from_global_config(head, http=HttpClient.of(config)) if is_running else None
        yield await opened.enter_async_context(running or _started(config, classes or {}))


@contextlib.asynccontextmanager
async def _started(config: DictConfig, classes: Mapping[str, type[Any]]) -> AsyncIterator[ServerClient]:
    """Start the servers: in this process, or all of them in workers if one cannot share it."""
    from nemo_gym.runtime.class_loader import grouped, wants_ray, worker_count  # a client of `ng_run` needs no servers
    from nemo_gym.runtime.stack import Stack, StackSpec

    servers = server_instances(config, classes)
    if not servers:
        raise NoServerInstancesError("The configuration has no server. Expected an agent, an environment and a model.")
    if (
        len(grouped(servers)) == 1
        and all(server.isolation == "shared" for server in servers)
        and worker_count(config, servers) == 1
        and not wants_ray(config)
        and not any(_needs_addresses(server) for server in servers if server.served_class is None)
    ):
        settings: dict[str, Any] = resolve(config, missing_ok=True)
        async with Stack(StackSpec(servers, settings)) as stack:
            yield stack.client
        return
    if classes:
        raise ConfigError(
            f"{', '.join(classes)} can only be served by this process, and these servers need several. Put each of "
            "them into a folder of its own (`ng init_resources_server`), and give its name."
        )
    from nemo_gym.runtime.launcher import Launcher, default_echo  # servers in this process need none of it

    own = config.copy()
    own.head_server.port = 0
    async with Launcher(own, echo=default_echo) as launcher, launcher.client() as client:
        with raise_first_error():
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(launcher.watch())  # if it raises, so does the block
                yield client
                watching.cancel()


def _needs_addresses(server: ServerSpec) -> bool:
    """True if a server hands out the URLs of others. An environment server gives its agent those of the tools."""
    from nemo_gym.runtime.requirements import needs_addresses

    return server.server_type == ENVIRONMENT_SERVERS or needs_addresses(server.folder)


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
        change = next(changes(_block(running, server), _block(wanted, server), (server.name,)), None)
        if change is not None:
            logger.warning(
                "a run is up at %s, but its %s differs from this command's configuration; this command starts its own "
                "servers",
                url,
                dotted(change.path),
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
