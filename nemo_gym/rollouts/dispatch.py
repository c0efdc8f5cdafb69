"""The collector's half of the workers: a connection to each, and the choice of the ready worker with the fewest
rollouts in flight.

Every request ends in exactly one reply. If a worker dies, those it was making end as failed attempts with the code
`worker_lost`, and what it may still send is not read. So does a request whose outcome is not valid."""

import asyncio
import contextlib
import itertools
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from nemo_gym.client.head import BlockedRollout, WorkerAddress, list_workers, rollout_name
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.deadline import OUTCOME_GRACE_S, lease_time
from nemo_gym.common.retry import backoff_s
from nemo_gym.errors import BLOCKED_CODE, Cause, ConfigError, HeadServerError, RolloutError, StartupError
from nemo_gym.rollouts.attempts import no_such_agent
from nemo_gym.rollouts.call_log import LogRequest, is_line_of
from nemo_gym.rollouts.process_losses import WORKER_BLOCKED, WORKER_LOST
from nemo_gym.rollouts.types import Outcome, Row, RowKey
from nemo_gym.rollouts.worker_protocol import (
    VERSION,
    FrameConnection,
    Kind,
    ProtocolError,
    read_outcome,
    row_frame,
)
from nemo_gym.server.request_checks import ServerLimits

logger = logging.getLogger(__name__)

PING_EVERY_S = 5.0
STAGES_TIMEOUT_S = 0.5
SILENT_AFTER_S = 60.0
"""A worker that has not answered for this long counts as dead: its machine may have failed. Time in which this process
did not run itself does not count, nor the time for which code may block a worker."""
MAX_BACKOFF_ATTEMPT = 3
"""Reconnect after two seconds at most: a worker that died is restarted at once."""


class PendingRequest(NamedTuple):
    """A row that the worker has not answered yet."""

    row: Row
    log: LogRequest | None
    future: "asyncio.Future[Outcome]"
    sent_at: float
    """By the lease clock."""


