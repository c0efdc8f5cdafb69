"""Workers that join a run from outside: on other machines, started by Slurm, Kubernetes or Ray.

A worker registers at the head server and renews its lease again and again. One that stops renewing is dropped from the
list, and its rollouts are made again by others; if it comes back, it joins again. A worker whose run is gone stops."""

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict

from nemo_gym.client.head import WorkerAddress, base_url, get_from_head, run_token, token_headers
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.deadline import lease_time
from nemo_gym.common.retry import backoff_s
from nemo_gym.common.words import indented_list
from nemo_gym.config.loading import server_instances
from nemo_gym.config.secrets import Secrets, process_secrets, set_process_secrets
from nemo_gym.config.sources import resolve
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import ConfigError, GymError, HeadServerError, UpstreamError, message_in
from nemo_gym.runtime.class_loader import grouped, session_secret, shared_servers
from nemo_gym.runtime.fingerprint import Fingerprint, make_fingerprint
from nemo_gym.runtime.requirements import VenvSettings
from nemo_gym.runtime.stack import StackSpec
from nemo_gym.server.uvicorn_runner import bind

logger = logging.getLogger(__name__)

LEASE_S = 15.0
RENEW_EVERY_S = 4.0
JOIN_TIMEOUT_S = 600.0
"""Seconds for which a worker looks for its run: a cluster starts its nodes in any order."""
GIVE_UP_AFTER_S = 60.0
"""Seconds after which a worker stops if nobody listens at the address of its run."""
SILENT_AFTER_S = 600.0
"""Seconds after which it stops if its run does not answer: the run may be stopped, or its machine suspended."""
FIRST_INDEX = 1000
"""The first index of workers that join. Those that the run starts itself have lower ones."""


class Registration(BaseModel):
    """The request of a worker to join: its addresses, servers and fingerprint."""

    model_config = ConfigDict(frozen=True)

    worker: int | None = None
    """The worker's index, if it has one already. With a fingerprint, it joins again with this index."""
    url: str
    rows: str
    servers: tuple[str, ...]
    pid: int | None = None
    leaves: bool = False
    fingerprint: Fingerprint | None = None
    """The fingerprint of its servers. Not sent to renew a lease."""


class Members:
    """The workers that have joined, each until its lease ends. Those with other servers than the run are refused."""

    def __init__(
        self,
        fingerprint: Fingerprint | None = None,
        *,
        lease_s: float | None = None,
        clock: Callable[[], float] = lease_time,
    ) -> None:
        self._fingerprint, self._clock = fingerprint, clock
        self._lease_s = LEASE_S if lease_s is None else lease_s
        self._indices = itertools.count(FIRST_INDEX)
        self._members: dict[int, tuple[WorkerAddress, float]] = {}

    def register(self, body: bytes) -> dict[str, Any]:
        """Add or renew a worker; the reply is its index. A lease that has ended is not renewed; the worker may join
        again with the index that it had, unless another worker has it now."""
        asked = Registration.model_validate_json(body)
        members, worker = {each.worker for each in self.addresses()}, asked.worker
        if worker is None or asked.fingerprint is not None:
            worker = self._join(asked, members)
        elif worker not in members:
            return {"worker": None}
        if asked.leaves:
            self._members.pop(worker, None)
            return {"worker": None}
        address = WorkerAddress(worker, asked.url, asked.rows, asked.servers, asked.pid)
        self._members[worker] = address, self._clock() + self._lease_s
        return {"worker": worker}

    def _join(self, asked: Registration, members: set[int]) -> int:
        if self._fingerprint is not None:
            _check_fingerprint(asked.fingerprint, self._fingerprint)
        worker = asked.worker
        if worker is None or worker < FIRST_INDEX or worker in members:
            worker = next(index for index in self._indices if index not in members)
        logger.info("worker %d joined from %s", worker, asked.url)
        return worker

    def addresses(self) -> list[WorkerAddress]:
        now = self._clock()
        for worker in [worker for worker, (_, ends_at) in self._members.items() if ends_at < now]:
            logger.warning("worker %d has not renewed its lease and is dropped", worker)
            del self._members[worker]
        return [address for address, _ in self._members.values()]


