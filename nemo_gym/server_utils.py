"""What authors of servers import from here, and where it lives."""

from aiohttp import ClientResponse as ClientResponse
from omegaconf import DictConfig as DictConfig
from omegaconf import OmegaConf as OmegaConf

from nemo_gym.client.aiohttp_compat import MAX_NUM_TRIES as MAX_NUM_TRIES
from nemo_gym.client.aiohttp_compat import GlobalAIOHTTPAsyncClientConfig as GlobalAIOHTTPAsyncClientConfig
from nemo_gym.client.aiohttp_compat import get_global_aiohttp_client as get_global_aiohttp_client
from nemo_gym.client.aiohttp_compat import get_response_json as get_response_json
from nemo_gym.client.aiohttp_compat import global_aiohttp_client_exit as global_aiohttp_client_exit
from nemo_gym.client.aiohttp_compat import raise_for_status as raise_for_status
from nemo_gym.client.aiohttp_compat import request as request
from nemo_gym.client.reply import PeerResponse as PeerResponse
from nemo_gym.client.server_client import ServerClient as ServerClient
from nemo_gym.config.loading import DEFAULT_HEAD_SERVER_PORT as DEFAULT_HEAD_SERVER_PORT
from nemo_gym.config.loading import HEAD_SERVER_KEY_NAME as HEAD_SERVER_KEY_NAME
from nemo_gym.config.loading import get_global_config_dict as get_global_config_dict
from nemo_gym.config.types import BaseRunServerInstanceConfig as BaseRunServerInstanceConfig
from nemo_gym.config.types import BaseServerConfig as BaseServerConfig
from nemo_gym.runtime.head_server import HeadServer as HeadServer
from nemo_gym.runtime.head_server import ServerInstanceDisplayConfig as ServerInstanceDisplayConfig
from nemo_gym.runtime.head_server import ServerStatus as ServerStatus
from nemo_gym.server.base import BaseServer as BaseServer
from nemo_gym.server.base import SimpleServer as SimpleServer
from nemo_gym.server.session import SESSION_ID_KEY as SESSION_ID_KEY