class WorkerLink:
    """The connection to one worker, and the rows that it has. `on_change` is called when it may have become able to
    take more."""

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
        """The reason why the worker accepts no rows of this process, if it gave one."""
        self.name = f"worker {address.worker} at {address.rows}"
        self._connection: FrameConnection | None = None
        self._lost = asyncio.Event()
        self._last_frame_at = 0.0
        self._stages: dict[str, dict[str, Any]] = {}
        """The stage of each of the worker's rollouts, by number, as it reported last."""
        self._stages_received = asyncio.Event()
        self.is_paused = False
        self.version: int | None = None
        self._paused = asyncio.Event()
        """Set once the worker holds model calls."""
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

    def send(self, number: int, row: Row, log: LogRequest | None) -> "asyncio.Future[Outcome]":
        """Ask a ready worker for an attempt."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._connection is None:
            raise AssertionError(f"{self.name} is not ready")
        self.requests[number] = PendingRequest(row, log, future, lease_time())
        self._connection.send(*row_frame(number, row, log))
        return future

    def cancel(self, number: int) -> None:
        """Cancel a request whose reply nobody waits for any more."""
        if self.requests.pop(number, None) is not None and self._connection is not None:
            self._connection.send([Kind.CANCEL, number])
            self._on_change(self)

    async def update_stages(self) -> dict[RowKey, dict[str, Any]]:
        """Ask the worker for the stages of its rollouts. If it is too busy to answer, they stay as they were."""
        if self._connection is not None and self.capacity:
            self._stages_received.clear()
            self._connection.send([Kind.STAGES])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STAGES_TIMEOUT_S):
                    await self._stages_received.wait()
        return {pending.row.key: self._stages.get(str(number), {}) for number, pending in self.requests.items()}

    async def pause(self, is_paused: bool) -> None:
        """Hold new model calls, or go on. Returns once the worker does, or is lost. One that takes its place is paused
        before it gets rows."""
        self.is_paused = is_paused
        self._paused.clear()
        if self._connection is not None and self.capacity:
            self._connection.send([Kind.PAUSE, is_paused])
            if is_paused:
                await self._paused.wait()

    def set_version(self, version: int) -> None:
        """Name the policy version of new model calls, also to one that takes the worker's place."""
        self.version = version
        if self._connection is not None and self.capacity:
            self._connection.send([Kind.VERSION, version])

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
        """One connection, from its hello to its end. Returns True if the worker was ready."""
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
            self._paused.set()
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
            case [Kind.OUTCOME, int(number), *_]:
                self._on_reply(number, head, body)
            case [Kind.HELLO, _, _, int(pid), int(capacity), list(agents)] if all(
                type(name) is str for name in agents
            ):
                self.pid, self.capacity, self.agents, self.is_ready = pid, capacity, frozenset(agents), True
                if self.is_paused:
                    connection.send([Kind.PAUSE, True])
                if self.version is not None:
                    connection.send([Kind.VERSION, self.version])
                self.answered.set()
                self._on_change(self)
            case [Kind.PONG]:
                pass
            case [Kind.PAUSE, bool()]:
                self._paused.set()
            case [Kind.CALL, int(number)]:
                self._on_call(number, body)
            case [Kind.DRAINING]:
                self.is_ready = False
                connection.send([Kind.DRAINING])
            case [Kind.STAGES, dict(stages)]:
                self._stages = stages
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
            outcome = read_outcome(head, body, pending.row)
        except ProtocolError as error:
            logger.error("%s sent %s", self.name, error)
            self._fail(pending, "environment", f"{self.name} sent {error}.", code=WORKER_LOST)
        else:
            if not pending.future.done():
                pending.future.set_result(outcome)
        del self.requests[number]
        self._on_change(self)

    def _on_call(self, number: int, line: bytes) -> None:
        """Log a call of an attempt, unless it was cancelled."""
        pending = self.requests.get(number)
        if pending is not None and pending.log is not None:
            if not is_line_of(line, pending.row, pending.log):
                raise ProtocolError(f"the call {line!r:.200}")
            pending.log.write(line)

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
            self._fail(pending, "environment", message, code=WORKER_LOST)

    def _fail_overdue(self) -> None:
        now = lease_time()
        for number, pending in [*self.requests.items()]:
            limit_s = pending.row.timeout_s
            if now - pending.sent_at > limit_s + OUTCOME_GRACE_S:
                message = f"{self.name} sent no outcome within {limit_s:g} s and {OUTCOME_GRACE_S:g} s of grace."
                logger.error("%s", message)
                self._fail(pending, "timeout", message)
                self.cancel(number)

    def _fail(self, pending: PendingRequest, cause: Cause, message: str, *, code: str | None = None) -> None:
        if not pending.future.done():
            error = RolloutError(cause, message, server=self.name, code=code)
            pending.future.set_result(Outcome.failed(pending.row, error, seconds=lease_time() - pending.sent_at))


ListWorkers = Callable[[], Awaitable[list[WorkerAddress] | None]]

REFRESH_S = 2.0
"""Seconds between two readings of the list of workers, which may join and leave."""
FIRST_WAIT_S = 2.0
NO_WORKER_TIMEOUT_S = 300.0
"""Seconds for which rows wait while no worker is ready: one may be restarting."""
MAX_NAMED = 5
MAX_GROUPS = 100_000


@contextlib.asynccontextmanager
async def open_dispatch(client: ServerClient) -> "AsyncIterator[WorkerPool | None]":
    """The workers of the client's run. None if there are none: the client holds the servers itself, or nobody
    supervises those that it calls."""
    if client.local or await list_workers(client) is None:
        yield None
        return
    limits = ServerLimits.of(client.global_config_dict)
    pool = WorkerPool(partial(list_workers, client), token=client.token, max_blocked_s=limits.max_blocked_s)
    async with pool.connected():
        yield pool


