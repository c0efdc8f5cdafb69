"""What authors of servers import: servers and their client, sessions, CPU-heavy work, files. Types of the LLM APIs are
in `nemo_gym.openai_utils`. What needs aiohttp or OmegaConf is imported when it is first used."""

from typing import TYPE_CHECKING

from nemo_gym.client.pool import HttpClient as HttpClient
from nemo_gym.client.reply import ServerReply as ServerReply
from nemo_gym.client.server_client import CookieJar as CookieJar
from nemo_gym.client.server_client import ServerClient as ServerClient
from nemo_gym.client.server_client import base_url as base_url
from nemo_gym.common.atomic_files import write_json as write_json
from nemo_gym.common.deadline import timeout as timeout
from nemo_gym.common.exceptions import raise_first_error as raise_first_error
from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.common.paths import cache_dir as cache_dir
from nemo_gym.common.paths import find as find
from nemo_gym.compute.pool import Compute as Compute
from nemo_gym.compute.pool import ComputeError as ComputeError
from nemo_gym.compute.pool import LimitExceededError as LimitExceededError
from nemo_gym.config.keys import DEFAULT_HEAD_SERVER_PORT as DEFAULT_HEAD_SERVER_PORT
from nemo_gym.config.keys import HEAD_SERVER_KEY_NAME as HEAD_SERVER_KEY_NAME
from nemo_gym.config.types import BaseRunServerInstanceConfig as BaseRunServerInstanceConfig
from nemo_gym.config.types import BaseServerConfig as BaseServerConfig
from nemo_gym.gateway.mcp import McpToolServer as McpToolServer
from nemo_gym.gateway.mcp import ToolResult as ToolResult
from nemo_gym.gateway.mcp import session_tools as session_tools
from nemo_gym.gateway.model_gateway import ModelGateway as ModelGateway
from nemo_gym.server.base import BaseServer as BaseServer
from nemo_gym.server.base import SimpleServer as SimpleServer
from nemo_gym.server.rollout_prefix import apply_rollout_prefix as apply_rollout_prefix
from nemo_gym.server.rollout_prefix import rollout_path_prefix as rollout_path_prefix
from nemo_gym.server.session import SESSION_ID_KEY as SESSION_ID_KEY
from nemo_gym.server.tools import NOT_TOOLS as NOT_TOOLS
from nemo_gym.server.tools import offered_tools as offered_tools

if TYPE_CHECKING:
    from aiohttp import ClientResponse as ClientResponse
    from omegaconf import DictConfig as DictConfig
    from omegaconf import OmegaConf as OmegaConf

    from nemo_gym.analysis.cpu_profile import ProfilingMiddlewareConfig as ProfilingMiddlewareConfig
    from nemo_gym.common.paths import find_uv as find_uv
    from nemo_gym.compat.aiohttp_response import PeerResponse as PeerResponse
    from nemo_gym.compat.global_config import get_global_config_dict as get_global_config_dict
    from nemo_gym.compat.server_functions import MAX_NUM_TRIES as MAX_NUM_TRIES
    from nemo_gym.compat.server_functions import GlobalAIOHTTPAsyncClientConfig as GlobalAIOHTTPAsyncClientConfig
    from nemo_gym.compat.server_functions import get_global_aiohttp_client as get_global_aiohttp_client
    from nemo_gym.compat.server_functions import get_response_json as get_response_json
    from nemo_gym.compat.server_functions import get_server_url as get_server_url
    from nemo_gym.compat.server_functions import global_aiohttp_client_exit as global_aiohttp_client_exit
    from nemo_gym.compat.server_functions import (
        is_global_aiohttp_client_request_debug_enabled as is_global_aiohttp_client_request_debug_enabled,
    )
    from nemo_gym.compat.server_functions import is_nemo_gym_fastapi_entrypoint as is_nemo_gym_fastapi_entrypoint
    from nemo_gym.compat.server_functions import is_nemo_gym_fastapi_worker as is_nemo_gym_fastapi_worker
    from nemo_gym.compat.server_functions import raise_for_status as raise_for_status
    from nemo_gym.compat.server_functions import request as request
    from nemo_gym.compat.server_functions import setup_server_client as setup_server_client
    from nemo_gym.config.loading import get_first_server_config_dict as get_first_server_config_dict
    from nemo_gym.runtime.head_server import HeadServer as HeadServer
    from nemo_gym.runtime.head_server import ServerInstanceDisplayConfig as ServerInstanceDisplayConfig
    from nemo_gym.runtime.head_server import ServerStatus as ServerStatus

__getattr__ = lazy_attributes(__name__)
