"""The servers of a configuration, with everything needed to start them."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.common.paths import find, nearest, search_roots
from nemo_gym.config.checks import server_blocks
from nemo_gym.config.interpolation import resolve
from nemo_gym.config.keys import DEFAULT_HOST, KeyPath
from nemo_gym.config.tree import map_leaves
from nemo_gym.config.types import ServerInstanceConfig, ServerSpec
from nemo_gym.errors import ConfigError, MissingPathError

PATH_SUFFIXES = ("_fpath", "_fpaths", "_path", "_paths", "_dirpath", "_file", "_dir")
"""Settings of a server whose names end like this are paths."""


def server_instances(config: DictConfig) -> list[ServerSpec]:
    """Every valid server block of a loaded config, in order; almost-servers are left out.

    A folder or file that a block names and that is not there is an error.
    """
    return [_instance(config, server) for server in server_blocks(config).servers]


def _instance(config: DictConfig, server: ServerInstanceConfig) -> ServerSpec:
    path = (server.name, server.SERVER_TYPE, server.implementation)
    block = server.get_inner_run_server_config()
    host, port = block.host or DEFAULT_HOST, block.port or None
    folder = server_folder(server, block.entrypoint)
    values = {**_with_found_paths(resolve(config, path), folder), "name": server.name, "host": host}
    return ServerSpec(
        name=server.name,
        server_type=server.SERVER_TYPE,
        implementation=server.implementation,
        entrypoint=block.entrypoint,
        folder=folder,
        config=values if port is None else {**values, "port": port},
        host=host,
        port=port,
        isolation=block.isolation,
    )


def _with_found_paths(settings: Any, folder: Path) -> Any:
    """A server's settings with its relative paths made absolute, if they are found where a path of the user is looked
    up, or in the server's own folder. Others stay as they are: the server may mean to create them."""

    def found(path: KeyPath, value: Any) -> Any:
        key = next((key for key in reversed(path) if isinstance(key, str)), "")
        is_path = isinstance(value, str) and value and key.endswith(PATH_SUFFIXES) and path[0] != "datasets"
        if not is_path or Path(value).is_absolute():
            return value
        tried = (root / value for root in (Path.cwd(), folder, *search_roots()))
        return next((str(path) for path in tried if path.exists()), value)

    return map_leaves(found, settings)


def server_folder(server: ServerInstanceConfig, entrypoint: str) -> Path:
    """The folder of a server's code."""
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
