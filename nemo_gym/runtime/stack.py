"""The servers of a config that share an interpreter, as live objects that call each other directly."""

import asyncio
import hmac
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson
from pydantic import ValidationError

from nemo_gym.client.head import list_workers
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.forks import ending_forks
from nemo_gym.common.interrupts import interrupts
from nemo_gym.common.plugins import plugin
from nemo_gym.compute.pool import Compute
from nemo_gym.config.keys import HEAD_SERVER_KEY_NAME, RAY_HEAD_NODE_ADDRESS_KEY_NAME
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.config.types import ServerSpec as ServerSpec
from nemo_gym.config.validation import STRICT, drop_unknown_keys, error_lines
from nemo_gym.errors import ConfigError
from nemo_gym.runtime.class_loader import children_can_import, load_server_class
from nemo_gym.runtime.requirements import check_extra, imports_of
from nemo_gym.server.app import ServerApp
from nemo_gym.server.metrics import WorkerMetrics
from nemo_gym.server.request_checks import ServerLimits
from nemo_gym.server.watchdog import Handlers, Watchdog


class OwnedResources:
    """An async context manager that opens what it owns in `_open`, and closes all of it, also if opening fails."""

    def __init__(self) -> None:
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._exit.aclose()

    async def _open(self) -> None:
        """Enter contexts and push callbacks on `self._exit`."""
        raise NotImplementedError


if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.server.forwarding import OtherWorkers


