"""Start the servers of a config, supervise them, and stop them. The sockets are bound here, before any worker starts,
and stay bound while a worker is restarted, so no port is lost and no caller is refused."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.client.head import RUN_TOKEN_ENV_VAR, BlockedRollout, WorkerAddress
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient, base_url
from nemo_gym.common.exceptions import raise_first_error
from nemo_gym.common.interrupts import interrupts
from nemo_gym.common.metrics import Family
from nemo_gym.common.plugins import plugin
from nemo_gym.common.redaction import one_line, redact
from nemo_gym.common.retry import backoff_s
from nemo_gym.common.words import exit_reason
from nemo_gym.config.keys import RAY_HEAD_NODE_ADDRESS_KEY_NAME
from nemo_gym.config.loading import ServerSpec, dump, search_port, server_instances
from nemo_gym.config.secrets import Secrets, process_secrets, set_process_secrets
from nemo_gym.config.sources import resolve
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import PortError, StartupError
from nemo_gym.runtime.class_loader import Group, grouped, session_secret, shared_servers, wants_ray, worker_count
from nemo_gym.runtime.fingerprint import make_fingerprint
from nemo_gym.runtime.head_server import HeadServer, ServerInstanceDisplayConfig, run_metrics
from nemo_gym.runtime.membership import Members, WorkerPlan
from nemo_gym.runtime.requirements import VenvSettings
from nemo_gym.runtime.stack import EXIT_CONFIG, READY, OwnedResources, StackSpec
from nemo_gym.server.guard_process import BLOCKED
from nemo_gym.server.request_checks import ServerLimits, is_loopback
from nemo_gym.server.uvicorn_runner import bind, serving

logger = logging.getLogger(__name__)

WORKER_MODULE = "nemo_gym.rollouts.worker"
"""The program of a worker."""
LAST_LINES = 40
STOP_AFTER_S = 5.0
"""Longer than uvicorn_runner.GRACE_S, which requests in flight get."""
KILL_AFTER_S = 3.0
MAX_DEATHS = 60
DEATHS_WITHIN_S = 300.0
"""A few rows that kill their worker, or somebody who does, stay far below this. A worker that cannot live does not."""
MAX_BACKOFF_ATTEMPT = 3
_READY_LINE, _BLOCKED_LINE = one_line(READY), one_line(BLOCKED)


@dataclass(slots=True)
class Restarts:
    """Limits restarts: a worker that died too often within a few minutes is not started again."""

    deaths: deque[float] = field(default_factory=deque)

    def pause_after(self, now: float) -> float | None:
        """The pause before the next start, or None to give up."""
        self.deaths.append(now)
        while self.deaths[0] < now - DEATHS_WITHIN_S:
            self.deaths.popleft()
        return None if len(self.deaths) > MAX_DEATHS else backoff_s(min(len(self.deaths), MAX_BACKOFF_ATTEMPT)) / 2


class WorkerProcess:
    """Starts a worker, keeps its last lines of output, restarts it when it dies, and stops it."""

    def __init__(
        self,
        label: str,
        spec: StackSpec,
        address: WorkerAddress,
        *,
        python: str,
        echo: Callable[[str], None],
    ) -> None:
        self.label, self.spec, self._address, self._python, self._echo = label, spec, address, python, echo
        self.started_at = 0.0
        self.ready = asyncio.Event()
        """Set while the worker serves."""
        self._was_ready = False
        self._process: asyncio.subprocess.Process | None = None
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._blocked: BlockedRollout | None = None
        self._restarts = Restarts()
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def address(self) -> WorkerAddress:
        """Its address for the head server's list."""
        return self._address._replace(pid=self.pid, blocked=self._blocked)

    @property
    def names(self) -> str:
        return ", ".join(f"'{server}'" for server in self._address.servers)

    async def watch(self) -> None:
        """Keep the worker running until `stop`. Raises StartupError if restarting it makes no sense."""
        while not self._stopping:
            code = await self._run_once()
            if self._stopping:
                return
            words = "\n".join(f"  {line}" for line in self._last) or "  (it printed nothing)"
            ended = f"The worker with {self.names} ended with {exit_reason(code)}. Its last output:\n{words}"
            if code == EXIT_CONFIG:  # what it printed says all
                raise StartupError("\n".join(self._last))
            if not self._was_ready:
                raise StartupError(ended)
            pause = self._restarts.pause_after(time.monotonic())
            if pause is None:
                raise StartupError(f"{ended}\nIt died more than {MAX_DEATHS} times within {DEATHS_WITHIN_S:g} s.")
            logger.error("%s\nRestarting it in %.1f s.", ended, pause)
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        """Stop the worker and all it started: close its standard input, then SIGTERM, then SIGKILL."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        for limit_s, number in ((STOP_AFTER_S, signal.SIGTERM), (KILL_AFTER_S, signal.SIGKILL)):
            try:
                await asyncio.wait_for(process.wait(), limit_s)
                break
            except TimeoutError:
                logger.warning("the worker with %s does not stop; sending %s", self.names, number.name)
                _signal_group(process.pid, number)
        await process.wait()
        _signal_group(process.pid, signal.SIGKILL)
        interrupts.process_groups.discard(process.pid)

    async def _run_once(self) -> int:
        self._last.clear()
        fds = [*(server.fd for server in self.spec.servers), self.spec.http_fd, self.spec.rows_fd]
        self._process = process = await asyncio.create_subprocess_exec(
            *(self._python, "-P", "-m", WORKER_MODULE),  # -P: a `nemo_gym/` in the working directory is not ours
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=[fd for fd in fds if fd is not None],
            start_new_session=True,
        )
        self.started_at = time.time()
        if process.stdin is None or process.stdout is None:
            raise AssertionError("standard input and output are pipes")
        # a process that is killed at once has closed its pipe; uvloop says that with a RuntimeError
        with contextlib.suppress(ConnectionError, RuntimeError):
            process.stdin.write(self.spec.to_json() + b"\n")
            await process.stdin.drain()
        interrupts.process_groups.add(process.pid)
        reading = asyncio.create_task(self._read_output(process.stdout))
        try:
            code = await process.wait()
            _signal_group(process.pid, signal.SIGKILL)  # a child that the worker forked keeps its output open
            await reading
        finally:
            reading.cancel()
            self.ready.clear()
        interrupts.process_groups.discard(process.pid)
        return code

    async def _read_output(self, stdout: asyncio.StreamReader) -> None:
        """Read the output line by line. An overlong line is cut, not an error."""
        while True:
            try:
                data = await stdout.readline()
            except ValueError:
                data = b"... (a line too long to show)\n"
            if not data:
                return
            line = one_line(redact(data.decode(errors="replace").rstrip("\n")))
            if line == _READY_LINE:
                self._was_ready = True
                self.ready.set()
            elif line.startswith(_BLOCKED_LINE) and (process := self._process) is not None:
                *name, place = line.removeprefix(_BLOCKED_LINE).split(" ", 3)
                self._blocked = BlockedRollout(process.pid, " ".join(name), place)
            else:
                self._last.append(line)
                self._echo(f"({self.label}) {line}")


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def default_echo(line: str) -> None:
    sys.stderr.write(f"{line}\n")


READY_TIMEOUT_S = 300.0
MAX_PORT_TRIES = 200


class Launcher(OwnedResources):
    """An async context manager: inside it the servers of `config` run, and all of them are ready."""

    def __init__(self, config: DictConfig, *, echo: Callable[[str], None]) -> None:
        super().__init__()
        self.config, self._echo = config.copy(), echo
        self._instances = server_instances(config)
        self.token: str | None = config.get("run_token") or os.environ.get(RUN_TOKEN_ENV_VAR)
        hosts = (config.head_server.host, *(instance.host for instance in self._instances))
        if not self.token and (wants_ray(config) or not all(map(is_loopback, hosts))):
            self.token = secrets.token_urlsafe(24)
        if self.token:
            set_process_secrets(process_secrets() | Secrets(frozenset((self.token,))))
        self._secret = session_secret(self.token)
        self._members = Members()
        self._workers: list[WorkerProcess] = []
        self._watch: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Wait until a worker is given up, and raise why."""
        if self._watch is not None:
            await asyncio.shield(self._watch)

    def client(self) -> ServerClient:
        """A client of the servers, with the run's token."""
        return ServerClient(
            head_server_config=BaseServerConfig.model_validate(dict(self.config.head_server)),
            global_config_dict=self.config,
            token=self.token,
            http=HttpClient.of(self.config),
        )

    def running(self) -> list[ServerInstanceDisplayConfig]:
        """The servers, as `ng_status` shows them."""
        return [self._displayed(instance) for instance in self._instances]

    def health(self) -> dict[str, str]:
        """'up' for each server that at least one worker serves, else 'down'."""
        up = {server.name for worker in self._workers if worker.ready.is_set() for server in worker.spec.servers}
        return {instance.name: "up" if instance.name in up else "down" for instance in self._instances}

    def workers(self) -> list[dict[str, Any]]:
        """The workers, as the head server lists them."""
        own = [worker.address for worker in self._workers if worker.spec.rows_fd is not None]
        return [address.to_json() for address in (*own, *self._members.addresses())]

    async def metrics(self) -> list[Family]:
        """Return the metrics of all processes of the run."""
        workers = (*(worker.address for worker in self._workers), *self._members.addresses())
        return await run_metrics({str(address.worker): address.url for address in workers}, token=self.token)

    async def _open(self) -> None:
        if wants_ray(self.config):
            cluster = plugin("ray").connected(self.config)
            self.config[RAY_HEAD_NODE_ADDRESS_KEY_NAME] = await self._exit.enter_async_context(cluster)
        head = self._bind_head()
        self.config.head_server.port = head.getsockname()[1]
        self._instances = [self._bound(instance) for instance in self._instances]
        published = dump(self.config, masked=True)
        settings: dict[str, Any] = resolve(self.config, missing_ok=True)
        limits = ServerLimits.of(settings)
        fingerprint = await asyncio.to_thread(make_fingerprint, settings) if self.token else None
        self._members = Members(fingerprint)
        app = HeadServer(
            config_yaml=lambda: published,
            instances=self.running,
            health=self.health,
            metrics=self.metrics,
            workers=self.workers,
            register=self._members.register,
            token=self.token,
            limits=limits,
        )
        await self._exit.enter_async_context(serving({head.getsockname()[1]: app}, [head], limits))
        groups = await asyncio.to_thread(grouped, self._instances, VenvSettings.of(settings))
        spec = StackSpec(
            servers=[],
            config=settings,
            addresses={each.name: base_url(each.host, each.port or 0) for each in self._instances},
            secret=self._secret,
            token=self.token,
            secrets=process_secrets().to_json(),
        )
        for group in groups:
            self._workers += self._add_workers(group, spec)
        self._exit.push_async_callback(self._stop_workers)
        self._watch = asyncio.create_task(_watch_all(self._workers))
        self._exit.push_async_callback(_cancelled, self._watch)
        await self._until_ready(self._watch)
        if wants_ray(self.config):
            servers = [replace(server, fd=None) for server in shared_servers(groups)]
            head_url = base_url(*_address(head))
            stack = replace(spec, servers=servers)
            plan = WorkerPlan(stack=stack, fingerprint=fingerprint, head_url=head_url, host=servers[0].host)
            await self._exit.enter_async_context(plugin("ray").ray_workers(plan, config=settings))

    def _add_workers(self, group: Group, spec: StackSpec) -> list[WorkerProcess]:
        """Add the workers with these servers. They share the servers' sockets, and each has two of its
        own: one for requests, so that others can forward to it, and one for rows of collectors."""
        host, first = group.servers[0].host, len(self._workers)
        on_ray = wants_ray(self.config) and group.is_shared  # then the rows go to the actors
        count = 1 if on_ray else worker_count(self.config, group.servers)
        own = [[self._exit.enter_context(bind(host, 0)) for _ in range(2)] for _ in range(count)]
        names = tuple(server.name for server in group.servers)
        addresses = [
            WorkerAddress(index, base_url(*_address(http)), base_url(*_address(rows)).removeprefix("http://"), names)
            for index, (http, rows) in enumerate(own, first)
        ]
        label = names[0] if len(names) == count == 1 else "worker {}"
        return [
            WorkerProcess(
                label.format(address.worker),
                replace(
                    spec,
                    servers=group.servers,
                    worker=address.worker,
                    http_fd=http.fileno(),
                    rows_fd=None if on_ray else rows.fileno(),
                    others={str(each.worker): each.url for each in addresses if each != address},
                ),
                address,
                python=group.python,
                echo=self._echo,
            )
            for address, (http, rows) in zip(addresses, own, strict=True)
        ]

    async def _stop_workers(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    async def _until_ready(self, watch: asyncio.Task[None]) -> None:
        """Wait until every worker says that it serves."""
        ready = asyncio.gather(*(worker.ready.wait() for worker in self._workers))
        waiting: set[asyncio.Future[Any]] = {ready, watch}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=READY_TIMEOUT_S)
        finally:
            await _cancelled(ready)
        if watch in done:
            await watch
        if not done:
            names = "; ".join(worker.names for worker in self._workers if not worker.ready.is_set())
            raise StartupError(f"Not ready within {READY_TIMEOUT_S:g} s: {names}.")

    def _bind_head(self) -> socket.socket:
        host, port = self.config.head_server.host, self.config.head_server.port
        try:
            return self._exit.enter_context(bind(host, port))
        except PortError as error:
            raise PortError(
                f"{error} The head server of every run listens there. If another run is up, stop it with `ng_stop`, "
                f"or give this one another port, for all its commands: +head_server.port={port + 1}"
            ) from error

    def _bind(self, instance: ServerSpec) -> socket.socket:
        if instance.port:
            try:
                return bind(instance.host, instance.port)
            except PortError as error:
                raise PortError(f"{error} Give '{instance.name}' another port, or none.") from error

        def try_port(port: int) -> socket.socket | None:
            with contextlib.suppress(PortError):
                return bind(instance.host, port)
            return None

        low, high, taken = (self.config.get(key) for key in ("port_range_low", "port_range_high", "disallowed_ports"))
        return search_port(try_port, low=low, high=high, disallowed=taken or (), max_tries=MAX_PORT_TRIES)

    def _bound(self, instance: ServerSpec) -> ServerSpec:
        """The server with the address and the descriptor of its socket. The address is in the configuration, too."""
        bound = self._exit.enter_context(self._bind(instance))
        host, port = _address(bound)
        block = self.config[instance.name][instance.server_type][instance.implementation]
        OmegaConf.update(block, "host", host, force_add=True)
        OmegaConf.update(block, "port", port, force_add=True)
        return replace(instance, host=host, port=port, fd=bound.fileno())

    def _displayed(self, instance: ServerSpec) -> ServerInstanceDisplayConfig:
        workers = [worker for worker in self._workers if instance.name in {each.name for each in worker.spec.servers}]
        worker = next((worker for worker in workers if worker.pid), None)
        return ServerInstanceDisplayConfig(
            process_name=instance.name,
            server_type=instance.server_type,
            name=instance.implementation,
            config_path=instance.name,
            dir_path=str(instance.folder),
            entrypoint=instance.entrypoint,
            host=instance.host,
            port=instance.port,
            url=base_url(instance.host, instance.port or 0),
            pid=worker.pid if worker else None,
            start_time=worker.started_at if worker else None,
            num_workers=len(workers) if len(workers) > 1 else None,
        )


async def _watch_all(workers: Sequence[WorkerProcess]) -> None:
    """Supervise all workers until one is given up, then stop supervising the others."""
    with raise_first_error():
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.watch())


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _address(bound: socket.socket) -> tuple[str, int]:
    host, port = bound.getsockname()[:2]
    return host, port
