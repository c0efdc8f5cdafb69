"""Providers whose sandboxes are processes of this machine: they differ in how the agent is confined."""

import asyncio
import contextlib
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from nemo_gym.sandbox.containers import read_local, write_local
from nemo_gym.sandbox.contract import (
    MIB,
    RUNTIME_FAILURE,
    SHARED_MEMORY,
    TEMP,
    ExecResult,
    Level,
    Limits,
    SandboxCreateError,
    SandboxError,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)
from nemo_gym.sandbox.launcher import ForkServer, Launch, boot_command
from nemo_gym.sandbox.process import START_TIMEOUT_S, SandboxProcess
from nemo_gym.sandbox.runtime import Runtime, host_runtime

logger = logging.getLogger(__name__)

WORK = "/work"
SHELL = "/bin/bash"
SANDBOX_UIDS = range(2_000_000_000, 2_100_000_000)
"""User ids nobody has. Where we may choose, every sandbox gets one of its own, so that the kernel's limits and rights
by user are limits and rights of one sandbox."""


class LocalProvider(ABC):
    """Sandboxes on this machine. Subclasses say how one is launched."""

    name: ClassVar[str]
    level: ClassVar[Level]

    def __init__(
        self,
        *,
        limits: Limits | Mapping[str, Any] | None = None,
        packages: tuple[str, ...] | list[str] = (),
        preload: tuple[str, ...] | list[str] = (),
        fork_server: bool | None = None,
    ) -> None:
        """With `fork_server` sandboxes are forked from a process that is kept for them, which takes a fifth of the
        time; None: from the second one on. Its start takes as long as that of one sandbox without it."""
        self.limits = limits if isinstance(limits, Limits) else Limits.from_mapping(dict(limits or {}))
        self.packages = tuple(packages)
        self.preload = tuple(preload)
        """Modules that every sandbox imports at its start, so that its programs and session need not."""
        self._runtime: Runtime | None = None
        self._sandboxes: set[SandboxProcess] = set()
        self._uses_server = fork_server
        self._servers: dict[str, ForkServer | None] = {}
        """By work folder; None before the second sandbox."""
        self._ended_servers: list[ForkServer] = []

    @abstractmethod
    def launch(self, spec: SandboxSpec, limits: Limits, runtime: Runtime, server: ForkServer | None = None) -> Launch:
        """The process to start for one sandbox."""

    def server_launch(self, spec: SandboxSpec, runtime: Runtime) -> Launch | None:
        """The fork server for sandboxes like this one; None if it has to be launched by itself."""
        settings = {**self.settings(self.limits, runtime, WORK), "is_fork_server": True, "pid_namespace": False}
        return Launch(boot_command(runtime.python), settings | {"python_path": [], "preload": []})

    def environment(self, runtime: Runtime, workdir: str, temp: str = TEMP) -> dict[str, str]:
        """Nothing of the host's environment. One thread a library: `processes` counts threads, too."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        places = {"PATH": runtime.path(), "HOME": workdir, "TMPDIR": temp, "PYTHONPATH": ":".join(runtime.python_path)}
        return {**places, **threads, "LANG": "C.UTF-8", "USER": "sandbox", "LOGNAME": "sandbox"}

    def settings(self, limits: Limits, runtime: Runtime, workdir: str) -> dict[str, Any]:
        """What every agent is told; providers add to it."""
        return {
            "memory": limits.memory_mb * MIB,
            "cpu_s": limits.cpu_s,
            "processes": limits.processes,
            "disk": limits.disk_mb * MIB,
            "disk_folder": "",
            "inodes": limits.files,
            "writable": [workdir, TEMP, SHARED_MEMORY],
            "rlimits": limits.rlimits(counts_processes=True),
            "pid_namespace": True,
            "landlock": None,
            "seccomp": b"",
            "uid": None,
            "workdir": workdir,
            "env": self.environment(runtime, workdir),
            "python_path": list(runtime.python_path),
            "preload": list(self.preload),
            "session": False,
            "namespaces": None,
            "is_fork_server": False,
            "owns_no_pid_namespace": False,
        }

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        sandbox = await self.open(spec)
        return SandboxHandle(secrets.token_hex(8), self.name, sandbox)

    async def open(self, spec: SandboxSpec | None = None, *, session: bool = False) -> SandboxProcess:
        """A running sandbox; with `session` its Python session is started, too."""
        spec = spec or SandboxSpec()
        limits = self._limits_of(spec)
        if self._runtime is None:  # finding packages reads many files
            self._runtime = await asyncio.to_thread(host_runtime, self.packages)
        runtime = self._runtime
        server = self._server(spec, runtime)
        launch = self.launch(spec, limits, runtime, server)
        launch.settings["session"] = session
        env = {**launch.settings["env"], **spec.env}
        sandbox = SandboxProcess(launch, limits, env, workdir_name=spec.workdir, ended=self._sandboxes.discard)
        self._sandboxes.add(sandbox)
        try:
            await sandbox.start(timeout_s=spec.ready_timeout_s or START_TIMEOUT_S)
        except SandboxCreateError as error:
            if server is None or server.is_alive:
                raise
            if not server.has_worked:
                logger.warning("sandboxes of '%s' are started one by one, which takes longer: %s", self.name, error)
                self._uses_server = False
            return await self.open(spec, session=session)
        return sandbox

    def _server(self, spec: SandboxSpec, runtime: Runtime) -> ForkServer | None:
        """What forks the agent of a sandbox, started if one is wanted."""
        key = spec.workdir or WORK
        is_first = key not in self._servers
        server = self._servers.setdefault(key, None)
        if self._uses_server is False or (is_first and self._uses_server is None):
            return None
        if server is not None and server.is_alive:
            return server
        if server is not None:
            self._ended_servers.append(server)
        launch = self.server_launch(spec, runtime)
        made = self._servers[key] = None if launch is None else ForkServer(launch)
        return made

    def _limits_of(self, spec: SandboxSpec) -> Limits:
        if spec.image is not None:
            raise SandboxCreateError(
                f"The {self.name} provider runs programs of this machine and no images; the sandbox asks for "
                f"'{spec.image}'. Use the docker or apptainer provider for it."
            )
        wanted = spec.resources
        limits = Limits.from_mapping(
            {
                **{name: getattr(self.limits, name) for name in Limits.__slots__},
                **spec.provider_options.get("limits", {}),
            }
        )
        if wanted.memory_mib:
            limits = replace(limits, memory_mb=wanted.memory_mib)
        return replace(limits, disk_mb=int(wanted.disk_gib * 1024)) if wanted.disk_gib else limits

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        if user is not None:
            message = f"The {self.name} provider has one user; it cannot run a command as {user!r}."
            return ExecResult("", message, RUNTIME_FAILURE, "sandbox")
        sandbox: SandboxProcess = handle.raw
        return await sandbox.exec([SHELL, "-c", command], cwd=cwd, env=env, timeout_s=timeout_s)

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None:
        await handle.raw.write_file(remote, read_local(local))

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None:
        write_local(local, await handle.raw.read_file(remote))

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        return SandboxStatus.RUNNING if handle.raw.is_alive else SandboxStatus.STOPPED

    async def close(self, handle: SandboxHandle) -> None:
        await self.release(handle.raw)

    async def release(self, sandbox: SandboxProcess) -> None:
        await sandbox.close()

    async def aclose(self) -> None:
        """End all sandboxes."""
        await asyncio.gather(*(sandbox.close() for sandbox in self._sandboxes))
        servers = [*self._ended_servers, *(server for server in self._servers.values() if server is not None)]
        self._servers, self._ended_servers = {}, []
        await asyncio.gather(*(server.close() for server in servers))


def unused_uid() -> int:
    return secrets.choice(SANDBOX_UIDS)


@contextlib.asynccontextmanager
async def opened(provider: LocalProvider, spec: SandboxSpec | None = None, *, session: bool = False) -> Any:
    """A sandbox for the length of a block."""
    sandbox = await provider.open(spec, session=session)
    try:
        yield sandbox
    finally:
        await provider.release(sandbox)


class SandboxPool:
    """Sandboxes of one kind, each given to one user and never used again: nothing passes from one to the next."""

    def __init__(
        self, provider: LocalProvider, *, warm: int = 2, session: bool = True, spec: SandboxSpec | None = None
    ) -> None:
        self._provider, self._warm, self._session, self._spec = provider, warm, session, spec
        self._ready: list[SandboxProcess] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def fill(self) -> None:
        """Start as many sandboxes as are missing, in the background."""
        for _ in range(self._warm - len(self._ready) - len(self._starting)):
            task = asyncio.create_task(self._start_one())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def take(self) -> SandboxProcess:
        """A sandbox of one's own, warm if there is one. Give it back to `release`."""
        if self._is_closed:
            raise SandboxError("The pool is closed.")
        while self._ready:
            sandbox = self._ready.pop()
            if sandbox.is_alive:
                self.fill()
                return sandbox
        self.fill()
        return await self._open()

    async def release(self, sandbox: SandboxProcess) -> None:
        await self._provider.release(sandbox)

    async def close(self) -> None:
        """End all sandboxes, also those that were taken."""
        self._is_closed = True
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await self._provider.aclose()

    async def _open(self) -> SandboxProcess:
        return await self._provider.open(self._spec, session=self._session)

    async def _start_one(self) -> None:
        try:
            self._ready.append(await self._open())
        except SandboxError as error:  # whoever takes one will see the same error
            logger.warning("no sandbox could be started ahead: %s", error)
