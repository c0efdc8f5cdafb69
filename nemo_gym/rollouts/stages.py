"""The stages of rollouts: how long the requests of each took in all, and where a rollout waits right now.

The latter is read from the stack of its task when somebody asks: rollouts pay nothing for it."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nemo_gym.client.head import base_url
from nemo_gym.client.server_client import ServerClient
from nemo_gym.runtime.head_server import metrics_page
from nemo_gym.server.endpoint import Endpoint
from nemo_gym.server.metrics import stage_of

MAX_STACK = 300
_SAMPLE = re.compile(r'nemo_gym_stage_seconds_(sum|count)\{[^}]*\bstage="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)
_FIGURES = {"sum": "seconds", "count": "requests"}

StageTimes = dict[str, dict[str, float]]


async def stage_times(client: ServerClient) -> StageTimes:
    """The totals so far. Empty if the servers do not tell."""
    page, head = local_metrics(client), client.head_server_config
    if not client.local and head is not None:
        page = await metrics_page(client.http, base_url(head.host, head.port), token=client.token)
    found: StageTimes = {}
    for kind, stage, value in _SAMPLE.findall(page or ""):
        if stage != "agent":
            found.setdefault(stage, {"requests": 0, "seconds": 0.0})[_FIGURES[kind]] += float(value)
    return found


def local_metrics(client: ServerClient) -> str | None:
    """The text of `/metrics` of the servers in this process, if there are any."""
    pages = (getattr(server, "pages", {}).get("/metrics") for server in client.local.values())
    return next((page().decode() for page in pages if page), None)


def times_since(before: StageTimes, now: StageTimes) -> StageTimes:
    """What was added since `before`, without stages that no request reached."""
    found: StageTimes = {}
    for stage, total in now.items():
        first = before.get(stage, {"requests": 0, "seconds": 0.0})
        requests, seconds = total["requests"] - first["requests"], total["seconds"] - first["seconds"]
        if requests > 0:
            found[stage] = {"requests": int(requests), "seconds": round(seconds, 6)}
    return found


def current_stage(task: "asyncio.Task[Any]", now: float) -> dict[str, Any]:
    """The innermost request that a task waits for, if the servers are in this process."""
    found: dict[str, Any] = {}
    for names in coroutine_frames(task):
        endpoint, call, core = names.get("endpoint"), names.get("call"), names.get("self")
        if isinstance(endpoint, Endpoint) and core is not None and call is not None:
            found = {"stage": stage_of(endpoint), "server": core.name, "path": call.path}
            started = names.get("started")
            found["stage_seconds"] = now - started if isinstance(started, float) else None
    return found


def coroutine_frames(task: "asyncio.Task[Any]") -> Iterator[Mapping[str, Any]]:
    """The local variables of the coroutines that a task waits in, the outermost first."""
    running: Any = task.get_coro()
    for _ in range(MAX_STACK):
        frame = getattr(running, "cr_frame", None)
        if frame is None:
            return
        yield frame.f_locals
        running = running.cr_await
