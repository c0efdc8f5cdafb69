"""Providers that run sandboxes as containers, through the command line of Docker or Apptainer."""

import asyncio
import contextlib
import os
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.sandbox.contract import (
    MAX_DOWNLOAD_BYTES,
    RUNTIME_FAILURE,
    ExecResult,
    Level,
    SandboxCreateError,
    SandboxCreateVerificationError,
    SandboxEndpoint,
    SandboxError,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
    SandboxUnavailableError,
)

OUTPUT_BYTES = 2**20
KILL_GRACE_S = 5.0
COPY_TIMEOUT_S = 600.0
DRAIN_S = 1.0


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, given: Any) -> Any:
        """Treat null as the default in fields that do not allow it."""
        fields = cls.model_fields
        return {
            key: value
            for key, value in given.items()
            if value is not None or key not in fields or type(None) in get_args(fields[key].annotation)
        }


class ProbeOptions(Options):
    """A command that must succeed before a sandbox counts as created."""

    command: str | None = None
    expected_stdout: str | None = None
    timeout_s: float = Field(default=30.0, gt=0)
    deadline_s: float | None = None
    stable_count: int = Field(default=1, ge=1)
    stable_delay_s: float = Field(default=0.0, ge=0)


class ExecOptions(Options):
    """Options for commands in a container."""

    default_timeout_s: float = Field(default=180.0, gt=0)
    extra_exec_args: tuple[str, ...] = ()
    concurrency: int = Field(default=32, ge=1)
    exec_shell: str = "/bin/sh"


class StartOptions(Options):
    """Options for starting containers."""

    start_timeout_s: float = Field(default=600.0, gt=0)
    apply_resource_limits: bool = True
    network: str | None = "none"
    """Network of a sandbox. The default gives model-written code no network."""


KILL_GROUP = """\
for file in /proc/[0-9]*/cmdline; do
    read -r line < "$file"
    pid=${file#/proc/}
    pid=${pid%/cmdline}
    case "$line" in *"$1"*) [ "$pid" = $$ ] || kill -s KILL -- -"$pid";; esac
done 2> /dev/null
"""
"""A shell script that kills the process groups whose leader has the argument in its command line."""

CreateT = TypeVar("CreateT", bound=StartOptions)
ExecT = TypeVar("ExecT", bound=ExecOptions)


