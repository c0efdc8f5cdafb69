"""Workers that join a run from outside: on other machines, started by Slurm, Kubernetes or Ray.

A worker registers at the head server and renews its lease again and again. One that stops renewing is dropped from the
list, and its rollouts are made again by others. A worker whose run is gone stops."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from nemo_gym.client.head import token_headers
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.workers import WorkerAddress
from nemo_gym.common.retry import backoff_s
from nemo_gym.errors import GymError, HeadServerError, UpstreamError

logger = logging.getLogger(__name__)

LEASE_S = 15.0
RENEW_EVERY_S = 4.0
JOIN_TIMEOUT_S = 600.0
"""How long a worker looks for its run: a cluster starts its nodes in any order."""
GIVE_UP_AFTER_S = 60.0
"""How long a worker goes on without its run."""
FIRST_INDEX = 1000
"""Of workers that join. Those that the run starts itself have lower ones."""


class Registration(BaseModel):
    """What a worker says of itself."""

    model_config = ConfigDict(frozen=True)

    worker: int | None = None
    """Its index, if it has one already."""
    url: str
    rows: str
    servers: tuple[str, ...]
    pid: int | None = None
    leaves: bool = False


class Members:
    """The workers that have joined, each until its lease ends."""

    def __init__(self, *, lease_s: float = LEASE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s, self._clock = lease_s, clock
        self._indices = itertools.count(FIRST_INDEX)
        self._members: dict[int, tuple[WorkerAddress, float]] = {}

    def register(self, body: bytes) -> dict[str, Any]:
        """Add or renew a worker; the reply is its index. A lease that has ended is not renewed."""
        asked = Registration.model_validate_json(body)
        addresses = self.addresses()
        if asked.worker is not None and asked.worker not in {each.worker for each in addresses}:
            return {"worker": None}
        worker = next(self._indices) if asked.worker is None else asked.worker
        if asked.leaves:
            del self._members[worker]
            return {"worker": None}
        if asked.worker is None:
            logger.info("worker %d joined from %s", worker, asked.url)
        address = WorkerAddress(worker, asked.url, asked.rows, asked.servers, asked.pid)
        self._members[worker] = address, self._clock() + self._lease_s
        return {"worker": worker}

    def addresses(self) -> list[WorkerAddress]:
        now = self._clock()
        for worker in [worker for worker, (_, ends_at) in self._members.items() if ends_at < now]:
            logger.warning("worker %d has not renewed its lease and is dropped", worker)
            del self._members[worker]
        return [address for address, _ in self._members.values()]


class Membership:
    """A worker's place in a run."""

    def __init__(self, http: HttpClient, head_url: str, token: str | None, registration: Registration) -> None:
        self._http, self._url = http, f"{head_url}/workers"
        self._headers = token_headers(token)
        self._registration = registration

    async def join(self) -> int:
        """The index that the run gives this worker. Waits for the run to start."""
        given_up_at, tries = time.monotonic() + JOIN_TIMEOUT_S, 0
        while True:
            try:
                worker = await self._register()
            except UpstreamError as error:
                tries += 1
                if time.monotonic() > given_up_at:
                    raise HeadServerError(
                        f"No run to join at {self._url} within {JOIN_TIMEOUT_S:g} s: {error}"
                    ) from error
                logger.info("no run to join at %s yet: %s", self._url, error)
                await asyncio.sleep(backoff_s(min(tries, 4)))
                continue
            if worker is None:
                raise HeadServerError(f"The run at {self._url} gave this worker no index.")
            self._registration = self._registration.model_copy(update={"worker": worker})
            return worker

    async def keep(self, stop: asyncio.Event) -> None:
        """Renew the lease until `stop` is set, which happens here if the run is gone or no longer knows this worker.
        Then give it back, so that no more rows are sent here."""
        renewed_at = time.monotonic()
        while not await _is_set_within(stop, RENEW_EVERY_S):
            try:
                if await self._register() is None:
                    logger.error("the run at %s has dropped this worker, which stops", self._url)
                    break
                renewed_at = time.monotonic()
            except GymError as error:
                logger.warning("the lease could not be renewed: %s", error)
                if isinstance(error, HeadServerError) or time.monotonic() - renewed_at > GIVE_UP_AFTER_S:
                    logger.error("the run at %s is gone, so this worker stops", self._url)
                    break
        stop.set()
        self._registration = self._registration.model_copy(update={"leaves": True})
        try:
            await self._register()
        except GymError as error:
            logger.debug("could not leave: %s", error)

    async def _register(self) -> int | None:
        reply = await self._http.fetch(
            "POST",
            self._url,
            body=self._registration.model_dump_json().encode(),
            headers=self._headers,
            timeout_s=LEASE_S / 2,
            use_proxy=False,
        )
        if reply.status in (401, 403, 421, 422):
            raise HeadServerError(f"The run at {self._url} refused this worker: {reply.text[:500]}")
        if reply.status != 200:
            raise UpstreamError(self._url, reply.status, reply.text)
        worker: int | None = orjson.loads(reply.body)["worker"]
        return worker


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