def _check_fingerprint(found: Fingerprint | None, expected: Fingerprint) -> None:
    changes = ["nemo_gym: an older version in this worker"] if found is None else found.differences(expected)
    if changes:
        raise ConfigError(
            "The servers of this worker are not those of the run, so their rollouts do not belong together:\n"
            f"{indented_list(changes)}\n"
            "Start it with the same code, config_paths and overrides as `ng_run`. Only addresses, ports, secrets and "
            "folders for logs, caches and output may differ."
        )


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
        """Renew the lease until `stop` is set, which happens here if the run is gone or refuses this worker. Then give
        it back, so that no more rows are sent here."""
        renewed_at = lease_time()
        try:
            while not await _is_set_within(stop, RENEW_EVERY_S):
                try:
                    await self._renew()
                    renewed_at = lease_time()
                except GymError as error:
                    logger.warning("the lease could not be renewed: %s", error)
                    if _is_gone(error, silent_s=lease_time() - renewed_at):
                        logger.error("the run at %s is gone, so this worker stops", self._url)
                        break
        finally:
            stop.set()
        try:
            await self._register(fingerprint=None, leaves=True)
        except GymError as error:
            logger.debug("could not leave: %s", error)

    async def _renew(self) -> None:
        """Renew the lease. If the run has dropped this worker, or was started again, join it again."""
        if await self._register(fingerprint=None) is not None:
            return
        logger.warning("the run at %s has dropped this worker, which joins it again", self._url)
        given = await self._register()
        if given != self._registration.worker:  # its sessions are known by its index
            await self._register(worker=given, fingerprint=None, leaves=True)
            raise HeadServerError(f"Another worker of the run at {self._url} has the index of this one now.")

    async def _register(self, **changes: Any) -> int | None:
        reply = await self._http.fetch(
            "POST",
            self._url,
            body=self._registration.model_copy(update=changes).model_dump_json().encode(),
            headers=self._headers,
            timeout_s=LEASE_S / 2,
            use_proxy=False,
        )
        if reply.status == 409:
            raise ConfigError(f"The run at {self._url} refused this worker. {message_in(reply.text)}")
        if reply.status in (401, 403, 413, 421, 422):
            raise HeadServerError(f"The run at {self._url} refused this worker: {reply.text[:500]}")
        if reply.status != 200:
            raise UpstreamError(self._url, reply.status, reply.text)
        worker: int | None = reply.json()["worker"]
        return worker


def _is_gone(error: GymError, *, silent_s: float) -> bool:
    """True if the run refuses the worker, or has not answered for too long."""
    if not isinstance(error, UpstreamError):
        return True
    nobody_listens = isinstance(error.__cause__, ConnectionRefusedError)
    return silent_s > (GIVE_UP_AFTER_S if nobody_listens else SILENT_AFTER_S)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The settings of a worker that joins. Pickled if it travels to another machine."""

    stack: StackSpec
    fingerprint: Fingerprint | None
    """The fingerprint of the servers in `stack`. A worker without one cannot join a run that has one."""
    head_url: str
    host: str
    """The address that it listens on, and by which the run reaches it."""
    port: int = 0
    rows_port: int = 0


def plan_worker(config: DictConfig, *, token: str, host: str | None, port: int = 0, rows_port: int = 0) -> WorkerPlan:
    """The plan of a worker with this configuration. Slow if a virtualenv has to be made."""
    settings: dict[str, Any] = resolve(config, missing_ok=True)
    groups = grouped(server_instances(config), VenvSettings.of(settings))
    servers = shared_servers(groups)
    head = BaseServerConfig.model_validate(dict(config.head_server))
    head_url = base_url(head.host, head.port)
    others = [server.name for group in groups for server in group.servers if not group.is_shared]
    set_process_secrets(process_secrets() | Secrets(frozenset((token,))))
    stack = StackSpec(
        servers=servers,
        config=settings,
        addresses=_addresses(others, head_url, token),
        secret=session_secret(token),
        token=token,
    )
    host = _reachable(host or servers[0].host)
    return WorkerPlan(
        stack=stack,
        fingerprint=make_fingerprint(settings),
        head_url=head_url,
        host=host,
        port=port,
        rows_port=rows_port,
    )


def _reachable(host: str) -> str:
    if host in ("", "0.0.0.0", "::"):
        raise ConfigError(
            f"The worker would listen on '{host}', an address by which the run cannot reach it. Set "
            "+worker_host to this machine's address, or +use_absolute_ip=true."
        )
    return host


def token_of(config: DictConfig) -> str:
    """The token of the run that `config` names."""
    token = config.get("run_token") or run_token(config.head_server.port)
    if not token:
        raise ConfigError(
            "A worker joins a run with the run's token, and there is none. Set NEMO_GYM_RUN_TOKEN to the same text "
            "here and where the run starts."
        )
    return str(token)


ServeStack = Callable[[StackSpec, asyncio.Event, Callable[[], None]], Awaitable[None]]
"""`nemo_gym.rollouts.worker.serve`: serves a stack until the event is set, and says when it is ready."""


async def join_and_serve(
    plan: WorkerPlan, serve: ServeStack, stop: asyncio.Event, on_ready: Callable[[int], None]
) -> None:
    """Join the run and serve until `stop` is set or the run is gone."""
    async with contextlib.AsyncExitStack() as opened:
        http, rows = (bind(plan.host, port) for port in (plan.port, plan.rows_port))
        url, rows_url = (base_url(*bound.getsockname()[:2]) for bound in (http, rows))
        registration = Registration(
            url=url,
            rows=rows_url.removeprefix("http://"),
            servers=tuple(server.name for server in plan.stack.servers),
            pid=os.getpid(),
            fingerprint=plan.fingerprint,
        )
        client = await opened.enter_async_context(HttpClient.of(plan.stack.config))
        membership = Membership(client, plan.head_url, plan.stack.token, registration)
        index = await membership.join()
        spec = replace(plan.stack, worker=index, http_fd=http.detach(), rows_fd=rows.detach())
        leased = asyncio.create_task(membership.keep(stop))
        try:
            await serve(spec, stop, lambda: on_ready(index))
        finally:
            leased.cancel()
            await asyncio.gather(leased, return_exceptions=True)


def _addresses(names: list[str], head_url: str, token: str) -> dict[str, str]:
    if not names:
        return {}
    text = orjson.loads(get_from_head(head_url, "/global_config_dict_yaml", token=token))
    client = ServerClient(global_config_dict=OmegaConf.create(text))
    return {name: client.url_of(name) for name in names}