@dataclass(frozen=True, slots=True)
class StackSpec:
    """The settings of a worker. Travels to its process as JSON."""

    servers: list[ServerSpec]
    config: dict[str, Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    """The base URLs of servers that are not in this stack."""
    secret: str = ""
    token: str | None = None
    """The token that servers require of callers, if they listen beyond loopback."""
    worker: int = 0
    http_fd: int | None = None
    """The listening socket of this worker alone, for requests that name their server."""
    rows_fd: int | None = None
    """The listening socket of this worker alone, for rows of collectors."""
    others: dict[str, str] = field(default_factory=dict)
    """The base URLs of the other workers that have these servers, by index."""
    secrets: dict[str, Any] | None = None
    """Values that the worker must not log, write or send as an error, as `Secrets.to_json` gives them."""

    @property
    def has_replicas(self) -> bool:
        """True if other workers of the run have the same servers. One that joined a run inherits no sockets."""
        has_joined = self.http_fd is not None and all(server.fd is None for server in self.servers)
        return bool(self.others) or has_joined

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        fields = orjson.loads(text)
        servers = [ServerSpec(**{**server, "folder": Path(server["folder"])}) for server in fields["servers"]]
        return cls(**{**fields, "servers": servers})


class Stack(OwnedResources):
    """An async context manager: inside it the servers of `spec` are loaded, and `client` calls them.

    With `ends_process`, code that blocks the event loop and cannot be interrupted ends this process.
    """

    def __init__(self, spec: StackSpec, *, ends_process: bool = False) -> None:
        super().__init__()
        self.spec, self._ends_process = spec, ends_process
        self.limits = ServerLimits.of(spec.config)
        self.apps: dict[str, ServerApp] = {}
        self.client = ServerClient()

    async def _open(self) -> None:
        spec = self.spec
        self._exit.enter_context(ending_forks())
        self._exit.enter_context(publish_config(spec.config))
        if spec.config.get("tracing_enabled"):
            from nemo_gym.runtime.tracing import tracing_of

            self._exit.enter_context(tracing_of(spec.config))
        in_folders = [server for server in spec.servers if server.served_class is None]
        self._exit.enter_context(children_can_import(in_folders))
        http = await self._exit.enter_async_context(HttpClient.of(spec.config))
        secret = bytes.fromhex(spec.secret) if spec.secret else secrets.token_bytes(32)
        self.client = ServerClient(
            global_config_dict=spec.config,
            addresses=spec.addresses,
            local=self.apps,
            http=http,
            token=spec.token,
            caller_key=hmac.digest(secret, b"nemo-gym callers", "sha256").hex(),
        )
        compute = await self._exit.enter_async_context(_compute(spec.config))
        handlers: Handlers = {}
        watchdog = Watchdog(handlers, max_blocked_s=self.limits.max_blocked_s, ends_process=self._ends_process)
        self._exit.enter_context(watchdog)
        others = self._other_workers(http)
        for server in spec.servers:
            with interrupts.stopping_with(None):  # this code may block
                self.apps[server.name] = app = self._load(server, secret, compute)
            app.others = others
        await asyncio.to_thread(_connect_ray_if_used, spec)
        for app in self.apps.values():
            await self._exit.enter_async_context(app.lifespan())
            self._exit.callback(app.core.sessions.close)
        for app in self.apps.values():
            app.register_handlers(handlers)
        await watchdog.start_limits()
        if spec.config.get("profiling_enabled"):
            files = {server.name: (server.folder / server.entrypoint).resolve() for server in spec.servers}
            self._exit.enter_context(
                plugin("profiler")(spec.config, self.apps, files, worker=spec.worker, has_replicas=spec.has_replicas)
            )
        self._exit.enter_context(WorkerMetrics(self.apps, http, compute, spec.worker))

    def _other_workers(self, http: HttpClient) -> "OtherWorkers | None":
        """None if this is the only worker. Only a run with a token may have workers that joined from outside."""
        spec, look_up = self.spec, None
        if spec.token is not None and (head := spec.config.get(HEAD_SERVER_KEY_NAME)):
            config = BaseServerConfig.model_validate(head)
            client = ServerClient(head_server_config=config, http=http, token=spec.token)

            async def look_up() -> dict[int, str]:
                return {address.worker: address.url for address in await list_workers(client) or ()}

        urls = {int(worker): url for worker, url in spec.others.items()}
        if not urls and look_up is None:
            return None
        from nemo_gym.server.forwarding import OtherWorkers

        return OtherWorkers(urls, http, token=spec.token, look_up=look_up)

    def _load(self, spec: ServerSpec, secret: bytes, compute: Compute) -> ServerApp:
        kind = spec.served_class or load_server_class(spec.server_type, spec.folder, spec.entrypoint)
        check_extra(spec.name, kind.EXTRA)
        strict = self.spec.config.get(STRICT)
        values = drop_unknown_keys(kind.config_class(), spec.config, path=spec.path, strict=strict)
        try:
            config = kind.config_class().model_validate({**values, "name": spec.name, "port": spec.port or 0})
            server = kind(config=config, server_client=self.client)
        except ValidationError as error:
            lines = [f"{spec.config_path} does not fit {error.title}:", *error_lines(error, prefix=spec.path)]
            raise ConfigError("\n".join(lines)) from error
        server.core(secret=secret, worker=self.spec.worker, compute=compute, limits=self.limits)
        return server.asgi_app(token=self.spec.token, limits=self.limits)


def _compute(config: Mapping[str, Any]) -> Compute:
    """The pool for CPU-heavy functions: processes of this machine, or tasks of the run's Ray cluster."""
    address = config.get(RAY_HEAD_NODE_ADDRESS_KEY_NAME)
    make: Callable[..., Compute] = partial(plugin("ray").RayCompute, address) if address else Compute
    return make(workers=config.get("compute_workers"), memory_mb=config.get("compute_memory_mb"))


def _connect_ray_if_used(spec: StackSpec) -> None:
    """Connect before the first request if a server uses Ray itself: its first call would otherwise block the loop."""
    address = spec.config.get(RAY_HEAD_NODE_ADDRESS_KEY_NAME)
    if "ray" in sys.modules and (address or any("ray" in imports_of(server.folder) for server in spec.servers)):
        plugin("ray").connect_ray(address)


EXIT_CONFIG = 78
"""Exit code of a worker that would fail the same way if it were started again (EX_CONFIG of sysexits.h)."""
PROFILING_RESULTS_KEY = "profiling_results_dirpath"
READY = "\x1enemo-gym worker ready"
"""The line that a worker prints when it serves."""

_published: list[Callable[[], "DictConfig"]] = []


@contextmanager
def publish_config(settings: dict[str, Any]) -> Iterator[None]:
    """Let `get_global_config_dict()` return these settings inside the block."""

    @cache  # made only if somebody asks: most servers do not
    def config() -> "DictConfig":
        from omegaconf import OmegaConf

        return OmegaConf.create(settings)

    _published.append(config)
    try:
        yield
    finally:
        _published.remove(config)


def process_config() -> "DictConfig | None":
    """Return the settings that were published last, if any."""
    return _published[-1]() if _published else None
