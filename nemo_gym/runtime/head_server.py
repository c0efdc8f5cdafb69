"""The head server: reports the configuration, the servers and the health of a run. It holds no secret."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ValidationError

from nemo_gym.client.head import token_headers
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.metrics import Family, decode_families, encode_families, exposition, process_families
from nemo_gym.common.redaction import process_redactor
from nemo_gym.errors import ConfigError, UpstreamError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.runtime.run_identity import run_identity
from nemo_gym.server.asgi import Receive, RefusedError, Scope, Send, limit_body, read_body, send_reply
from nemo_gym.server.request_checks import ServerLimits, check_json, check_origin, check_token

MAX_REGISTRATION_BYTES = 16 * 2**20
"""With a hash of every file of its servers."""
SCRAPE_TIMEOUT_S = 3.0
"""Shorter than the ten seconds that Prometheus waits by default, so that one stuck worker hides only itself."""

FindMetrics = Callable[[], Awaitable[list[Family]]]
ServerStatus = Literal["success", "connection_error", "timeout", "unknown_error"]


class ServerInstanceDisplayConfig(BaseModel):
    """One running server, as the head server and `ng_status` show it."""

    process_name: str | None = None
    server_type: str | None = None
    name: str | None = None
    config_path: str | None = None
    dir_path: str | None = None
    entrypoint: str | None = None
    host: str | None = None
    port: int | None = None
    url: str | None = None
    pid: int | None = None
    num_workers: int | None = None
    start_time: float | None = None
    status: ServerStatus | None = None
    uptime_seconds: float | None = None


class HeadServer:
    """A small ASGI app. The launcher passes in what it reports as functions."""

    def __init__(
        self,
        *,
        config_yaml: Callable[[], str],
        instances: Callable[[], list[ServerInstanceDisplayConfig]],
        health: Callable[[], dict[str, str]],
        metrics: FindMetrics,
        workers: Callable[[], list[dict[str, Any]]] | None = None,
        register: Callable[[bytes], dict[str, Any]] | None = None,
        token: str | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        started_at = time.time()
        self._responses: dict[str, Callable[[], Any]] = {
            "/global_config_dict_yaml": config_yaml,
            "/server_instances": instances,
            "/health": lambda: {"status": "ok", "servers": health()},
            "/run": lambda: {**run_identity(), "started_at": started_at},
            "/metrics": lambda: _encoded(metrics, exposition),
            "/metrics.json": lambda: _encoded(metrics, encode_families),
            **({} if workers is None else {"/workers": workers}),
        }
        self._register = register
        self._token, self._allowed_hosts = token, (limits or ServerLimits()).allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, value = 200, await self._answer(scope, receive)
        except RefusedError as error:
            is_probe = scope["path"] == "/health" and error.status == 401  # probes have no token
            status, value = (200, {"status": "ok"}) if is_probe else (error.status, {"detail": error.detail})
        body = value if isinstance(value, bytes) else encode(process_redactor().value(value))
        await send_reply(ServerReply("head_server", status, body), send)

    async def _answer(self, scope: Scope, receive: Receive) -> Any:
        headers, method, path = dict(scope["headers"]), scope["method"], scope["path"]
        if self._token is not None:
            check_token(headers, self._token, "head_server")
        check_origin(scope, headers, self._allowed_hosts, checks_host=self._token is None)
        if path == "/workers" and method == "POST":
            check_json(headers)
            return self._registered(await read_body(limit_body(receive, MAX_REGISTRATION_BYTES)))
        if path not in self._responses or method != "GET":
            raise RefusedError(404, "Not Found")
        value = self._responses[path]()
        return await value if inspect.isawaitable(value) else value

    def _registered(self, body: bytes) -> dict[str, Any]:
        """Let a worker join. Only a run with a token has workers from outside: they share secrets by it."""
        if self._register is None or self._token is None:
            raise RefusedError(
                403, "This run has no token, so no worker can join it. Start it with NEMO_GYM_RUN_TOKEN set."
            )
        try:
            return self._register(body)
        except ValidationError as error:
            raise RefusedError(422, str(error)) from error
        except ConfigError as error:
            raise RefusedError(409, str(error)) from error


async def _encoded(metrics: FindMetrics, encode: Callable[[list[Family]], bytes]) -> bytes:
    return encode(await metrics())


async def run_metrics(urls: Mapping[str, str], *, token: str | None) -> list[Family]:
    """Return the metrics of every worker and of this process. A worker that does not answer is reported as down."""
    async with HttpClient() as http:
        found = await asyncio.gather(*(fetch_metrics(http, url, token=token) for url in urls.values()))
    up = Family("nemo_gym_worker_up", "gauge", "1 if the worker answered.")
    for name, families in zip(urls, found, strict=True):
        up.add(1 if families else 0, worker=name)
    return [up, *chain.from_iterable(found), *process_families(worker="head")]


async def fetch_metrics(http: HttpClient, url: str, *, token: str | None) -> list[Family]:
    """Return the metrics that a worker or head server reports, none if it does not answer."""
    options: dict[str, Any] = {"headers": token_headers(token), "timeout_s": SCRAPE_TIMEOUT_S, "use_proxy": False}
    try:
        reply = await http.fetch("GET", f"{url}/metrics.json", **options)
        return decode_families(reply.body) if reply.status == 200 else []
    except (UpstreamError, msgspec.DecodeError):
        return []
