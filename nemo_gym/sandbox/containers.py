"""What the providers share that drive a container engine by its command line."""

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.sandbox.contract import RUNTIME_FAILURE, ExecResult, Level, SandboxHandle, SandboxSpec
from nemo_gym.sandbox.errors import SandboxCreateError, SandboxCreateVerificationError, SandboxUnavailableError

OUTPUT_BYTES = 2**20
KILL_GRACE_S = 5.0


def read_local(path: Path) -> bytes:
    return path.read_bytes()


def write_local(path: Path, content: bytes) -> None:
    path.write_bytes(content)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, given: Any) -> Any:
        """Null where it has no meaning of its own."""
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
    """How commands run in a container."""

    default_timeout_s: float = Field(default=180.0, gt=0)
    extra_exec_args: tuple[str, ...] = ()
    concurrency: int = Field(default=32, ge=1)
    exec_shell: str = "/bin/sh"


class StartOptions(Options):
    """How containers are started."""

    start_timeout_s: float = Field(default=600.0, gt=0)
    apply_resource_limits: bool = True
    network: str | None = "none"
    """The network of a sandbox. Model-written code gets none unless you say otherwise."""


CreateT = TypeVar("CreateT", bound=StartOptions)
ExecT = TypeVar("ExecT", bound=ExecOptions)


class ContainerProvider(Generic[CreateT, ExecT]):
    """The options of a provider, the engine's program, and the containers that run."""

    name: ClassVar[str]
    """Also of the program, unless a config names another."""
    level: ClassVar[Level] = "full"
    options: ClassVar[tuple[Any, Any]]
    """The classes of its options for `create` and `exec`."""

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
        self._turns = asyncio.Semaphore(self._exec.concurrency)
        self._running: set[str] = set()

    def start_arguments(self, name: str, spec: SandboxSpec) -> list[str]:
        """The arguments with which the engine starts a sandbox."""
        raise NotImplementedError

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
            await verify_probe(self, handle, self._probe)
        except BaseException:
            await asyncio.shield(self.close(handle))
            raise
        return handle

    async def close(self, handle: SandboxHandle) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        for name in list(self._running):
            await self.close(SandboxHandle(name, self.name, name))


class Finished(NamedTuple):
    code: int | None
    """None if it was killed because its time was up."""
    stdout: bytes
    stderr: bytes
    is_truncated: bool


def require(executable: str) -> str:
    found = shutil.which(executable)
    if found is None:
        raise SandboxUnavailableError(f"There is no program '{executable}' on this machine.")
    return found


async def run_cli(argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None) -> Finished:
    """Run a command of the engine; kill it when its time is up or the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    streams = asyncio.gather(_capped(process.stdout), _capped(process.stderr), _feed(process, stdin))
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
            await process.wait()
    (out, out_cut), (err, err_cut), _ = await streams
    return Finished(code, out, err, out_cut or err_cut)


async def _feed(process: asyncio.subprocess.Process, stdin: bytes | None) -> None:
    if process.stdin is None or stdin is None:
        return
    with contextlib.suppress(ConnectionError):
        process.stdin.write(stdin)
        await process.stdin.drain()
        process.stdin.close()


async def _capped(stream: asyncio.StreamReader) -> tuple[bytes, bool]:
    kept, is_cut = bytearray(), False
    while part := await stream.read(65536):
        room = OUTPUT_BYTES - len(kept)
        kept += part[: max(room, 0)]
        is_cut |= len(part) > room
    return bytes(kept), is_cut


def exec_result(finished: Finished) -> ExecResult:
    stdout, stderr = finished.stdout.decode(errors="replace"), finished.stderr.decode(errors="replace")
    if finished.code is None:
        return ExecResult(stdout, stderr, RUNTIME_FAILURE, "timeout", "time", finished.is_truncated)
    return ExecResult(stdout, stderr, finished.code, is_truncated=finished.is_truncated)


async def checked(argv: Sequence[str], *, timeout_s: float, what: str, stdin: bytes | None = None) -> bytes:
    """The output of a command that must succeed."""
    finished = await run_cli(argv, timeout_s=timeout_s, stdin=stdin)
    if finished.code != 0:
        said = finished.stderr.decode(errors="replace").strip()[-1000:]
        ended = "took too long" if finished.code is None else f"ended with code {finished.code}"
        raise SandboxCreateError(f"{what} failed: '{argv[0]} {argv[1]}' {ended}: {said}")
    return finished.stdout


async def verify_probe(provider: Any, handle: SandboxHandle, probe: ProbeOptions) -> None:
    """Run the probe until it has succeeded the given number of times in a row, or until its deadline."""
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
