"""The servers a job works with: those of a running `ng_run`, or a stack the job holds itself."""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import orjson
from omegaconf import DictConfig, OmegaConf

from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient, base_url, get_from_head, run_token
from nemo_gym.config.loading import CONFIG_PATHS_KEY_NAME, ServerInstance, dump, server_instances
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import ConfigError, HeadServerError
from nemo_gym.runtime.launcher import Launcher, grouped, server_spec
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.runtime.supervisor import default_echo

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def connect_servers(config: DictConfig) -> AsyncIterator[ServerClient]:
    """A client of the servers that `config` means, wherever they are."""
    head = BaseServerConfig.model_validate(dict(config.head_server))
    is_running = not config.get(CONFIG_PATHS_KEY_NAME) or _runs_the_same(config, head)
    async with _running(config, head) if is_running else _held(config) as client:
        yield client


def _running(config: DictConfig, head: BaseServerConfig) -> ServerClient:
    return ServerClient.load_from_global_config(head, http=HttpClient.of(config))


@contextlib.asynccontextmanager
async def _held(config: DictConfig) -> AsyncIterator[ServerClient]:
    """The servers in this process; if one cannot share it, all of them in workers."""
    instances = server_instances(config)
    if not instances:
        raise ConfigError("The configuration has no server. Expected an agent, an environment and a model.")
    if len(grouped(instances)) == 1 and all(instance.isolation == "shared" for instance in instances):
        settings: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        async with Stack(StackSpec([server_spec(instance, port=0) for instance in instances], settings)) as stack:
            yield stack.client
        return
    alone = config.copy()
    alone.head_server.port = 0
    async with Launcher(alone, echo=default_echo) as launcher, launcher.client() as client:
        yield client


def _runs_the_same(config: DictConfig, head: BaseServerConfig) -> bool:
    """Whether the run at `head` has every server of `config`, set up alike."""
    url = base_url(head.host, head.port)
    try:
        text = get_from_head(url, "/global_config_dict_yaml", token=run_token(head.port), timeout_s=2.0)
    except HeadServerError:
        return False
    theirs, ours = (OmegaConf.to_container(OmegaConf.create(dumped)) for dumped in (orjson.loads(text), dump(config)))
    for instance in server_instances(config):
        if _compared(theirs, instance) != _compared(ours, instance):
            logger.warning(
                "a run is up at %s, but its '%s' is not what this command's configuration says; "
                "the servers are held here instead",
                url,
                instance.name,
            )
            return False
    logger.info("using the servers of the run at %s", url)
    return True


def _compared(settings: Any, instance: ServerInstance) -> Any:
    try:
        block = settings[instance.name][instance.server_type][instance.implementation]
    except (KeyError, TypeError):
        return None
    return {key: value for key, value in block.items() if key not in ("host", "port")}
