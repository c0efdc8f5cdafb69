"""Sandboxes that are processes of this machine: the host's files that they can read (`Runtime`), the base class of
their providers, and a pool of warm sandboxes.

A sandbox can read the system's programs, one Python and the packages that were asked for. Other installed packages are
hidden: an environment's answers may be among them."""

import asyncio
import contextlib
import functools
import glob
import importlib.metadata
import importlib.util
import logging
import os
import secrets
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    SandboxUnavailableError,
)
from nemo_gym.sandbox.process import START_TIMEOUT_S, ForkServer, Launch, SandboxProcess, boot_command

logger = logging.getLogger(__name__)

PACKAGES = "/packages"
"""Folder of Python packages in a sandbox."""
ETC = Path(__file__).parent / "etc"
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
"""Mounted over the empty files in our `etc`."""
COMPILE_TIMEOUT_S = 120.0
_SITE = "lib/python3*/{}-packages"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Read-only mounts of a sandbox."""

    python: str
    binds: tuple[tuple[str, str], ...]
    """Path on the host, path in the sandbox."""
    symlinks: tuple[tuple[str, str], ...]
    """Target, path in the sandbox."""
    masked: tuple[str, ...]
    """Folders inside the binds that appear empty: other packages that are installed on this machine."""
    python_path: tuple[str, ...]

    def path(self) -> str:
        return f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin"


@functools.lru_cache
def host_runtime(packages: tuple[str, ...] = ()) -> Runtime:
    """Return the runtime with this interpreter, these installed packages and their requirements."""
    prefix, python = (
        os.path.realpath(sys.base_prefix),
        os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    )
    system = [folder for folder in SYSTEM_FOLDERS if os.path.exists(folder)]
    links = tuple((os.readlink(folder), folder) for folder in system if os.path.islink(folder))
    folders = [folder for folder in system if not os.path.islink(folder)]
    if not Path(prefix).is_relative_to("/usr"):
        folders.append(prefix)
    binds = [*((path, path) for path in folders), (str(ETC), "/etc")]
    binds += [(path, path) for path in SYSTEM_FILES if os.path.exists(path)]
    installed = package_paths(packages)
    binds += [(str(path), f"{PACKAGES}/{name}") for name, path in installed.items()]
    masked = {path for root in {prefix, "/usr", "/usr/local"} for path in site_folders(root)}
    return Runtime(python, tuple(binds), links, tuple(sorted(masked)), (PACKAGES,) if installed else ())


def site_folders(prefix: str) -> list[str]:
    return [path for kind in ("site", "dist") for path in glob.glob(f"{prefix}/{_SITE.format(kind)}")]


def package_paths(packages: tuple[str, ...]) -> dict[str, Path]:
    """Return the top-level files and folders of installed distributions and their requirements."""
    paths: dict[str, Path] = {}
    seen: set[Requested] = set()
    waiting = [_requested(Requirement(name)) for name in packages]
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        distribution = _distribution(wanted.name)
        for file in distribution.files or []:
            if file.parts[0] not in ("..", "__pycache__"):
                paths[file.parts[0]] = Path(str(distribution.locate_file(file.parts[0])))
        waiting += _requirements(distribution, wanted.extras)
    return {name: path for name, path in sorted(paths.items()) if path.exists()}


def compile_packages(modules: tuple[str, ...]) -> None:
    """Import modules once on the host, so that their bytecode is on disk. A sandbox can read but not write it, and
    compiling is the slowest part of an import."""
    specs = [spec for name in modules if (spec := importlib.util.find_spec(name)) and spec.origin]
    if all(os.path.exists(importlib.util.cache_from_source(str(spec.origin))) for spec in specs):
        return
    command = [sys.executable, "-c", "".join(f"import {name}\n" for name in modules)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, check=False, capture_output=True, timeout=COMPILE_TIMEOUT_S, env=env)


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise SandboxUnavailableError(
            f"The sandbox needs the package '{name}', which is not installed. Install it with: pip install {name}"
        ) from error


class Requested(NamedTuple):
    """An installed distribution, with the needed extras."""

    name: str
    extras: frozenset[str]


def _requested(requirement: Requirement) -> Requested:
    return Requested(canonicalize_name(requirement.name), frozenset(requirement.extras))


def _requirements(distribution: importlib.metadata.Distribution, extras: frozenset[str]) -> list[Requested]:
    required = [Requirement(text) for text in distribution.requires or []]
    needed = [
        one
        for one in required
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]
    return [_requested(one) for one in needed]


WORK = "/work"
SHELL = "/bin/bash"
SANDBOX_UIDS = range(2_000_000_000, 2_100_000_000)
"""Unused user ids. As root, every sandbox gets its own, so that the kernel's limits and rights per user hold for one
sandbox."""


class LocalProvider(ABC):
    """Sandboxes on this machine. Subclasses define how one is launched."""

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
        """With `fork_server`, sandboxes are forked from a running process, which takes a fifth of the time. By
        default it is used from the second sandbox on, since starting it takes as long as one sandbox without it."""
        self.limits = limits if isinstance(limits, Limits) else Limits.from_mapping(dict(limits or {}))
        self.packages = tuple(packages)
        self.preload = tuple(preload)
        """Modules that every sandbox imports at its start, so that its programs and session start faster."""
        self._runtime: Runtime | None = None
        self._sandboxes: set[SandboxProcess] = set()
        self._uses_server = fork_server
        self._servers: dict[str, ForkServer | None] = {}
        """Fork servers by work folder; None before the second sandbox."""
        self._ended_servers: list[ForkServer] = []

    @abstractmethod
    def launch(self, spec: SandboxSpec, limits: Limits, runtime: Runtime, server: ForkServer | None = None) -> Launch:
        """Return how to start one sandbox."""

    def server_launch(self, spec: SandboxSpec, runtime: Runtime) -> Launch | None:
        """Return how to start the fork server for sandboxes like this one; None if it cannot be forked."""
        settings = {**self.settings(self.limits, runtime, WORK), "is_fork_server": True, "pid_namespace": False}
        return Launch(boot_command(runtime.python), settings | {"python_path": [], "preload": []})

    def environment(self, runtime: Runtime, workdir: str, temp: str = TEMP) -> dict[str, str]:
        """Return the environment variables, none of them from the host. Libraries use one thread, since `processes`
        also counts threads."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        places = {"PATH": runtime.path(), "HOME": workdir, "TMPDIR": temp, "PYTHONPATH": ":".join(runtime.python_path)}
        return {**places, **threads, "LANG": "C.UTF-8", "USER": "sandbox", "LOGNAME": "sandbox"}

    def settings(self, limits: Limits, runtime: Runtime, workdir: str) -> dict[str, Any]:
        """Return the settings of an agent; providers add to them."""
        return {
            "memory": limits.memory_mb * MIB,
            "cpu_s": limits.cpu_s,
            "processes": limits.processes,
            "disk": limits.disk_mb * MIB,
            "disk_folders": [],
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
        """Start a sandbox; with `session`, also its Python session."""
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
        """Return the fork server of a sandbox, and start it if needed; None if the sandbox is not forked."""
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
        await handle.raw.write_file(remote, await asyncio.to_thread(local.read_bytes))

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None:
        await asyncio.to_thread(local.write_bytes, await handle.raw.read_file(remote))

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
    """Open a sandbox while the block runs."""
    sandbox = await provider.open(spec, session=session)
    try:
        yield sandbox
    finally:
        await provider.release(sandbox)


class SandboxPool:
    """A pool of warm sandboxes. Each is given out once and never reused."""

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
        """Start missing sandboxes in the background."""
        for _ in range(self._warm - len(self._ready) - len(self._starting)):
            task = asyncio.create_task(self._start_one())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def take(self) -> SandboxProcess:
        """Return a sandbox, a warm one if available. Pass it to `release` afterwards."""
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
        """End all sandboxes, including those that were taken."""
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
        except SandboxError as error:  # `take` raises the same error
            logger.warning("no warm sandbox could be started: %s", error)
