"""What a collection does right now, for the viewer and `ng_status --watch`, and a way to cancel one of its rollouts.

The collector listens on loopback. Its port and a token are in a file that only its user can read, so other users and
web pages cannot ask. The stage of a rollout is read from the stack of its task on request, so rollouts pay nothing
for it. If the server cannot be started, the collection goes on without it."""

import asyncio
import contextlib
import hmac
import itertools
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from nemo_gym.client.head import base_url
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.metrics import Family
from nemo_gym.common.paths import cache_dir
from nemo_gym.rollouts.dispatch import WorkerLink
from nemo_gym.rollouts.types import NoResult, Outcome, Row, Scored
from nemo_gym.rollouts.worker_protocol import RowRequest
from nemo_gym.runtime.head_server import fetch_metrics
from nemo_gym.server.endpoint import Endpoint
from nemo_gym.server.metrics import STAGES, stage_loads, stage_of, worker_loads

logger = logging.getLogger(__name__)

Run = Callable[[Row], Awaitable[Outcome]]

CANCELLED = "cancelled"
"""The code of a rollout that a user cancelled. Running the collection again repeats it."""
MAX_LISTED = 100
MAX_STACK = 300
MAX_SLOWEST = 10
RATE_OVER_S = 30
MAX_REQUEST_BYTES = 10_000
REQUEST_TIMEOUT_S = 5.0


class InFlight(msgspec.Struct):
    """One rollout that is being made."""

    row: Row
    started: float
    task: "asyncio.Task[Any]"
    is_cancelled: bool = False


