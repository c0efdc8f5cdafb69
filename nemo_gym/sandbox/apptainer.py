"""Sandboxes in Apptainer (Singularity) instances, through the `apptainer` command."""

from collections.abc import Mapping
from typing import Any, ClassVar

from nemo_gym.sandbox.containers import (
    ContainerProvider,
    ExecOptions,
    StartOptions,
    checked,
    environment,
    run_cli,
)
from nemo_gym.sandbox.contract import SandboxHandle, SandboxSpec, SandboxStatus


class CreateOptions(StartOptions):
    mount_point: str | None = None
    """A folder of the host's that is shown, writable, under the same path."""
    extra_start_args: tuple[str, ...] = ()


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
        options = self._create
        arguments = ["instance", "start", "--containall", "--no-home", "--cleanenv", "--writable-tmpfs", "--no-privs"]
        arguments += ["--net", "--network", options.network] if options.network else []
        binds = [*self._exec.default_binds, *([options.mount_point] if options.mount_point else [])]
        arguments += [word for bind in binds for word in ("--bind", bind)]
        arguments += _resource_arguments(spec) if options.apply_resource_limits else []
        arguments += environment("--env", spec.env)
        return [*arguments, *options.extra_start_args, self.image_of(spec), name]

    async def prepare(self, handle: SandboxHandle, spec: SandboxSpec, *, timeout_s: float) -> None:
        self._env[handle.raw] = spec.env
        if spec.workdir:
            make = [*self.exec_arguments(handle), "mkdir", "-p", spec.workdir]
            await checked(make, timeout_s=timeout_s, what="Making the work folder")

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
