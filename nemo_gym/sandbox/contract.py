"""The contract of sandboxes: what one is asked for, what it answers, what a provider must do."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

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
    """What a sandbox is to be like."""

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
