"""The servers of a configuration, with all that is needed to start them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.common.paths import find, nearest
from nemo_gym.config.checks import server_blocks
from nemo_gym.config.interpolation import resolved
from nemo_gym.config.keys import DEFAULT_HOST, ServerType
from nemo_gym.config.types import Isolation, ServerInstanceConfig
from nemo_gym.errors import ConfigError, MissingPathError


@dataclass(frozen=True, kw_only=True)
class ServerInstance:
    """One server to start."""

    name: str
    server_type: ServerType
    implementation: str
    entrypoint: str

    folder: Path
    """The folder of the implementation; `entrypoint` is in it."""

    config: dict[str, Any] = field(repr=False)
    """The input of the server's own config class: the block, resolved, with `name`, `host` and, if known, `port`."""

    host: str

    port: int | None
    """None if it is still to be chosen, best by binding port 0."""

    isolation: Isolation


def server_instances(config: DictConfig) -> list[ServerInstance]:
    """Every valid server block of a loaded config, in order; almost-servers are left out.

    A folder or file that a block names and that is not there is an error.
    """
    return [_instance(config, server) for server in server_blocks(config).servers]


def _instance(config: DictConfig, server: ServerInstanceConfig) -> ServerInstance:
    path = (server.name, server.SERVER_TYPE, server.implementation)
    block = server.get_inner_run_server_config()
    host, port = block.host or DEFAULT_HOST, block.port or None
    values = {**resolved(config, path), "name": server.name, "host": host}
    return ServerInstance(
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
