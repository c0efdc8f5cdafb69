"""The connection of a collector to one worker, reconnected whenever it is lost.

Every request ends in exactly one reply. If the worker dies, those it was making end as failed attempts with the code
`worker_lost`, and what it may still send is not read. So does a request whose outcome is not valid."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from nemo_gym.client.head import WorkerAddress
from nemo_gym.common.deadline import OUTCOME_GRACE_S, lease_time
from nemo_gym.common.retry import backoff_s
from nemo_gym.rollouts.call_log import is_line_of
from nemo_gym.rollouts.process_losses import WORKER_LOST
from nemo_gym.rollouts.row_protocol import (
    VERSION,
    FrameConnection,
    Kind,
    ProtocolError,
    RowRequest,
    failed_attempt,
    read_outcome,
    row_frame,
)
from nemo_gym.rollouts.types import Outcome

logger = logging.getLogger(__name__)

PING_EVERY_S = 5.0
STAGES_TIMEOUT_S = 0.5
SILENT_AFTER_S = 60.0
"""A worker that has not answered for this long counts as dead: its machine may have failed. Time in which this process
did not run itself does not count, nor the time for which code may block a worker."""
MAX_BACKOFF_ATTEMPT = 3
"""Reconnect after two seconds at most: a worker that died is restarted at once."""


class PendingRequest(NamedTuple):
    """A request that the worker has not answered yet."""

    request: RowRequest
    future: "asyncio.Future[Outcome]"
    sent_at: float
    """By the lease clock."""


class WorkerLink:
    """Whether a worker is ready, what it is making, and how to send it more. `on_change` is called when it may have
    room that it did not have before."""

    def __init__(
        self,
        address: WorkerAddress,
        *,
        token: str | None,
        on_change: "Callable[[WorkerLink], None]",
        max_blocked_s: float = 0.0,
    ) -> None:
        self.address, self._token, self._on_change = address, token, on_change
        self._silent_after_s = SILENT_AFTER_S + max_blocked_s
        self.requests: dict[int, PendingRequest] = {}
        self.is_ready = False
        self.is_listed = True
        """False if the run does not list the worker any more. It gets no more rows then."""
        self.capacity = self.pid = 0
        self.agents: frozenset[str] = frozenset()
        self.answered = asyncio.Event()
        """Set once the worker has answered the first hello."""
        self.refusal: str | None = None
        """Why the worker accepts no rows of this process, if it said so."""
        self.name = f"worker {address.worker} at {address.rows}"
        self._connection: FrameConnection | None = None
        self._lost = asyncio.Event()
        self._last_frame_at = 0.0
        self.stages: dict[str, dict[str, Any]] = {}
        """The stage of each of the worker's rollouts, by number, as it reported last."""
        self._stages_received = asyncio.Event()
        self._task = asyncio.create_task(self._stay_connected())

    @property
    def is_connected(self) -> bool:
        """True also while a worker starts: whoever supervises it keeps its socket open."""
        return self._connection is not None

    @property
    def has_room(self) -> bool:
        return self.is_ready and self.is_listed and len(self.requests) < self.capacity

    @property
    def is_busy(self) -> bool:
        """True if the worker makes rollouts, and has answered a moment ago."""
        return bool(self.requests) and lease_time() - self._last_frame_at < 2 * PING_EVERY_S

    def send(self, request: RowRequest) -> "asyncio.Future[Outcome]":
        """Ask a ready worker for an attempt."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._connection is None:
            raise AssertionError(f"{self.name} is not ready")
        self.requests[request.number] = PendingRequest(request, future, lease_time())
        self._connection.send(*row_frame(request))
        return future

    def cancel(self, number: int) -> None:
        """Nobody waits for this reply any more."""
        if self.requests.pop(number, None) is not None and self._connection is not None:
            self._connection.send([Kind.CANCEL, number])
            self._on_change(self)

    async def update_stages(self) -> None:
        """Ask the worker for the stages of its rollouts. If it is too busy to answer, they stay as they were."""
        if self._connection is None or not self.capacity:
            return
        self._stages_received.clear()
        self._connection.send([Kind.STAGES])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STAGES_TIMEOUT_S):
                await self._stages_received.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _stay_connected(self) -> None:
        failures = 0
        while self.refusal is None:
            try:
                failures = 0 if await self._connect_once() else failures + 1
            except OSError as error:
                logger.debug("no connection to %s: %s", self.name, error)
                failures += 1
            if failures:
                await asyncio.sleep(backoff_s(min(failures, MAX_BACKOFF_ATTEMPT)))

    async def _connect_once(self) -> bool:
        """One connection, from its hello to its end. Returns whether the worker was ready."""
        loop, (host, port) = asyncio.get_running_loop(), self.address.rows_address
        self._lost.clear()
        async with asyncio.timeout(SILENT_AFTER_S):
            _, connection = await loop.create_connection(
                lambda: FrameConnection(self._on_frame, self._on_lost), host, port
            )
        self._connection, self._last_frame_at = connection, lease_time()
        connection.send([Kind.HELLO, VERSION, self._token or ""])
        try:
            await self._ping_until_lost(connection)
        finally:
            was_ready, self.is_ready, self.capacity = self.capacity > 0, False, 0
            self._connection = None
            connection.close()
            self._fail_requests()
        return was_ready

    async def _ping_until_lost(self, connection: FrameConnection) -> None:
        """A worker that is not ready yet says nothing, however long it takes."""
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(PING_EVERY_S):
                    await self._lost.wait()
            except TimeoutError:
                if self.capacity and lease_time() - self._last_frame_at > self._silent_after_s:
                    logger.error("%s has not answered for %g s", self.name, self._silent_after_s)
                    return
                if self.capacity:
                    connection.send([Kind.PING])
                self._fail_overdue()

    def _on_frame(self, connection: FrameConnection, head: list[Any], body: bytes) -> None:
        if connection is not self._connection:
            return
        self._last_frame_at = lease_time()
        match head:
            case [Kind.SCORED | Kind.NO_RESULT, int(number), *_]:
                self._on_reply(number, head, body)
            case [Kind.HELLO, _, _, int(pid), int(capacity), list(agents)] if all(
                type(name) is str for name in agents
            ):
                self.pid, self.capacity, self.agents, self.is_ready = pid, capacity, frozenset(agents), True
                self.answered.set()
                self._on_change(self)
            case [Kind.PONG]:
                pass
            case [Kind.CALL, int(number)]:
                self._on_call(number, body)
            case [Kind.DRAINING]:
                self.is_ready = False
                connection.send([Kind.DRAINING])
            case [Kind.STAGES, dict(stages)]:
                self.stages = stages
                self._stages_received.set()
            case [Kind.REFUSED, str(reason)]:
                self.refusal = f"{self.name} accepts no rows: {reason}."
                self.answered.set()
                self._on_change(self)
            case _:
                raise ProtocolError(f"the frame {head!r:.200}")

    def _on_reply(self, number: int, head: list[Any], body: bytes) -> None:
        pending = self.requests.get(number)
        if pending is None:
            return  # it was cancelled
        try:
            outcome = read_outcome(head, body, pending.request)
        except ProtocolError as error:
            logger.error("%s sent %s", self.name, error)
            self._fail(pending, cause="environment", message=f"{self.name} sent {error}.", code=WORKER_LOST)
        else:
            if not pending.future.done():
                pending.future.set_result(outcome)
        del self.requests[number]
        self._on_change(self)

    def _on_call(self, number: int, line: bytes) -> None:
        """Log a call of an attempt, unless it was cancelled."""
        pending = self.requests.get(number)
        log = None if pending is None else pending.request.log
        if pending is not None and log is not None:
            if not is_line_of(line, pending.request.row.id, log):
                raise ProtocolError(f"the call {line!r:.200}")
            log.write(line)

    def _on_lost(self, connection: FrameConnection, error: Exception | None) -> None:
        if connection is self._connection:
            if error is not None:
                logger.debug("%s: %s", self.name, error)
            self._lost.set()

    def _fail_requests(self) -> None:
        lost, self.requests = self.requests, {}
        if lost:
            logger.warning("%s was lost with %d rollouts, which are dispatched again", self.name, len(lost))
        for pending in lost.values():
            message = f"{self.name} was lost while it made this rollout."
            self._fail(pending, cause="environment", message=message, code=WORKER_LOST)

    def _fail_overdue(self) -> None:
        now = lease_time()
        for number, pending in [*self.requests.items()]:
            limit_s = pending.request.timeout_s
            if now - pending.sent_at > limit_s + OUTCOME_GRACE_S:
                message = f"{self.name} sent no outcome within {limit_s:g} s and {OUTCOME_GRACE_S:g} s of grace."
                logger.error("%s", message)
                self._fail(pending, cause="timeout", message=message)
                self.cancel(number)

    def _fail(self, pending: PendingRequest, **fields: Any) -> None:
        if not pending.future.done():
            seconds = lease_time() - pending.sent_at
            place = {"server": self.name, "started_at": time.time() - seconds, "seconds": seconds}
            pending.future.set_result(failed_attempt(pending.request, **place, **fields))
