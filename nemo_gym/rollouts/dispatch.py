"""Send each row to the ready worker with the fewest rollouts in flight."""

import asyncio
import contextlib
import itertools
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import orjson
from msgspec.structs import replace

from nemo_gym.client.head import BlockedRollout, WorkerAddress, list_workers, rollout_name
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.deadline import lease_time
from nemo_gym.errors import BLOCKED_CODE, ConfigError, HeadServerError, RolloutError, StartupError
from nemo_gym.rollouts.attempts import as_json, call_agent, no_such_agent, parse_scored
from nemo_gym.rollouts.call_log import LogRequest
from nemo_gym.rollouts.process_losses import LOST_CODES, WORKER_BLOCKED, WORKER_LOST, LostRows, RowLosses
from nemo_gym.rollouts.row_protocol import RowRequest, failed_attempt
from nemo_gym.rollouts.types import NoResult, Outcome, Row, Scored, rollout_error
from nemo_gym.rollouts.worker_link import WorkerLink
from nemo_gym.server.request_checks import ServerLimits

logger = logging.getLogger(__name__)

ListWorkers = Callable[[], Awaitable[list[WorkerAddress] | None]]

REFRESH_S = 2.0
"""How often the list of workers is read: they may come and go."""
FIRST_WAIT_S = 2.0
NO_WORKER_TIMEOUT_S = 300.0
"""How long rows wait while no worker is ready. One may be starting again."""
MAX_NAMED = 5
MAX_GROUPS = 100_000
IDLE_S = 2.0
"""How long a trainer's connections to the workers stay open after its last rollout."""


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
    """The workers of a run. Rows for which no worker has room wait, in order."""

    def __init__(self, list_workers: ListWorkers, *, token: str | None = None, max_blocked_s: float = 0.0) -> None:
        self._list_workers, self._token, self._max_blocked_s = list_workers, token, max_blocked_s
        self._links: dict[str, WorkerLink] = {}
        self._groups: dict[str, WorkerLink] = {}
        """The worker of each group."""
        self._numbers = itertools.count()
        self._waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        """For a place in a worker, by agent."""
        self._ready_at = lease_time()
        """When each agent that rows wait for had a ready worker last."""
        self._listing: asyncio.Task[dict[str, BlockedRollout]] | None = None
        self._warned_full = self._warned_unready = False
        self._head_error: HeadServerError | None = None
        """Why the list of workers could not be read, the last time."""

    def _capacity(self, agent: str) -> int:
        """How many rollouts the ready workers with this agent take at once."""
        return sum(link.capacity for link in self._links.values() if link.is_ready and agent in link.agents)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Stay connected to all workers while the block runs."""
        await self._refresh()
        await self._wait_for_all()
        refreshing = asyncio.create_task(self._keep_refreshing())
        try:
            yield
        finally:
            refreshing.cancel()
            await asyncio.gather(refreshing, *(link.close() for link in self._links.values()), return_exceptions=True)

    async def _wait_for_all(self) -> None:
        """Give the workers a moment, so that the first one to answer does not get all the first rows."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WAIT_S):
                await asyncio.gather(*(link.answered.wait() for link in self._links.values()))

    async def attempt(self, row: Row, *, timeout_s: float, number: int, log: LogRequest | None = None) -> Outcome:
        """One attempt at a rollout, made by a worker."""
        request = RowRequest(next(self._numbers), row, float(timeout_s), number, log)
        link = self._of_group(row) or self._least_busy(row.agent)
        if link is None:
            try:
                link = await self._wait_for_room(row.agent)
            except ConfigError as error:
                return failed_attempt(request, cause="input", message=str(error), server=row.agent, retryable=False)
        if row.group:
            self._remember(row.group, link)
        pid = link.pid
        try:
            outcome = await link.send(request)
        except BaseException:
            link.cancel(request.number)
            raise
        if isinstance(outcome, NoResult) and outcome.code == WORKER_LOST:
            return await self._explain_loss(outcome, request, link, pid)
        return outcome

    async def _explain_loss(self, lost: NoResult, request: RowRequest, link: WorkerLink, pid: int) -> NoResult:
        """The failure of a rollout whose worker died, with the reason if the worker was killed because a rollout
        blocked it: this one, which fails then, or another one."""
        blocked = (await self._blocked_workers()).get(link.address.rows)
        if blocked is None or blocked.pid != pid:
            return lost
        if blocked.name != rollout_name(request.number, request.row.id.row_hash):
            return replace(lost, code=WORKER_BLOCKED, message=f"{lost.message} Another one blocked it.")
        message = f"The code at {blocked.place} blocked {link.name} and could not be interrupted, so it was killed."
        return replace(lost, code=BLOCKED_CODE, message=message, retryable=False)

    async def _blocked_workers(self) -> dict[str, BlockedRollout]:
        """Why workers were killed. All who ask at the same time share one request."""
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
        """Called when a worker may have room, or refuses all rows."""
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
            self._links[rows] = WorkerLink(
                found[rows], token=self._token, on_change=self._on_change, max_blocked_s=self._max_blocked_s
            )


def _wake(waiting: "deque[asyncio.Future[None]]", count: int) -> None:
    """Let the first `count` of those that still wait go on."""
    while waiting and count > 0:
        turn = waiting.popleft()
        if not turn.done():
            turn.set_result(None)
            count -= 1


class TrainerDispatch:
    """Makes the rollouts of a trainer's rows: by the workers of its run, if it has any, else by the agent's address.
    Connections to the workers are opened for the first row, and closed when no more rows come."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._workers: asyncio.Future[WorkerPool | None] | None = None
        self._holding: asyncio.Task[None] | None = None
        self._in_flight = self._made = 0
        self._lost_rows = LostRows()

    async def run(self, row: Row, *, timeout_s: float) -> dict[str, Any]:
        """The result of an agent for a row. Raises RolloutError if there is none."""
        self._in_flight += 1
        try:
            workers = await self._connect()
            if workers is not None:
                return await self._run_in_worker(workers, row, timeout_s)
            try:
                return parse_scored(await call_agent(self._client, row.agent, row.body, timeout_s=timeout_s))
            except ConfigError as error:
                raise no_such_agent(row.agent, error) from error
            except RolloutError as error:
                error.response = as_json(error.response)
                raise
        finally:
            self._in_flight -= 1
            self._made += 1

    async def _run_in_worker(self, workers: WorkerPool, row: Row, timeout_s: float) -> dict[str, Any]:
        losses = RowLosses(row.id.row_hash)
        while True:
            make = partial(workers.attempt, row, timeout_s=timeout_s, number=losses.lost + 1)
            outcome = await self._lost_rows.dispatch(make, losses)
            if isinstance(outcome, Scored):
                result: dict[str, Any] = orjson.loads(outcome.record)
                return result
            if outcome.code not in LOST_CODES or not self._lost_rows.may_retry(losses, outcome):
                raise rollout_error(outcome)

    async def _connect(self) -> WorkerPool | None:
        if self._workers is None:
            self._workers = asyncio.get_running_loop().create_future()
            self._holding = asyncio.create_task(self._hold(self._workers))
        return await asyncio.shield(self._workers)

    async def _hold(self, opened: "asyncio.Future[WorkerPool | None]") -> None:
        """Stay connected while rows come."""
        try:
            async with open_dispatch(self._client) as workers:
                opened.set_result(workers)
                made = -1
                while self._in_flight or made != self._made:
                    made = self._made
                    await asyncio.sleep(IDLE_S)
        except HeadServerError as error:
            logger.debug("rows go to the agents directly: %s", error)
            opened.set_result(None)
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            self._workers = None
            opened.cancel()
