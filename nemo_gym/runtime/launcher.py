"""Start the servers of a config, supervise them, and stop them. The sockets are bound here, before any worker starts,
and stay bound while a worker is restarted, so no port is lost and no caller is refused."""

import asyncio
import contextlib
import logging
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf

from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import TOKEN_HEADER, ServerClient, base_url
from nemo_gym.config.loading import ServerSpec, dump, server_instances
from nemo_gym.config.ports import search_port
from nemo_gym.config.secrets import Secrets, process_secrets, set_process_secrets
from nemo_gym.errors import PortError, StartupError
from nemo_gym.runtime.head_server import HeadServer, ServerInstanceDisplayConfig
from nemo_gym.runtime.run_metrics import run_metrics
from nemo_gym.runtime.stack import StackSpec
from nemo_gym.runtime.supervisor import WorkerProcess
from nemo_gym.runtime.venvs import VenvSettings, python_for
from nemo_gym.server.limits import ServerLimits
from nemo_gym.server.request_checks import is_loopback
from nemo_gym.server.uvicorn_runner import bind, serving

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 300.0
HEALTH_CHECK_EVERY_S = 0.1
MAX_PORT_TRIES = 200


class Launcher:
    """An async context manager: inside it the servers of `config` run, and all of them are ready."""

    def __init__(self, config: DictConfig, *, echo: Callable[[str], None]) -> None:
        self.config, self._echo = config.copy(), echo
        self._instances = server_instances(config)
        warn_about_ignored_keys(config, self._instances)
        self.token: str | None = config.get("run_token") or (
            None if all(is_loopback(host) for host in self._hosts()) else secrets.token_urlsafe(24)
        )
        if self.token:
            set_process_secrets(process_secrets() | Secrets(frozenset((self.token,))))
        self._secret = secrets.token_hex(32)
        self._sockets: dict[str, socket.socket] = {}
        self._workers: dict[str, WorkerProcess] = {}
        self._exit = contextlib.AsyncExitStack()
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._exit.aclose()

    async def watch(self) -> None:
        """Wait until a worker is given up, and raise why."""
        if self._watch is not None:
            await asyncio.shield(self._watch)

    def client(self) -> ServerClient:
        """A client of the servers, with the run's token."""
        return ServerClient(global_config_dict=self.config, token=self.token, http=HttpClient.of(self.config))

    def running(self) -> list[ServerInstanceDisplayConfig]:
        """The servers, as `ng_status` shows them."""
        return [self._displayed(instance) for instance in self._instances]

    def health(self) -> dict[str, str]:
        """'up' or 'down' for each server."""
        return {name: "up" if worker.pid and worker.was_ready else "down" for name, worker in self._workers.items()}

    async def metrics(self) -> bytes:
        """The metrics of all processes of the run, in the text format of Prometheus."""
        first = {worker: name for name, worker in reversed(self._workers.items())}
        addresses = {str(worker.spec.worker): _address(self._sockets[name]) for worker, name in first.items()}
        return await run_metrics(addresses, token=self.token)

    async def _open(self) -> None:
        head = self._bind_head()
        self.config.head_server.port = head.getsockname()[1]
        for instance in self._instances:
            self._sockets[instance.name] = self._exit.enter_context(self._bind(instance))
        self._write_addresses()
        published = dump(self.config, masked=True)
        limits = ServerLimits.of(self._settings())
        app = HeadServer(
            config_yaml=lambda: published,
            instances=self.running,
            health=self.health,
            metrics=self.metrics,
            token=self.token,
            limits=limits,
        )
        await self._exit.enter_async_context(serving({head.getsockname()[1]: app}, [head], limits))
        groups = await asyncio.to_thread(grouped, self._instances, VenvSettings.of(self._settings()))
        workers = [self._worker(index, python, group) for index, (python, group) in enumerate(groups)]
        for worker in workers:
            self._exit.push_async_callback(worker.stop)
        self._watch = asyncio.create_task(_watch_all(workers))
        self._exit.push_async_callback(_cancelled, self._watch)
        await self._until_ready()

    def _worker(self, index: int, python: str, group: Sequence[ServerSpec]) -> WorkerProcess:
        spec = StackSpec(
            servers=[self._bound(instance) for instance in group],
            config=self._settings(),
            addresses={name: base_url(*_address(bound)) for name, bound in self._sockets.items()},
            secret=self._secret,
            token=self.token,
            worker=index,
            secrets=process_secrets().to_json(),
        )
        label = group[0].name if len(group) == 1 else f"worker {index}"
        worker = WorkerProcess(label, spec, python=python, echo=self._echo)
        self._workers.update({instance.name: worker for instance in group})
        return worker

    async def _until_ready(self) -> None:
        """Wait for a health check of every server. The sockets exist already, so one request each is enough."""
        if self._watch is None:
            raise AssertionError("the workers are not started")
        asking = asyncio.gather(*(self._check_health(name) for name in self._sockets))
        waiting: set[asyncio.Future[Any]] = {asking, self._watch}
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._watch in done:
            await _cancelled(asking)
            await self._watch
        await asking
        for worker in self._workers.values():
            worker.was_ready = True

    async def _check_health(self, name: str) -> None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                answer = await _health(*_address(self._sockets[name]), token=self.token)
        except TimeoutError as error:
            raise StartupError(f"'{name}' was not ready within {READY_TIMEOUT_S:g} s.") from error
        if b" 200 " not in answer.splitlines()[0]:
            raise StartupError(f"The health check of '{name}' failed: {answer[:300].decode(errors='replace')}")

    def _hosts(self) -> Iterator[str]:
        yield self.config.head_server.host
        yield from (instance.host for instance in self._instances)

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
            return bind(instance.host, instance.port)

        def try_port(port: int) -> socket.socket | None:
            with contextlib.suppress(PortError):
                return bind(instance.host, port)
            return None

        low, high, taken = (self.config.get(key) for key in ("port_range_low", "port_range_high", "disallowed_ports"))
        return search_port(try_port, low=low, high=high, disallowed=taken or (), max_tries=MAX_PORT_TRIES)

    def _bound(self, instance: ServerSpec) -> ServerSpec:
        """The server with the port and the descriptor of its socket."""
        listening = self._sockets[instance.name]
        return replace(instance, port=_address(listening)[1], fd=listening.fileno())

    def _write_addresses(self) -> None:
        for instance in self._instances:
            host, port = _address(self._sockets[instance.name])
            block = self.config[instance.name][instance.server_type][instance.implementation]
            OmegaConf.update(block, "host", host, force_add=True)
            OmegaConf.update(block, "port", port, force_add=True)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = OmegaConf.to_container(self.config, resolve=True)  # type: ignore[assignment]
        return settings

    def _displayed(self, instance: ServerSpec) -> ServerInstanceDisplayConfig:
        host, port = _address(self._sockets[instance.name])
        worker = self._workers.get(instance.name)
        return ServerInstanceDisplayConfig(
            process_name=instance.name,
            server_type=instance.server_type,
            name=instance.implementation,
            config_path=instance.name,
            dir_path=str(instance.folder),
            entrypoint=instance.entrypoint,
            host=host,
            port=port,
            url=base_url(host, port),
            pid=worker.pid if worker else None,
            start_time=worker.started_at if worker else None,
        )


