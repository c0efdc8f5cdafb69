"""The live view of a collection, for the viewer and `ng_status --watch`, and a way to cancel one of its rollouts.

The collector listens on loopback. Its port and a token are in a file that only its user can read, so other users and
web pages cannot ask. The stage of a rollout is the call that its task's context names, read on request. If the server
cannot be started, the collection goes on without it."""

import asyncio
import contextlib
import hmac
import itertools
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.client.head import base_url, fetch_metrics
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.metrics import STAGES, Family, stage_loads, worker_loads
from nemo_gym.common.paths import cache_dir
from nemo_gym.rollouts.attempts import InFlight
from nemo_gym.rollouts.types import Outcome, RowKey

logger = logging.getLogger(__name__)

CANCELLED = "cancelled"
"""The code of a rollout that a user cancelled. Running the collection again repeats it."""
MAX_LISTED = 100
MAX_SLOWEST = 10
RATE_OVER_S = 30
MAX_REQUEST_BYTES = 10_000
REQUEST_TIMEOUT_S = 5.0


Stages = Callable[[], Awaitable[Mapping[RowKey, dict[str, Any]]]]
"""Asks the workers for the stages of their rollouts."""


class LiveRollouts:
    """The rollouts in flight, the slowest that ended, and how many ended when."""

    def __init__(self) -> None:
        self.in_flight: dict[int, InFlight] = {}
        """Rollouts in flight by number, the oldest first."""
        self.ask_workers: Stages | None = None
        self._slowest: list[dict[str, Any]] = []
        self._ended: Counter[int] = Counter()
        self._since = time.monotonic()

    def add_outcome(self, outcome: Outcome) -> None:
        """Add a rollout that ended."""
        if not outcome.is_final:
            return
        self._ended[int(time.monotonic())] += 1
        if len(self._slowest) == MAX_SLOWEST and outcome.seconds <= self._slowest[-1]["seconds"]:
            return
        ended = {"task_index": outcome.row.task_index, "repeat_index": outcome.row.repeat_index}
        how = "scored" if outcome.error is None else outcome.error.cause
        self._slowest.append({**ended, "seconds": outcome.seconds, "outcome": how})
        self._slowest.sort(key=lambda one: -one["seconds"])
        del self._slowest[MAX_SLOWEST:]

    def cancel(self, number: int) -> bool:
        """Cancel a rollout. It ends as a failure with the code `cancelled`. False if it has ended already."""
        rollout = self.in_flight.get(number)
        if rollout is None or rollout.is_cancelled:
            return False
        rollout.is_cancelled = True
        return rollout.cancel()

    async def snapshot(self) -> dict[str, Any]:
        """Return the whole status, with the oldest rollouts first."""
        remote = await self.ask_workers() if self.ask_workers is not None and self.in_flight else {}
        now = time.monotonic()
        oldest = itertools.islice(self.in_flight.values(), MAX_LISTED)
        for second in [second for second in self._ended if second < now - RATE_OVER_S - 1]:
            del self._ended[second]
        return {
            "in_flight": len(self.in_flight),
            "per_second": sum(self._ended.values()) / max(1.0, min(RATE_OVER_S, now - self._since)),
            "rollouts": [
                {
                    "number": rollout.number,
                    "task_index": rollout.row.task_index,
                    "repeat_index": rollout.row.repeat_index,
                    "agent": rollout.row.agent,
                    "seconds": now - rollout.started,
                    **(remote.get(rollout.row.key) or rollout.stage(now)),
                }
                for rollout in oldest
            ],
            "slowest": self._slowest,
        }


def live_folder() -> Path:
    """Return the folder where collectors publish their addresses."""
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
    families, snapshot = await asyncio.gather(server_metrics(client), live.snapshot())
    stages = {stage: load for stage, load in stage_loads(families).items() if stage in STAGES}
    return {**status(), **snapshot, "pid": os.getpid(), "workers": worker_loads(families), "stages": stages}


async def server_metrics(client: ServerClient) -> list[Family]:
    """Return the metrics of the servers that a client calls: in this process, or those of a running `ng_run`."""
    head = client.head_server_config
    if client.local or head is None:
        return next((families for server in client.local.values() if (families := server.families())), [])
    return await fetch_metrics(client.http, base_url(head.host, head.port), token=client.token)