class LiveRollouts:
    """The rollouts in flight, the slowest that ended, and how many ended when."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._in_flight: dict[int, InFlight] = {}
        self._slowest: list[dict[str, Any]] = []
        self._ended: Counter[int] = Counter()
        self._since = time.monotonic()

    def tracked(self, run: Run) -> Run:
        """`run`, but its rollouts can be seen and cancelled."""

        async def run_tracked(row: Row) -> Outcome:
            task = asyncio.current_task()
            if task is None:
                raise AssertionError("a rollout runs in a task")
            number, rollout = next(self._numbers), InFlight(row, time.monotonic(), task)
            self._in_flight[number] = rollout
            try:
                outcome = await run(row)
            except asyncio.CancelledError:
                if not rollout.is_cancelled or task.uncancel() > 0:
                    raise
                seconds = time.monotonic() - rollout.started
                outcome = NoResult.of(
                    row, "timeout", "Cancelled by the user.", seconds=seconds, code=CANCELLED, retryable=False
                )
            finally:
                del self._in_flight[number]
                self._ended[int(time.monotonic())] += 1
            self._note_duration(outcome)
            return outcome

        return run_tracked

    def cancel(self, number: int) -> bool:
        """Cancel a rollout. It ends as a failure with the code `cancelled`. False if it has ended already."""
        rollout = self._in_flight.get(number)
        if rollout is None or rollout.is_cancelled:
            return False
        rollout.is_cancelled = True
        return rollout.task.cancel()

    async def update_stages(self) -> None:
        """Ask the workers for the stages of the oldest rollouts."""
        oldest = itertools.islice(self._in_flight.values(), MAX_LISTED)
        links = {link for rollout in oldest if (link := _sent_to(rollout.task)[0])}
        await asyncio.gather(*(link.update_stages() for link in links))

    def snapshot(self) -> dict[str, Any]:
        """Everything, the oldest rollouts first."""
        now = time.monotonic()
        oldest = itertools.islice(self._in_flight.items(), MAX_LISTED)
        for second in [second for second in self._ended if second < now - RATE_OVER_S - 1]:
            del self._ended[second]
        return {
            "in_flight": len(self._in_flight),
            "per_second": sum(self._ended.values()) / max(1.0, min(RATE_OVER_S, now - self._since)),
            "rollouts": [_described(number, rollout, now) for number, rollout in oldest],
            "slowest": self._slowest,
        }

    def _note_duration(self, outcome: Outcome) -> None:
        if len(self._slowest) == MAX_SLOWEST and outcome.seconds <= self._slowest[-1]["seconds"]:
            return
        ended = {"task_index": outcome.id.task_index, "repeat_index": outcome.id.repeat_index}
        how = "scored" if isinstance(outcome, Scored) else outcome.cause
        self._slowest.append({**ended, "seconds": outcome.seconds, "outcome": how})
        self._slowest.sort(key=lambda one: -one["seconds"])
        del self._slowest[MAX_SLOWEST:]


def _described(number: int, rollout: InFlight, now: float) -> dict[str, Any]:
    row, (link, request) = rollout.row, _sent_to(rollout.task)
    return {
        "number": number,
        "task_index": row.id.task_index,
        "repeat_index": row.id.repeat_index,
        "agent": row.agent,
        "seconds": now - rollout.started,
        **(link.stages.get(str(request), {}) if link else current_stage(rollout.task, now)),
    }


def _sent_to(task: "asyncio.Task[Any]") -> tuple[WorkerLink | None, int]:
    """The worker that makes a rollout, if it is another process, and the number of the request."""
    for names in coroutine_frames(task):
        link, request = names.get("link"), names.get("request")
        if isinstance(link, WorkerLink) and isinstance(request, RowRequest):
            return link, request.number
    return None, 0


def current_stage(task: "asyncio.Task[Any]", now: float) -> dict[str, Any]:
    """Return the innermost request that a task waits for, if the servers are in this process. It is read from the
    stack of the task, so that rollouts pay nothing for it."""
    found: dict[str, Any] = {}
    for names in coroutine_frames(task):
        endpoint, call, core = names.get("endpoint"), names.get("call"), names.get("self")
        if isinstance(endpoint, Endpoint) and core is not None and call is not None:
            found = {"stage": stage_of(endpoint), "server": core.name, "path": call.path}
            started = names.get("started")
            found["stage_seconds"] = now - started if isinstance(started, float) else None
    return found


def coroutine_frames(task: "asyncio.Task[Any]") -> Iterator[Mapping[str, Any]]:
    """Yield the local variables of the coroutines that a task waits in, the outermost first."""
    running: Any = task.get_coro()
    for _ in range(MAX_STACK):
        frame = getattr(running, "cr_frame", None)
        if frame is None:
            return
        yield frame.f_locals
        running = running.cr_await


def live_folder() -> Path:
    """Where collectors say how to reach them."""
    return cache_dir() / "live"


@contextlib.asynccontextmanager
async def published(
    live: LiveRollouts, status: Callable[[], dict[str, Any]], client: ServerClient
) -> AsyncIterator[None]:
    """Answer requests for the status while the block runs."""
    token = secrets.token_urlsafe(24)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                asked = orjson.loads(await reader.readline())
                reply = await _reply(asked, token, live, status, client)
                writer.write(orjson.dumps(reply, default=str))
                await writer.drain()

    async with contextlib.AsyncExitStack() as stack:
        try:
            server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=MAX_REQUEST_BYTES)
            await stack.enter_async_context(server)
            stack.callback(_register(server.sockets[0].getsockname()[1], token).unlink, missing_ok=True)
        except OSError as error:
            logger.info("the live view of this run is off: %s", error)
        yield


def _register(port: int, token: str) -> Path:
    folder = live_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = folder / f"{os.getpid()}-{port}.json"
    place.unlink(missing_ok=True)
    with os.fdopen(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(orjson.dumps({"pid": os.getpid(), "port": port, "token": token}))
    return place


async def _reply(
    asked: Any, token: str, live: LiveRollouts, status: Callable[[], dict[str, Any]], client: ServerClient
) -> dict[str, Any]:
    if not isinstance(asked, dict) or not hmac.compare_digest(str(asked.get("token")).encode(), token.encode()):
        return {"error": "The token is wrong."}
    if "cancel" in asked:
        return {"cancelled": isinstance(asked["cancel"], int) and live.cancel(asked["cancel"])}
    families, _ = await asyncio.gather(server_metrics(client), live.update_stages())
    stages = {stage: load for stage, load in stage_loads(families).items() if stage in STAGES}
    return {**status(), **live.snapshot(), "pid": os.getpid(), "workers": worker_loads(families), "stages": stages}


async def server_metrics(client: ServerClient) -> list[Family]:
    """Return the metrics of the servers that a client calls: in this process, or those of a running `ng_run`."""
    head = client.head_server_config
    if client.local or head is None:
        return next((families for server in client.local.values() if (families := server.families())), [])
    return await fetch_metrics(client.http, base_url(head.host, head.port), token=client.token)