def grouped(instances: Sequence[ServerSpec], venvs: VenvSettings | None = None) -> list[tuple[str, list[ServerSpec]]]:
    """The servers that share a process, by interpreter. Slow if a virtualenv has to be made."""
    shared: list[ServerSpec] = []
    groups: list[tuple[str, list[ServerSpec]]] = []
    for instance in instances:
        python = python_for(instance.folder, venvs)
        if python is None and instance.isolation == "shared":
            shared.append(instance)
        else:
            groups.append((python or sys.executable, [replace(instance, isolation="process")]))
    return [(sys.executable, shared), *groups] if shared else groups


def warn_about_ignored_keys(config: DictConfig, servers: Sequence[ServerSpec]) -> None:
    """Name the keys that are accepted but have no effect yet."""
    for server in servers:
        if (server.config.get("num_workers") or 1) > 1:
            logger.warning(
                "%s.num_workers has no effect yet: one process serves '%s'", server.config_path, server.name
            )


async def _watch_all(workers: Sequence[WorkerProcess]) -> None:
    """Supervise all workers until one is given up, then stop supervising the others."""
    tasks = [asyncio.create_task(worker.watch()) for worker in workers]
    try:
        for finished in asyncio.as_completed(tasks):
            await finished
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _health(host: str, port: int, *, token: str | None) -> bytes:
    """The raw response to a health check. Without an HTTP client, because importing one would take longer than all
    else that the supervisor does to start."""
    shown = f"{TOKEN_HEADER}: {token}\r\n" if token else ""
    question = f"GET /health HTTP/1.1\r\nhost: {host}\r\n{shown}connection: close\r\n\r\n".encode()
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer):
                writer.write(question)
                if answer := await reader.read():
                    return answer
        await asyncio.sleep(HEALTH_CHECK_EVERY_S)


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _address(bound: socket.socket) -> tuple[str, int]:
    host, port = bound.getsockname()[:2]
    return host, port
