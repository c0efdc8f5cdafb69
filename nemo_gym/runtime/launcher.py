"""Start the servers of a config, watch them, and stop them. The sockets are bound here, before anything starts, and
stay bound while a worker is started anew, so no port is lost and no caller refused."""

import asyncio
import contextlib
import random
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf

from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import TOKEN_HEADER, ServerClient, base_url
from nemo_gym.config.loading import ServerInstance, dump, server_instances
from nemo_gym.config.secrets import Secrets, process_secrets, set_process_secrets
from nemo_gym.errors import PortError, StartupError
from nemo_gym.runtime.head_server import HeadServer, ServerInstanceDisplayConfig
from nemo_gym.runtime.stack import ServerSpec, StackSpec
from nemo_gym.runtime.supervisor import WorkerProcess
from nemo_gym.runtime.venvs import python_for
from nemo_gym.server.limits import ServerLimits
from nemo_gym.server.request_checks import is_loopback
from nemo_gym.server.uvicorn_runner import bind, serving

READY_WITHIN_S = 300.0
ASK_AGAIN_AFTER_S = 0.1
MAX_PORT_TRIES = 200


class Launcher:
    """An async context manager: inside it the servers of `config` run, and all of them are ready."""

    def __init__(self, config: DictConfig, *, echo: Callable[[str], None]) -> None:
        self.config, self._echo = config.copy(), echo
        self._instances = server_instances(config)
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
        """Wait until a server is lost for good, and raise what happened."""
        if self._watch is not None:
            await asyncio.shield(self._watch)

    def client(self) -> ServerClient:
        """A client of the servers, with what it takes to be let in."""
        return ServerClient(global_config_dict=self.config, token=self.token, http=HttpClient.of(self.config))

    def running(self) -> list[ServerInstanceDisplayConfig]:
        """What runs where."""
        return [self._displayed(instance) for instance in self._instances]

    def health(self) -> dict[str, str]:
        """Whether each server is up."""
        return {name: "up" if worker.pid and worker.was_ready else "down" for name, worker in self._workers.items()}

    async def _open(self) -> None:
        head = self._bind_head()
        self.config.head_server.port = head.getsockname()[1]
        for instance in self._instances:
            self._sockets[instance.name] = self._exit.enter_context(self._bind(instance))
        self._note_addresses()
        published = dump(self.config, masked=True)
        limits = ServerLimits.of(self._settings())
        app = HeadServer(
            config_yaml=lambda: published,
            instances=self.running,
            health=self.health,
            token=self.token,
            limits=limits,
        )
        await self._exit.enter_async_context(serving({head.getsockname()[1]: app}, [head], limits))
        groups = await asyncio.to_thread(grouped, self._instances)
        workers = [self._worker(index, python, group) for index, (python, group) in enumerate(groups)]
        for worker in workers:
            self._exit.push_async_callback(worker.stop)
        self._watch = asyncio.create_task(_watch_all(workers))
        self._exit.push_async_callback(_cancelled, self._watch)
        await self._until_ready()

    def _worker(self, index: int, python: str, group: Sequence[ServerInstance]) -> WorkerProcess:
        bound = {instance.name: self._sockets[instance.name] for instance in group}
        held = [
            server_spec(instance, port=_address(bound[instance.name])[1], fd=bound[instance.name].fileno())
            for instance in group
        ]
        spec = StackSpec(
            servers=held,
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
        """Ask every server how it is. The sockets exist already, so one question each is enough."""
        if self._watch is None:
            raise AssertionError("asked before anything was started")
        asking = asyncio.gather(*(self._ask(name) for name in self._sockets))
        waiting: set[asyncio.Future[Any]] = {asking, self._watch}
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._watch in done:
            await _cancelled(asking)
            await self._watch
        await asking
        for worker in self._workers.values():
            worker.was_ready = True

    async def _ask(self, name: str) -> None:
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                answer = await _health(*_address(self._sockets[name]), token=self.token)
        except TimeoutError as error:
            raise StartupError(f"'{name}' was not ready within {READY_WITHIN_S:g} s.") from error
        if b" 200 " not in answer.splitlines()[0]:
            raise StartupError(f"'{name}' answered when asked how it is: {answer[:300]!r}")

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
                f"or give this one a port of its own, for all its commands: +head_server.port={port + 1}"
            ) from error

    def _bind(self, instance: ServerInstance) -> socket.socket:
        if instance.port:
            return bind(instance.host, instance.port)
        low, high = self.config.port_range_low, self.config.port_range_high
        taken = set(self.config.get("disallowed_ports") or ())
        candidates = [port for port in range(low, high + 1) if port not in taken]
        for port in random.sample(candidates, min(MAX_PORT_TRIES, len(candidates))):
            with contextlib.suppress(PortError):
                return bind(instance.host, port)
        raise PortError(
            f"No free port for '{instance.name}' on {instance.host} between {low} and {high}. "
            "Widen the range with +port_range_low=… and +port_range_high=…"
        )

    def _note_addresses(self) -> None:
        for instance in self._instances:
            host, port = _address(self._sockets[instance.name])
            block = self.config[instance.name][instance.server_type][instance.implementation]
            OmegaConf.update(block, "host", host, force_add=True)
            OmegaConf.update(block, "port", port, force_add=True)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = OmegaConf.to_container(self.config, resolve=True)  # type: ignore[assignment]
        return settings

    def _displayed(self, instance: ServerInstance) -> ServerInstanceDisplayConfig:
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


def server_spec(instance: ServerInstance, *, port: int, fd: int | None = None) -> ServerSpec:
    """A server as a worker is told of it."""
    return ServerSpec(
        name=instance.name,
        server_type=instance.server_type,
        implementation=instance.implementation,
        folder=str(instance.folder),
        entrypoint=instance.entrypoint,
        config={**instance.config, "port": port},
        fd=fd,
    )


def grouped(instances: Sequence[ServerInstance]) -> list[tuple[str, list[ServerInstance]]]:
    """Which servers share a process, and with which interpreter. Slow when a virtualenv has to be made."""
    shared: list[ServerInstance] = []
    groups: list[tuple[str, list[ServerInstance]]] = []
    for instance in instances:
        python = python_for(instance.folder)
        if python is None and instance.isolation == "shared":
            shared.append(instance)
        else:
            groups.append((python or sys.executable, [instance]))
    return [(sys.executable, shared), *groups] if shared else groups


async def _watch_all(workers: Sequence[WorkerProcess]) -> None:
    """Ends only by the loss of a worker: then all others are told to stop."""
    tasks = [asyncio.create_task(worker.watch()) for worker in workers]
    try:
        for finished in asyncio.as_completed(tasks):
            await finished
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _health(host: str, port: int, *, token: str | None) -> bytes:
    """What a server answers when asked how it is. Asked by hand, because a supervisor has no other use for an HTTP
    client, and importing one would take longer than all else it does to start."""
    shown = f"{TOKEN_HEADER}: {token}\r\n" if token else ""
    question = f"GET /health HTTP/1.1\r\nhost: {host}\r\n{shown}connection: close\r\n\r\n".encode()
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer):
                writer.write(question)
                if answer := await reader.read():
                    return answer
        await asyncio.sleep(ASK_AGAIN_AFTER_S)


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _address(bound: socket.socket) -> tuple[str, int]:
    host, port = bound.getsockname()[:2]
    return host, port
