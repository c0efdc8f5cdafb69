"""The head server: reports the configuration, the servers and the health of a run, and which process it is. It holds
no secret.

`ng_stop` signals the process that a run reports. A process id alone proves nothing: it may have been reused, or the
head server may run on another machine or in another container. So all that a run reports about itself must match what
the operating system says about the process here."""

import asyncio
import hashlib
import inspect
import os
import platform
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from nemo_gym.client.head import fetch_metrics
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.metrics import Family, encode_families, exposition, process_families
from nemo_gym.common.redaction import process_redactor
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.server.asgi import Receive, RefusedError, Scope, Send, limit_body, read_body, send_reply
from nemo_gym.server.request_checks import ServerLimits, check_json, check_origin, check_token

MAX_REGISTRATION_BYTES = 16 * 2**20
"""With a hash of every file of its servers."""
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


_ENDED_STATES = frozenset(("Z", "X", "x"))
"""States of a process in Linux: a zombie, or dead."""


def run_identity(pid: int | None = None) -> dict[str, Any]:
    """Return what identifies a process of this machine, by default this one. Raises OSError if there is none."""
    pid = pid or os.getpid()
    return {"pid": pid, "machine": _machine(), **_process(pid)}


def check_run_identity(reported: dict[str, Any]) -> int:
    """The process id that a run reports, if the process here with that id is the run and belongs to this user."""
    pid = reported.get("pid")
    if not isinstance(pid, int) or pid < 2:
        raise GymError(f"The head server reports the process id {pid!r}, which cannot be a run.")
    try:
        found = run_identity(pid)
    except OSError as error:
        raise GymError(f"The run's process {pid} is not a process of this machine. Nothing was signalled.") from error
    differences = _differences(reported, found)
    if found["user"] != os.getuid():
        differences.append("owner")
    if differences:
        raise GymError(
            f"Process {pid} of this machine is not the run at this address: {', '.join(differences)} differ. Nothing "
            "was signalled. Stop the run on its own machine, as its own user."
        )
    return pid


def is_running(reported: dict[str, Any]) -> bool:
    """True until the process of a run has ended. A zombie has ended, though it still has its id."""
    try:
        return not _differences(reported, run_identity(reported["pid"]))
    except OSError:
        return False


def _differences(reported: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [name for name, value in found.items() if reported.get(name) != value]


def _process(pid: int) -> dict[str, Any]:
    """Start time, command line (as a hash: it may hold secrets) and user of a process."""
    if platform.system() == "Linux":
        place = Path(f"/proc/{pid}")
        state, *fields = place.joinpath("stat").read_text().rpartition(")")[2].split()
        if state in _ENDED_STATES:
            raise ProcessLookupError(pid)
        start_time = fields[18]
        command, user = place.joinpath("cmdline").read_bytes(), place.stat().st_uid
    else:
        asked = ["ps", "-p", str(pid), "-o"]
        start_time, uid, line = (
            subprocess.run([*asked, f"{column}="], capture_output=True, text=True, check=False).stdout.strip()
            for column in ("lstart", "uid", "command")
        )
        if not uid:
            raise ProcessLookupError(pid)
        command, user = line.encode(), int(uid)
    return {"start_time": start_time, "command": hashlib.sha256(command).hexdigest()[:16], "user": user}


def _machine() -> str:
    """This machine since it was started, and its process-id namespace: every container has its own."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return platform.node()
