"""The aiohttp session and request function of the public interface."""

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
from nemo_gym.common.retry import retry

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
    from nemo_gym.config.loading import maybe_get_global_config_dict

    config = maybe_get_global_config_dict()
    return bool(config and config.get("global_aiohttp_client_request_debug"))
