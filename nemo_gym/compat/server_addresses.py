"""Clients and addresses by the configuration of this process."""

from typing import TYPE_CHECKING

from nemo_gym.client.server_client import ServerClient

if TYPE_CHECKING:
    from nemo_gym.config.types import BaseServerConfig


def get_server_url(server_name: str) -> str:
    """The address of a server, by the configuration of this process."""
    from nemo_gym.config.loading import get_global_config_dict

    return ServerClient(global_config_dict=get_global_config_dict()).url_of(server_name)


def setup_server_client(head_server_config: "BaseServerConfig | None" = None) -> ServerClient:
    """A client of the running servers."""
    return ServerClient.load_from_global_config(head_server_config)


def is_nemo_gym_fastapi_entrypoint(_file: str | None = None) -> bool:
    """False: a process never serves a folder by importing its entry point for an `app`."""
    return False


is_nemo_gym_fastapi_worker = is_nemo_gym_fastapi_entrypoint
