"""The contract of sandboxes: what one is asked for, what it answers, what a provider must do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from nemo_gym.common.deadline import wall_limit_s
from nemo_gym.errors import GymError

DEFAULT_TIMEOUT_S = 180.0
RUNTIME_FAILURE = 125
"""The return code of a command that the sandbox, and not the command itself, ended or could not run."""

TEMP = "/tmp"  # noqa: S108 - in the sandbox
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - in the sandbox

ErrorType = Literal["timeout", "sandbox", "pty"]
Level = Literal["full", "partial", "none"]
"""How far a provider confines: everything the contract promises, some of it, or nothing."""
LimitName = Literal["time", "cpu", "memory", "processes", "disk"]


@dataclass(frozen=True, slots=True)
class SandboxResources:
    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: float | None = None
    gpu: int | None = None
    gpu_type: str | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "SandboxResources":
        known = [one.name for one in fields(cls)]
        unknown = sorted(set(mapping) - set(known))
        if unknown:
            raise ValueError(f"Unknown sandbox resources: {', '.join(unknown)}. Known are: {', '.join(known)}.")
        return cls(**mapping)


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Sandbox options."""

    image: str | None = None
    ttl_s: float | None = None
    ready_timeout_s: float | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Path in the sandbox to the text that is written there at the start."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    resources: SandboxResources = field(default_factory=SandboxResources)
    entrypoint: list[str] | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.resources, Mapping):
            object.__setattr__(self, "resources", SandboxResources.from_mapping(self.resources))
        object.__setattr__(self, "ports", _ports(self.ports))


def _ports(ports: Any) -> tuple[int, ...]:
    numbers = []
    for port in ports:
        text = port.isdigit() if isinstance(port, str) else isinstance(port, int) and not isinstance(port, bool)
        if not text or not 1 <= int(port) <= 65535:
            raise ValueError(f"{port!r} is not a port; expected a number from 1 to 65535.")
        numbers.append(int(port))
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"The ports {numbers} name one twice.")
    return tuple(numbers)


@dataclass(slots=True)
class SandboxExecResult:
    """How a command ended. A failure of the sandbox itself is one of these too, with an `error_type`."""

    stdout: str | None = None
    stderr: str | None = None
    return_code: int = 0
    """As a shell shows it: 128 + n for a command that signal n ended."""
    error_type: ErrorType | None = None
    limit: LimitName | None = None
    """The limit that ended the command."""
    is_truncated: bool = False
    """True if output was dropped because there was too much of it."""
    cpu_s: float = 0.0


ExecResult = SandboxExecResult


@dataclass(slots=True)
class SandboxHandle:
    """A sandbox as its provider knows it."""

    sandbox_id: str
    provider_name: str
    raw: Any = None


@dataclass(frozen=True, slots=True)
class SandboxEndpoint:
    """Where a port of a sandbox can be reached."""

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if not (parts.scheme and parts.netloc):
            raise ValueError(f"{self.endpoint!r} is not an absolute URL.")


class SandboxStatus(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


class PythonResult(NamedTuple):
    """What one piece of code did in a Python session."""

    stdout: str
    stderr: str
    result: str | None
    """The text of the last expression's value, if the code ends with an expression."""
    error: str | None = None
    """The text of the exception that ended the code."""
    error_type: str | None = None
    limit: LimitName | None = None
    is_lost: bool = False
    """True if the process ended: the variables are gone, and the next code starts in a new one."""


class SandboxProvider(Protocol):
    """Something that makes sandboxes. `create` returns only when commands run."""

    name: ClassVar[str]

    async def create(self, spec: SandboxSpec) -> SandboxHandle: ...

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult: ...

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None: ...

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None: ...

    async def status(self, handle: SandboxHandle) -> SandboxStatus: ...

    async def close(self, handle: SandboxHandle) -> None: ...

    async def aclose(self) -> None: ...


class SandboxError(GymError, RuntimeError):
    """A sandbox failed."""


class SandboxCreateError(SandboxError):
    """A sandbox could not be created."""


class SandboxUnavailableError(SandboxCreateError):
    """This machine, or this configuration, offers no sandbox that may be used."""


class SandboxCreateVerificationError(SandboxCreateError):
    """A sandbox was created, but its probe command did not give what was expected."""


class SandboxPtyError(SandboxError):
    """A pseudo-terminal could not be had."""


MIB = 2**20


def time_limits(cpu_s: float) -> dict[str, float]:
    """The limits of a server whose code may take so much CPU time, also on a machine that is busy."""
    return {"cpu_s": cpu_s, "wall_s": wall_limit_s(cpu_s)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one sandbox. Times are per action, all others hold for the sandbox as a whole."""

    cpu_s: float = 60.0
    """CPU time of one action, over all its processes."""
    wall_s: float = 180.0
    """Wall time of one action, unless the caller names another."""
    memory_mb: int = 2048
    """Memory of all processes together, and of each alone."""
    processes: int = 64
    """Processes and threads alive at once."""
    open_files: int = 256
    """Open files of one process."""
    disk_mb: int = 256
    """Size of the work folder. `/tmp` has as much again."""
    files: int = 50_000
    """Files and folders in the work folder, and in `/tmp`."""
    output_bytes: int = MIB
    """Bytes kept of standard output, and of standard error, of one action. The rest is dropped."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not value > 0:
                raise ValueError(f"The limit {limit.name} is {value}; expected a positive number.")

    @classmethod
    def from_mapping(cls, mapping: dict[str, Any]) -> "Limits":
        unknown = mapping.keys() - {limit.name for limit in fields(cls)}
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise ValueError(f"Unknown limits: {', '.join(sorted(unknown))}. Known are: {known}.")
        return cls(**mapping)

    def rlimits(self, *, counts_processes: bool) -> dict[str, int]:
        """As `setrlimit` takes them. CPU time is set for each action by itself."""
        memory = self.memory_mb * MIB
        limits = {
            "RLIMIT_DATA": memory,
            # Reserved address space is not memory; interpreters reserve gigabytes of it.
            "RLIMIT_AS": memory + 4096 * MIB,
            "RLIMIT_FSIZE": self.disk_mb * MIB,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_MEMLOCK": 65536,
        }
        return {**limits, "RLIMIT_NPROC": self.processes} if counts_processes else limits


def rewrite_image(image: str | None, rewrites: Iterable[Mapping[str, str]]) -> str | None:
    """The image with the first matching prefix replaced, as for a mirror."""
    if image is None:
        return None
    for rewrite in rewrites:
        if image.startswith(rewrite["from"]):
            return rewrite["to"] + image.removeprefix(rewrite["from"])
    return image
