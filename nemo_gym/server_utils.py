"""What server authors import from here, and where it lives."""

from typing import TYPE_CHECKING

from aiohttp import ClientResponse
from omegaconf import DictConfig, OmegaConf

from nemo_gym.client import ServerClient
from nemo_gym.config_types import BaseRunServerInstanceConfig, BaseServerConfig
from nemo_gym.global_config import DEFAULT_HEAD_SERVER_PORT, HEAD_SERVER_KEY_NAME, get_global_config_dict
from nemo_gym.head_server import HeadServer, ServerInstanceDisplayConfig, ServerStatus
from nemo_gym.server import BaseServer, SimpleServer
from nemo_gym.session import SESSION_ID_KEY