class ContainerProvider(ABC, Generic[CreateT, ExecT]):
    """Base class of container providers: options, the engine's program, and the running containers."""

    name: ClassVar[str]
    """Name of the provider and, by default, of the engine's program."""
    level: ClassVar[Level] = "full"
    options: ClassVar[tuple[Any, Any]]
    """Classes of the options for `create` and `exec`."""

    def __init__(
        self,
        *,
        create: Mapping[str, Any] | None = None,
        exec: Mapping[str, Any] | None = None,  # noqa: A002 - the key that configs have
        probe: Mapping[str, Any] | None = None,
        executable: str | None = None,
    ) -> None:
        self._create: CreateT = self.options[0](**(create or {}))
        self._exec: ExecT = self.options[1](**(exec or {}))
        self._probe = ProbeOptions(**(probe or {}))
        self._program = require(executable or self.name)
        self._exec_slots = asyncio.Semaphore(self._exec.concurrency)
        self._running: set[str] = set()

    @abstractmethod
    def start_arguments(self, name: str, spec: SandboxSpec) -> list[str]:
        """Return the engine's arguments that start a sandbox."""

    def image_of(self, spec: SandboxSpec) -> str:
        if spec.image is None:
            raise SandboxCreateError(f"The {self.name} provider needs an image; the sandbox's spec names none.")
        return spec.image

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        name = f"nemo-gym-{secrets.token_hex(8)}"
        command = [self._program, *self.start_arguments(name, spec)]
        self._running.add(name)
        handle = SandboxHandle(name, self.name, name)
        try:
            timeout_s = spec.ready_timeout_s or self._create.start_timeout_s
            await checked(command, timeout_s=timeout_s, what="Starting a container")
            await self.prepare(handle, spec, timeout_s=timeout_s)
            await verify_probe(self, handle, self._probe)
        except BaseException:
            await asyncio.shield(self.close(handle))
            raise
        return handle

    async def prepare(self, handle: SandboxHandle, spec: SandboxSpec, *, timeout_s: float) -> None:
        """Finish the setup of a started container."""

    @abstractmethod
    def exec_arguments(
        self,
        handle: SandboxHandle,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        reads_stdin: bool = False,
    ) -> list[str]:
        """Return the engine's command that runs in a container the command that follows it."""

    @abstractmethod
    async def close(self, handle: SandboxHandle) -> None: ...

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
        """Run a command. Killing the engine's client does not end the command in the container: a second command
        does."""
        mark, shell = f"nemo-gym-exec-{secrets.token_hex(8)}", self._exec.exec_shell
        arguments = self.exec_arguments(handle, cwd=cwd, env=env, user=user)
        finished: Finished | None = None
        try:
            async with self._exec_slots:
                finished = await run_cli(
                    [*arguments, shell, "-c", f'{shell} -c "$1"; exit $?', mark, command],
                    timeout_s=timeout_s or self._exec.default_timeout_s,
                )
        finally:
            if finished is None or finished.code is None:
                kill = [*self.exec_arguments(handle, user=user), shell, "-c", KILL_GROUP, "", mark]
                await asyncio.shield(run_cli(kill, timeout_s=KILL_GRACE_S))
        if (
            finished.code and handle.raw.encode() in finished.stderr
        ):  # the container does not know its own name, so the engine said this
            message = finished.stderr.decode(errors="replace").strip()
            return ExecResult("", message, RUNTIME_FAILURE, "sandbox")
        return exec_result(finished)

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None:
        arguments = self.exec_arguments(handle, reads_stdin=True)
        script = 'mkdir -p "$1" && cat > "$2"'
        await checked(
            [*arguments, self._exec.exec_shell, "-c", script, "", os.path.dirname(remote) or ".", remote],
            timeout_s=COPY_TIMEOUT_S,
            what=f"Uploading {remote}",
            stdin=await asyncio.to_thread(local.read_bytes),
        )

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None:
        """Download the content of a file. The local file is always a regular file, even if the remote one is a
        link."""
        content = await checked(
            [*self.exec_arguments(handle), "cat", "--", remote],
            timeout_s=COPY_TIMEOUT_S,
            what=f"Downloading {remote}",
            max_bytes=MAX_DOWNLOAD_BYTES,
        )
        await asyncio.to_thread(local.write_bytes, content)

    async def aclose(self) -> None:
        for name in list(self._running):
            await self.close(SandboxHandle(name, self.name, name))


class Finished(NamedTuple):
    code: int | None
    """None if it was killed by its time limit."""
    stdout: bytes
    stderr: bytes
    is_truncated: bool


def require(executable: str) -> str:
    found = shutil.which(executable)
    if found is None:
        raise SandboxUnavailableError(f"There is no program '{executable}' on this machine.")
    return found


