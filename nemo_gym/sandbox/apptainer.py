"""Sandboxes in Apptainer (Singularity) instances, through the `apptainer` command."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from nemo_gym.sandbox.containers import (
    ContainerProvider,
    ExecOptions,
    Options,
    checked,
    environment,
    run_cli,
    verify_probe,
)
from nemo_gym.sandbox.contract import SandboxHandle, SandboxSpec, SandboxStatus
from nemo_gym.sandbox.errors import SandboxCreateError


class CreateOptions(Options):
    mount_point: str | None = None
    """A folder of the host's that is shown, writable, under the same path."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    extra_start_args: tuple[str, ...] = ()
    apply_resource_limits: bool = True
    network: str | None = "none"
    """The instance's network. Model-written code gets none unless you say otherwise."""


class ApptainerExecOptions(ExecOptions):
    fakeroot_for_root: bool = True
    default_binds: tuple[str, ...] = ()


class ApptainerProvider(ContainerProvider[CreateOptions, ApptainerExecOptions]):
    name: ClassVar[str] = "apptainer"
    options = (CreateOptions, ApptainerExecOptions)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._env: dict[str, Mapping[str, str]] = {}
        """Of each instance: `exec` inherits nothing of what the instance was started with."""

    def start_arguments(self, name: str, spec: SandboxSpec) -> list[str]:
        """The arguments of `apptainer instance start` for a sandbox."""
        if spec.image is None:
            raise SandboxCreateError("The apptainer provider needs an image; the sandbox's spec names none.")
        options = self._create
        arguments = ["instance", "start", "--containall", "--no-home", "--cleanenv", "--writable-tmpfs", "--no-privs"]
        arguments += ["--net", "--network", options.network] if options.network else []
        binds = [*self._exec.default_binds, *([options.mount_point] if options.mount_point else [])]
        arguments += [word for bind in binds for word in ("--bind", bind)]
        arguments += _resource_arguments(spec) if options.apply_resource_limits else []
        arguments += environment("--env", spec.env)
        return [*arguments, *options.extra_start_args, spec.image, name]

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        name = f"nemo-gym-{secrets.token_hex(8)}"
        arguments = self.start_arguments(name, spec)
        self._running.add(name)
        handle = SandboxHandle(name, self.name, name)
        timeout_s = spec.ready_timeout_s or self._create.start_timeout_s
        try:
            await checked([self._program, *arguments], timeout_s=timeout_s, what="Starting an instance")
            self._env[name] = spec.env
            if spec.workdir:
                make = [*self.exec_arguments(handle), "mkdir", "-p", spec.workdir]
                await checked(make, timeout_s=timeout_s, what="Making the work folder")
            await verify_probe(self, handle, self._probe)
        except BaseException:
            await asyncio.shield(self.close(handle))
            raise
        return handle

    def exec_arguments(
        self,
        handle: SandboxHandle,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        reads_stdin: bool = False,
    ) -> list[str]:
        arguments = [self._program, "exec", "--cleanenv", "--no-home"]
        arguments += ["--fakeroot"] if user in ("root", 0) and self._exec.fakeroot_for_root else []
        arguments += ["--pwd", cwd] if cwd else []
        variables = {**self._env.get(handle.raw, {}), **(env or {})}
        return [*arguments, *environment("--env", variables), *self._exec.extra_exec_args, f"instance://{handle.raw}"]

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        finished = await run_cli([self._program, "instance", "list", handle.raw], timeout_s=30)
        if finished.code != 0:
            return SandboxStatus.UNKNOWN
        return SandboxStatus.RUNNING if handle.raw.encode() in finished.stdout else SandboxStatus.STOPPED

    async def close(self, handle: SandboxHandle) -> None:
        self._running.discard(handle.raw)
        self._env.pop(handle.raw, None)
        await run_cli([self._program, "instance", "stop", handle.raw], timeout_s=60)


def _resource_arguments(spec: SandboxSpec) -> list[str]:
    wanted = spec.resources
    arguments = ["--cpus", f"{wanted.cpu:g}"] if wanted.cpu else []
    return arguments + (["--memory", f"{wanted.memory_mib}M"] if wanted.memory_mib else [])
