"""Functions of `nemo_gym.server_utils` that only code of the public NeMo Gym calls: an aiohttp session, and clients
and addresses by the configuration of this process."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from pydantic import BaseModel

from nemo_gym.client.connection import HttpSettings
from nemo_gym.client.pool import close_with_loop
from nemo_gym.client.reply import get_response_json as get_response_json
from nemo_gym.client.reply import raise_for_status as raise_for_status
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.retry import retry
from nemo_gym.compat.global_config import get_global_config_dict, maybe_get_global_config_dict
from nemo_gym.config.types import BaseServerConfig

MAX_NUM_TRIES = 3
_LIMITS = HttpSettings()


class GlobalAIOHTTPAsyncClientConfig(BaseModel):
    """How many connections the shared client may hold."""

    global_aiohttp_connector_limit: int = _LIMITS.global_aiohttp_connector_limit
    global_aiohttp_connector_limit_per_host: int = _LIMITS.global_aiohttp_connector_limit_per_host
    global_aiohttp_client_request_debug: bool = False


_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncIterator[None]]]
_sessions = WeakKeyDictionary()


def get_global_aiohttp_client() -> aiohttp.ClientSession:
    """The aiohttp session of the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _sessions:
        limits = GlobalAIOHTTPAsyncClientConfig()
        connector = aiohttp.TCPConnector(
            limit=limits.global_aiohttp_connector_limit,
            limit_per_host=limits.global_aiohttp_connector_limit_per_host,
        )
        session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        _sessions[loop] = session, close_with_loop(session)
    return _sessions[loop][0]


async def global_aiohttp_client_exit() -> None:
    """Close it."""
    session, _closing = _sessions.pop(asyncio.get_running_loop(), (None, None))
    if session is not None:
        await session.close()


async def request(method: str, url: str, _internal: bool = False, **options: Any) -> aiohttp.ClientResponse:
    """One request through the running loop's aiohttp session, retried only if no connection could be made."""
    session = get_global_aiohttp_client()
    return await retry(
        lambda: session.request(method, url, **options),
        max_tries=MAX_NUM_TRIES,
        retryable=lambda error: isinstance(error, aiohttp.ClientConnectorError),
    )


def is_global_aiohttp_client_request_debug_enabled() -> bool:
    """Whether the configuration of this process asks for it. Our client logs at the level `debug` instead."""
    config = maybe_get_global_config_dict()
    return bool(config and config.get("global_aiohttp_client_request_debug"))


def get_server_url(server_name: str) -> str:
    """The address of a server, by the configuration of this process."""
    return ServerClient(global_config_dict=get_global_config_dict()).url_of(server_name)


def setup_server_client(head_server_config: BaseServerConfig | None = None) -> ServerClient:
    """A client of the running servers."""
    return ServerClient.load_from_global_config(head_server_config)


def is_nemo_gym_fastapi_entrypoint(_file: str | None = None) -> bool:
    """False: a process never serves a folder by importing its entry point for an `app`."""
    return False


is_nemo_gym_fastapi_worker = is_nemo_gym_fastapi_entrypoint