async def run_cli(
    argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None, max_bytes: int = OUTPUT_BYTES
) -> Finished:
    """Run a command of the engine. Kill it at its time limit or if the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = _Capped(max_bytes), _Capped(OUTPUT_BYTES)
    streams = asyncio.gather(out.read(process.stdout), err.read(process.stderr), _feed(process, stdin))
    code: int | None = None
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(streams)
            code = await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            # A process that left the group may keep the pipes open, so do not wait for it.
            await asyncio.wait({streams}, timeout=DRAIN_S)
            streams.cancel()
            process._transport.close()  # type: ignore[attr-defined]
            await process.wait()
    return Finished(code, bytes(out.kept), bytes(err.kept), out.is_cut or err.is_cut)


async def _feed(process: asyncio.subprocess.Process, stdin: bytes | None) -> None:
    if process.stdin is None or stdin is None:
        return
    with contextlib.suppress(ConnectionError):
        process.stdin.write(stdin)
        await process.stdin.drain()
        process.stdin.close()


class _Capped:
    """Keeps the first bytes of a stream. The rest is read and dropped."""

    def __init__(self, max_bytes: int) -> None:
        self._left, self.kept, self.is_cut = max_bytes, bytearray(), False

    async def read(self, stream: asyncio.StreamReader) -> None:
        while part := await stream.read(65536):
            self.kept += part[: max(self._left, 0)]
            self.is_cut |= len(part) > self._left
            self._left -= len(part)


def exec_result(finished: Finished) -> ExecResult:
    stdout, stderr = finished.stdout.decode(errors="replace"), finished.stderr.decode(errors="replace")
    if finished.code is None:
        return ExecResult(stdout, stderr, RUNTIME_FAILURE, "timeout", "time", finished.is_truncated)
    return ExecResult(stdout, stderr, finished.code, is_truncated=finished.is_truncated)


async def checked(
    argv: Sequence[str], *, timeout_s: float, what: str, stdin: bytes | None = None, max_bytes: int = OUTPUT_BYTES
) -> bytes:
    """Return the complete output of a command. Raises SandboxCreateError if it fails."""
    finished = await run_cli(argv, timeout_s=timeout_s, stdin=stdin, max_bytes=max_bytes)
    if finished.code != 0:
        said = finished.stderr.decode(errors="replace").strip()[-1000:]
        ended = "took too long" if finished.code is None else f"ended with code {finished.code}"
        raise SandboxCreateError(f"{what} failed: '{argv[0]} {argv[1]}' {ended}: {said}")
    if finished.is_truncated:
        raise SandboxError(f"{what} failed: it is larger than {max_bytes:,} bytes.")
    return finished.stdout


async def verify_probe(provider: Any, handle: SandboxHandle, probe: ProbeOptions) -> None:
    """Run the probe until it has succeeded `stable_count` times in a row, or until its deadline."""
    if probe.command is None:
        return
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + (probe.deadline_s or probe.timeout_s)
    streak = 0
    while streak < probe.stable_count:
        result = await provider.exec(handle, probe.command, timeout_s=probe.timeout_s)
        expected = probe.expected_stdout is None or (result.stdout or "").strip() == probe.expected_stdout.strip()
        streak = streak + 1 if result.return_code == 0 and expected else 0
        if streak < probe.stable_count and loop.time() >= ends_at:
            raise SandboxCreateVerificationError(
                f"The probe {probe.command!r} gave code {result.return_code} and {result.stdout!r}; "
                f"expected {probe.expected_stdout!r}."
            )
        if streak < probe.stable_count:
            await asyncio.sleep(probe.stable_delay_s or 0.2)


def environment(flag: str, env: Mapping[str, str] | None) -> list[str]:
    return [argument for name, value in (env or {}).items() for argument in (flag, f"{name}={value}")]


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
        """Return the arguments of `docker run` for a sandbox."""
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


class CreateOptions(StartOptions):
    mount_point: str | None = None
    """A folder of the host that is mounted writable at the same path."""
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
        """Environment of each instance. `exec` does not inherit it from the instance."""

    def start_arguments(self, name: str, spec: SandboxSpec) -> list[str]:
        """Return the arguments of `apptainer instance start` for a sandbox."""
        options = self._create
        arguments = ["instance", "start", "--containall", "--no-home", "--cleanenv", "--writable-tmpfs", "--no-privs"]
        arguments += ["--net", "--network", options.network] if options.network else []
        binds = [*self._exec.default_binds, *([options.mount_point] if options.mount_point else [])]
        arguments += [word for bind in binds for word in ("--bind", bind)]
        arguments += _apptainer_limits(spec) if options.apply_resource_limits else []
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


def _apptainer_limits(spec: SandboxSpec) -> list[str]:
    wanted = spec.resources
    arguments = ["--cpus", f"{wanted.cpu:g}"] if wanted.cpu else []
    return arguments + (["--memory", f"{wanted.memory_mib}M"] if wanted.memory_mib else [])
