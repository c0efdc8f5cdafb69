"""Where a rollout waits right now, read from the stack of its task when somebody asks: rollouts pay nothing for it."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from nemo_gym.server.endpoint import Endpoint
from nemo_gym.server.metrics import stage_of

MAX_STACK = 300


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
