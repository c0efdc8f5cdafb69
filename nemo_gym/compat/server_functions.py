"""Functions that only servers of the public NeMo Gym call: a shared aiohttp session, clients and addresses from this
process's configuration, and a profiler."""

import asyncio
import cProfile
import importlib
from collections.abc import AsyncIterator
from pathlib import Path
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
    """Connection limits of the shared client."""

    global_aiohttp_connector_limit: int = _LIMITS.global_aiohttp_connector_limit
    global_aiohttp_connector_limit_per_host: int = _LIMITS.global_aiohttp_connector_limit_per_host
    global_aiohttp_client_request_debug: bool = False


_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncIterator[None]]]
_sessions = WeakKeyDictionary()


GLOBAL_AIOHTTP_CLIENT: aiohttp.ClientSession | None = None
GLOBAL_AIOHTTP_CLIENT_QUEUE_TELEMETRY = False
"""Names that tests set. Nothing reads them: each loop has a session of its own."""


def get_global_aiohttp_client() -> aiohttp.ClientSession:
    """Return the aiohttp session of the running loop."""
    return set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())


def set_global_aiohttp_client(limits: GlobalAIOHTTPAsyncClientConfig) -> aiohttp.ClientSession:
    """Make the aiohttp session of the running loop with these limits, unless there is one."""
    loop = asyncio.get_running_loop()
    if loop not in _sessions:
        connector = aiohttp.TCPConnector(
            limit=limits.global_aiohttp_connector_limit,
            limit_per_host=limits.global_aiohttp_connector_limit_per_host,
        )
        session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        _sessions[loop] = session, close_with_loop(session)
    return _sessions[loop][0]


async def global_aiohttp_client_exit() -> None:
    """Close the aiohttp session of the running loop."""
    session, _closing = _sessions.pop(asyncio.get_running_loop(), (None, None))
    if session is not None:
        await session.close()


async def request(
    method: str,
    url: str,
    _internal: bool = False,
    _max_connection_retries: int | None = None,
    _server_name: str | None = None,
    **options: Any,
) -> aiohttp.ClientResponse:
    """Send a request through the running loop's aiohttp session. Retries only if no connection could be made. The
    session is that of the public path, which tests of servers replace there."""
    session = importlib.import_module("nemo_gym.server_utils").get_global_aiohttp_client()
    return await retry(
        lambda: session.request(method=method, url=url, **options),
        max_tries=MAX_NUM_TRIES if _max_connection_retries is None else max(1, _max_connection_retries),
        retryable=lambda error: isinstance(error, aiohttp.ClientConnectorError),
    )


def is_global_aiohttp_client_request_debug_enabled() -> bool:
    """True if the configuration of this process sets it. Our client logs at the level `debug` instead."""
    config = maybe_get_global_config_dict()
    return bool(config and config.get("global_aiohttp_client_request_debug"))


def get_server_url(server_name: str) -> str:
    """Return the address of a server from the configuration of this process."""
    return ServerClient(global_config_dict=get_global_config_dict()).url_of(server_name)


def setup_server_client(head_server_config: BaseServerConfig | None = None) -> ServerClient:
    """Return a client of the running servers."""
    return ServerClient.load_from_global_config(head_server_config)


def is_nemo_gym_fastapi_entrypoint(_file: str | None = None) -> bool:
    """False: a process never serves a folder by importing its entry point for an `app`."""
    return False


is_nemo_gym_fastapi_worker = is_nemo_gym_fastapi_entrypoint


class Profiler:
    """Writes a cProfile profile to `<name>.prof` in a folder. Read it with `python -m pstats`."""

    def __init__(self, name: str, base_profile_dir: str | Path, required_str: str | None = None) -> None:
        if " " in name:
            raise ValueError(f"The name of a profile is {name!r}; expected no spaces")
        self.name, self.base_profile_dir, self.required_str = name, Path(base_profile_dir), required_str
        self._profile = cProfile.Profile()

    def start(self) -> None:
        self._profile.enable()

    def stop(self) -> None:
        """End the profile and write it."""
        self._profile.disable()
        self.dump()

    def dump(self) -> None:
        """Write the profile so far."""
        self.base_profile_dir.mkdir(parents=True, exist_ok=True)
        self._profile.dump_stats(self.base_profile_dir / f"{self.name}.prof")
