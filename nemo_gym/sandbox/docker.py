"""Sandboxes in Docker containers, through the `docker` command."""

from collections.abc import Mapping
from typing import ClassVar

from nemo_gym.sandbox.containers import (
    ContainerProvider,
    ExecOptions,
    StartOptions,
    checked,
    environment,
    run_cli,
)
from nemo_gym.sandbox.contract import (
    SandboxEndpoint,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

_STATUS = {"created": "starting", "running": "running", "restarting": "starting", "exited": "stopped", "dead": "error"}


class DockerCreateConfig(StartOptions):
    keepalive_shell: str = "/bin/sh"
    keepalive_cmd: str = "while :; do sleep 3600; done"
    use_init: bool = True
    read_only: bool = False
    cap_drop: tuple[str, ...] = ("ALL",)
    security_opt: tuple[str, ...] = ("no-new-privileges",)
    pids_limit: int | None = 512
    extra_run_args: tuple[str, ...] = ()
    publish_host: str = "127.0.0.1"


class DockerProvider(ContainerProvider[DockerCreateConfig, ExecOptions]):
    name: ClassVar[str] = "docker"
    options = (DockerCreateConfig, ExecOptions)

    def start_arguments(self, name: str, spec: SandboxSpec) -> list[str]:
        """The arguments of `docker run` for a sandbox."""
        options = self._create
        arguments = ["run", "--detach", "--name", name]
        arguments += ["--init"] if options.use_init else []
        arguments += ["--network", options.network] if options.network else []
        arguments += ["--read-only"] if options.read_only else []
        arguments += [word for capability in options.cap_drop for word in ("--cap-drop", capability)]
        arguments += [word for option in options.security_opt for word in ("--security-opt", option)]
        arguments += ["--pids-limit", str(options.pids_limit)] if options.pids_limit else []
        arguments += _resource_arguments(spec) if options.apply_resource_limits else []
        arguments += ["--workdir", spec.workdir] if spec.workdir else []
        arguments += environment("--env", spec.env)
        arguments += [word for port in spec.ports for word in ("--publish", f"{options.publish_host}::{port}")]
        arguments += options.extra_run_args
        keepalive = spec.entrypoint or [options.keepalive_shell, "-c", options.keepalive_cmd]
        return [*arguments, "--entrypoint", keepalive[0], self.image_of(spec), *keepalive[1:]]

    def exec_arguments(
        self,
        handle: SandboxHandle,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        reads_stdin: bool = False,
    ) -> list[str]:
        arguments = [self._program, "exec", *(["--interactive"] if reads_stdin else [])]
        arguments += ["--workdir", cwd] if cwd else []
        arguments += environment("--env", env) + (["--user", str(user)] if user is not None else [])
        return [*arguments, *self._exec.extra_exec_args, handle.raw]

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        published = await checked([self._program, "port", handle.raw, str(port)], timeout_s=30, what="Finding a port")
        return SandboxEndpoint(f"http://{published.decode().split()[0]}")

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        command = [self._program, "inspect", "--format", "{{.State.Status}}", handle.raw]
        finished = await run_cli(command, timeout_s=30)
        if finished.code != 0:
            return SandboxStatus.STOPPED
        return SandboxStatus(_STATUS.get(finished.stdout.decode().strip(), "unknown"))

    async def close(self, handle: SandboxHandle) -> None:
        self._running.discard(handle.raw)
        await run_cli([self._program, "rm", "--force", "--volumes", handle.raw], timeout_s=60)


def _resource_arguments(spec: SandboxSpec) -> list[str]:
    wanted = spec.resources
    arguments = ["--cpus", f"{wanted.cpu:g}"] if wanted.cpu else []
    arguments += (
        ["--memory", f"{wanted.memory_mib}m", "--memory-swap", f"{wanted.memory_mib}m"] if wanted.memory_mib else []
    )
    return arguments + (["--gpus", str(wanted.gpu)] if wanted.gpu else [])
