"""Providers whose sandboxes are processes of this machine: they differ in how the agent is confined."""

import asyncio
import contextlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from nemo_gym.sandbox.containers import read_local, write_local
from nemo_gym.sandbox.contract import (
    RUNTIME_FAILURE,
    SHARED_MEMORY,
    TEMP,
    ExecResult,
    Level,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)
from nemo_gym.sandbox.errors import SandboxCreateError
from nemo_gym.sandbox.limits import MIB, Limits
from nemo_gym.sandbox.process import BOOT, START_TIMEOUT_S, Launch, SandboxProcess
from nemo_gym.sandbox.runtime import Runtime, host_runtime

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
    ) -> None:
        self.limits = limits if isinstance(limits, Limits) else Limits.from_mapping(dict(limits or {}))
        self.packages = tuple(packages)
        self.preload = tuple(preload)
        """Modules that every sandbox imports at its start, so that its programs and session need not."""
        self._sandboxes: set[SandboxProcess] = set()

    @abstractmethod
    def launch(self, spec: SandboxSpec, limits: Limits, runtime: Runtime) -> Launch:
        """The process to start for one sandbox."""

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
        }

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        sandbox = await self.open(spec)
        return SandboxHandle(secrets.token_hex(8), self.name, sandbox)

    async def open(self, spec: SandboxSpec | None = None, *, session: bool = False) -> SandboxProcess:
        """A running sandbox; with `session` its Python session is started, too."""
        spec = spec or SandboxSpec()
        limits, runtime = self._limits_of(spec), host_runtime(self.packages)
        launch = self.launch(spec, limits, runtime)
        launch.settings["session"] = session
        env = {**launch.settings["env"], **spec.env}
        sandbox = SandboxProcess(launch, limits, env, workdir_name=spec.workdir, ended=self._sandboxes.discard)
        self._sandboxes.add(sandbox)
        await sandbox.start(timeout_s=spec.ready_timeout_s or START_TIMEOUT_S)
        return sandbox

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


def boot_command(python: str) -> list[str]:
    return [python, "-I", "-S", "-c", BOOT]


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
