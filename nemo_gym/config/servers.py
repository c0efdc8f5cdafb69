"""The servers of a configuration, with everything needed to start them."""

from pathlib import Path

from omegaconf import DictConfig

from nemo_gym.common.paths import find, nearest
from nemo_gym.config.checks import server_blocks
from nemo_gym.config.interpolation import resolve
from nemo_gym.config.keys import DEFAULT_HOST
from nemo_gym.config.server_spec import ServerSpec as ServerSpec
from nemo_gym.config.types import ServerInstanceConfig
from nemo_gym.errors import ConfigError, MissingPathError

ServerInstance = ServerSpec


def server_instances(config: DictConfig) -> list[ServerSpec]:
    """Every valid server block of a loaded config, in order; almost-servers are left out.

    A folder or file that a block names and that is not there is an error.
    """
    return [_instance(config, server) for server in server_blocks(config).servers]


def _instance(config: DictConfig, server: ServerInstanceConfig) -> ServerSpec:
    path = (server.name, server.SERVER_TYPE, server.implementation)
    block = server.get_inner_run_server_config()
    host, port = block.host or DEFAULT_HOST, block.port or None
    values = {**resolve(config, path), "name": server.name, "host": host}
    return ServerSpec(
        name=server.name,
        server_type=server.SERVER_TYPE,
        implementation=server.implementation,
        entrypoint=block.entrypoint,
        folder=_folder(server, block.entrypoint),
        config=values if port is None else {**values, "port": port},
        host=host,
        port=port,
        isolation=block.isolation,
    )


def _folder(server: ServerInstanceConfig, entrypoint: str) -> Path:
    place = f"It is named by {server.name}.{server.SERVER_TYPE}.{server.implementation} in the configuration."
    try:
        folder = find(f"{server.SERVER_TYPE}/{server.implementation}", what="server folder")
    except MissingPathError as error:
        raise MissingPathError(f"{error} {place}") from error
    if Path(entrypoint).is_absolute():
        raise ConfigError(f"The entrypoint is '{entrypoint}', expected a path relative to {folder}. {place}")
    if not (folder / entrypoint).is_file():
        hint = nearest(entrypoint, (file.name for file in folder.glob("*.py")))
        raise MissingPathError(f"No entrypoint '{entrypoint}' in {folder}. {place}{hint}")
    return folder
