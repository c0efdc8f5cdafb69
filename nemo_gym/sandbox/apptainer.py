"""Sandboxes in Apptainer (Singularity) instances, through the `apptainer` command."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from nemo_gym.sandbox.containers import (
    ContainerProvider,
    ExecOptions,
    StartOptions,
    checked,
    environment,
    exec_result,
    read_local,
    run_cli,
    write_local,
)
from nemo_gym.sandbox.contract import ExecResult, SandboxHandle, SandboxSpec, SandboxStatus

COPY_TIMEOUT_S = 600.0


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
        arguments = self._exec_arguments(handle, cwd=cwd, env=env, user=user)
        async with self._turns:
            finished = await run_cli(
                [*arguments, self._exec.exec_shell, "-c", command],
                timeout_s=timeout_s or self._exec.default_timeout_s,
            )
        return exec_result(finished)

    def _exec_arguments(
        self,
        handle: SandboxHandle,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
    ) -> list[str]:
        arguments = [self._program, "exec", "--cleanenv", "--no-home"]
        arguments += ["--fakeroot"] if user in ("root", 0) and self._exec.fakeroot_for_root else []
        arguments += ["--pwd", cwd] if cwd else []
        return [*arguments, *environment("--env", env), *self._exec.extra_exec_args, f"instance://{handle.raw}"]

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None:
        path, folder = shlex.quote(remote), shlex.quote(str(Path(remote).parent))
        command = [*self._exec_arguments(handle), self._exec.exec_shell, "-c", f"mkdir -p {folder} && cat > {path}"]
        await checked(command, timeout_s=COPY_TIMEOUT_S, what="Uploading", stdin=read_local(local))

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None:
        command = [*self._exec_arguments(handle), "cat", remote]
        write_local(local, await checked(command, timeout_s=COPY_TIMEOUT_S, what="Downloading"))

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        finished = await run_cli([self._program, "instance", "list", handle.raw], timeout_s=30)
        if finished.code != 0:
            return SandboxStatus.UNKNOWN
        return SandboxStatus.RUNNING if handle.raw.encode() in finished.stdout else SandboxStatus.STOPPED

    async def close(self, handle: SandboxHandle) -> None:
        self._running.discard(handle.raw)
        await run_cli([self._program, "instance", "stop", handle.raw], timeout_s=60)


def _resource_arguments(spec: SandboxSpec) -> list[str]:
    wanted = spec.resources
    arguments = ["--cpus", f"{wanted.cpu:g}"] if wanted.cpu else []
    return arguments + (["--memory", f"{wanted.memory_mib}M"] if wanted.memory_mib else [])