class WorkerPool:
    """The workers of a run. Rows wait in order while all workers are full."""

    def __init__(self, list_workers: ListWorkers, *, token: str | None = None, max_blocked_s: float = 0.0) -> None:
        self._list_workers, self._token, self._max_blocked_s = list_workers, token, max_blocked_s
        self._links: dict[str, WorkerLink] = {}
        self._groups: dict[str, WorkerLink] = {}
        """The worker of each group."""
        self._is_paused = False
        self._version: int | None = None
        self._numbers = itertools.count()
        self._waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        """Rows that wait for a place in a worker, by agent."""
        self._ready_at = lease_time()
        """When every agent that rows wait for had a ready worker last."""
        self._listing: asyncio.Task[dict[str, BlockedRollout]] | None = None
        self._warned_full = self._warned_unready = False
        self._head_error: HeadServerError | None = None
        """The error of the last attempt to read the list of workers, if it failed."""

    def _capacity(self, agent: str) -> int:
        """Return the number of rollouts that the ready workers with this agent take at once."""
        return sum(link.capacity for link in self._links.values() if link.is_ready and agent in link.agents)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Stay connected to all workers while the block runs."""
        try:
            await self._refresh()
            await self._wait_for_all()
            refreshing = asyncio.create_task(self._keep_refreshing())
            try:
                yield
            finally:
                refreshing.cancel()
                await asyncio.gather(refreshing, return_exceptions=True)
        finally:
            await asyncio.gather(*(link.close() for link in self._links.values()), return_exceptions=True)

    async def _wait_for_all(self) -> None:
        """Give the workers a moment, so that the first one to answer does not get all the first rows."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WAIT_S):
                await asyncio.gather(*(link.answered.wait() for link in self._links.values()))

    async def pause(self, is_paused: bool) -> None:
        """Let the workers hold new model calls of logged rollouts, or go on."""
        self._is_paused = is_paused
        await asyncio.gather(*(link.pause(is_paused) for link in self._links.values()))

    def set_version(self, version: int) -> None:
        """Name the policy version of new model calls of logged rollouts."""
        self._version = version
        for link in self._links.values():
            link.set_version(version)

    async def stages(self) -> dict[RowKey, dict[str, Any]]:
        """Return the stage of each rollout in flight, as far as the workers answer."""
        found = await asyncio.gather(*(link.update_stages() for link in self._links.values()))
        return {key: stage for stages in found for key, stage in stages.items()}

    async def attempt(self, row: Row, log: LogRequest | None = None) -> Outcome:
        """One attempt at a rollout, made by a worker."""
        number = next(self._numbers)
        link = self._of_group(row) or self._least_busy(row.agent)
        if link is None:
            try:
                link = await self._wait_for_room(row.agent)
            except ConfigError as error:
                return Outcome.failed(row, no_such_agent(row.agent, error))
        if row.group:
            self._remember(row.group, link)
        pid = link.pid
        try:
            outcome = await link.send(number, row, log)
        except BaseException:
            link.cancel(number)
            raise
        if outcome.error is not None and outcome.error.code == WORKER_LOST:
            outcome.error = await self._explain_loss(outcome.error, rollout_name(number, row.row_hash), link, pid)
        return outcome

    async def _explain_loss(self, lost: RolloutError, name: str, link: WorkerLink, pid: int) -> RolloutError:
        """The failure of a rollout whose worker died, with the reason if the worker was killed because a rollout
        blocked it: this one, which fails then, or another one."""
        blocked = (await self._blocked_workers()).get(link.address.rows)
        if blocked is None or blocked.pid != pid:
            return lost
        if blocked.name != name:
            message = f"{lost} Another one blocked it."
            return RolloutError(lost.cause, message, server=lost.server, code=WORKER_BLOCKED)
        message = f"The code at {blocked.place} blocked {link.name} and could not be interrupted, so it was killed."
        return RolloutError(lost.cause, message, server=lost.server, code=BLOCKED_CODE, retryable=False)

    async def _blocked_workers(self) -> dict[str, BlockedRollout]:
        """Return why workers were killed. Concurrent callers share one request."""
        if self._listing is None:
            self._listing = asyncio.create_task(self._list_blocked())
        try:
            return await asyncio.shield(self._listing)
        finally:
            if self._listing is not None and self._listing.done():
                self._listing = None

    async def _list_blocked(self) -> dict[str, BlockedRollout]:
        try:
            return {found.rows: found.blocked for found in await self._list_workers() or () if found.blocked}
        except HeadServerError as error:
            logger.debug("not known why workers were lost: %s", error)
            return {}

    def _of_group(self, row: Row) -> WorkerLink | None:
        """The worker that has the other rollouts of a row's group, if it is ready."""
        link = self._groups.get(row.group)
        is_usable = link is not None and link.is_ready and link.is_listed and row.agent in link.agents
        return link if is_usable else None

    def _remember(self, group: str, link: WorkerLink) -> None:
        """Send the group's next rollouts to this worker. The groups used least recently are forgotten."""
        self._groups.pop(group, None)
        self._groups[group] = link
        if len(self._groups) > MAX_GROUPS:
            del self._groups[next(iter(self._groups))]

    def _least_busy(self, agent: str) -> WorkerLink | None:
        best: WorkerLink | None = None
        for link in self._links.values():
            if link.has_room and agent in link.agents and (best is None or len(link.requests) < len(best.requests)):
                best = link
        return best

    async def _wait_for_room(self, agent: str) -> WorkerLink:
        self._warn_if_full(agent)
        while True:
            self._check_agent(agent)
            self._raise_refusal()
            turn = asyncio.get_running_loop().create_future()
            self._waiting[agent].append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # the place is for another
                    _wake(self._waiting[agent], 1)
                raise
            link = self._least_busy(agent)
            if link is not None:
                return link

    def _on_change(self, link: WorkerLink) -> None:
        """Wake waiting rows when a worker may take some, or refuses all."""
        if link.refusal:
            self._wake_all()
        for agent, waiting in self._waiting.items():
            if waiting and agent in link.agents:
                _wake(waiting, link.capacity - len(link.requests))

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            _wake(waiting, len(waiting))

    def _check_agent(self, agent: str) -> None:
        """Raise if no worker has this agent: all that there are say so."""
        served = {name for link in self._links.values() for name in link.address.servers}
        if served and agent not in served:
            raise ConfigError(f"No server is called '{agent}'. Servers of this run: {', '.join(sorted(served))}.")

    def _raise_refusal(self) -> None:
        refusals = [link.refusal for link in self._links.values()]
        if refusals and all(refusals):
            raise StartupError("\n".join(str(refusal) for refusal in refusals))
        if lease_time() - self._ready_at > NO_WORKER_TIMEOUT_S:
            raise StartupError(f"No worker was ready for {NO_WORKER_TIMEOUT_S:g} s: {self._what_is_lost()}")

    def _warn_if_full(self, agent: str) -> None:
        if self._capacity(agent) and not self._warned_full:
            self._warned_full = True
            logger.warning(
                "The workers take %d rollouts at once; others wait. Raise the limit on open files with `ulimit -n`, "
                "or start more workers with +num_workers.",
                self._capacity(agent),
            )

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self._refresh()
                self._head_error = None
            except HeadServerError as error:
                self._head_error = error
            self._watch_readiness(lease_time())

    def _watch_readiness(self, now: float) -> None:
        """Say when rows wait because no worker is ready, and when they go on. After a while, let them fail."""
        rows = {agent: sum(not turn.done() for turn in waiting) for agent, waiting in self._waiting.items()}
        unready = [agent for agent, number in rows.items() if number and not self._capacity(agent)]
        if not unready:
            if self._warned_unready:
                logger.warning("A worker is ready again after %.0f s; the rows go on.", now - self._ready_at)
            self._ready_at, self._warned_unready = now, False
            return
        if not self._warned_unready:
            self._warned_unready = True
            number, agents = sum(rows[agent] for agent in unready), ", ".join(map(repr, unready))
            text = "No worker with %s is ready, and %d rows wait, for at most %g s: %s"
            logger.warning(text, agents, number, NO_WORKER_TIMEOUT_S, self._what_is_lost())
        if now - self._ready_at > NO_WORKER_TIMEOUT_S:
            self._wake_all()

    def _what_is_lost(self) -> str:
        unready = [link.name for link in self._links.values() if not link.is_ready]
        names = ", ".join(unready[:MAX_NAMED]) + (", ..." if len(unready) > MAX_NAMED else "")
        workers = f"Not ready: {names or 'no other worker is known'}."
        if self._head_error is None:
            return f"{workers} Is `ng_run` still up?"
        if any(link.is_connected for link in self._links.values()):
            return f"{workers} {self._head_error}"
        return f"{workers} The connections to all workers are gone, and so is the head server: {self._head_error}"

    async def _refresh(self) -> None:
        found = {address.rows: address for address in await self._list_workers() or ()}
        for rows, link in [*self._links.items()]:
            link.is_listed = rows in found
            if not link.is_listed and not link.is_busy:  # else its lease may have ended only because the head was late
                await self._links.pop(rows).close()
        for rows in found.keys() - self._links.keys():
            link = self._links[rows] = WorkerLink(
                found[rows], token=self._token, on_change=self._on_change, max_blocked_s=self._max_blocked_s
            )
            link.is_paused, link.version = self._is_paused, self._version


def _wake(waiting: "deque[asyncio.Future[None]]", count: int) -> None:
    """Wake the first `count` rows that still wait."""
    while waiting and count > 0:
        turn = waiting.popleft()
        if not turn.done():
            turn.set_result(None)
            count -= 1
