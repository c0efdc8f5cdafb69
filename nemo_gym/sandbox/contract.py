"""The contract of sandboxes: options, results, limits, errors, and the interface of a provider."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

from nemo_gym.common.deadline import wall_limit_s
from nemo_gym.errors import GymError

DEFAULT_TIMEOUT_S = 180.0
MAX_DOWNLOAD_BYTES = 128 * 2**20
RUNTIME_FAILURE = 125
"""Return code of a command that the sandbox ended or could not run."""

TEMP = "/tmp"  # noqa: S108 - in the sandbox
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - in the sandbox

ErrorType = Literal["timeout", "sandbox", "pty"]
Level = Literal["full", "partial", "none"]
"""The isolation of a provider, compared with the contract: all, some, or none."""
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
    """Text files to write at the start, by path in the sandbox."""
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
        raise ValueError(f"The ports {numbers} contain a duplicate.")
    return tuple(numbers)


@dataclass(slots=True)
class SandboxExecResult:
    """The result of a command. A failure of the sandbox itself is also such a result, with an `error_type`."""

    stdout: str | None = None
    stderr: str | None = None
    return_code: int = 0
    """The exit code as in a shell: 128 + n for a command that signal n ended."""
    error_type: ErrorType | None = None
    limit: LimitName | None = None
    """The limit that ended the command."""
    is_truncated: bool = False
    """True if output beyond the limit was dropped."""
    cpu_s: float = 0.0


ExecResult = SandboxExecResult


@dataclass(slots=True)
class SandboxHandle:
    """A sandbox of a provider."""

    sandbox_id: str
    provider_name: str
    raw: Any = None


@dataclass(frozen=True, slots=True)
class SandboxEndpoint:
    """The URL of a port of a sandbox."""

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
    """The result of code in a Python session."""

    stdout: str
    stderr: str
    result: str | None
    """The value of the last expression as text, if the code ends with an expression."""
    error: str | None = None
    """The exception that ended the code, as text."""
    error_type: str | None = None
    limit: LimitName | None = None
    is_lost: bool = False
    """True if the process ended. The next code runs in a new process without the variables."""
    cpu_s: float = 0.0


class SandboxProvider(Protocol):
    """Creates sandboxes. `create` returns when the sandbox can run commands."""

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


@runtime_checkable
class ConnectableProvider(Protocol):
    """A provider whose sandboxes another process can connect to."""

    async def serialize_handle(self, handle: SandboxHandle, scope: str | None = None) -> Any: ...

    async def connect(self, descriptor: Any) -> SandboxHandle: ...


@runtime_checkable
class SupportsSandboxEndpoint(Protocol):
    """A provider whose sandboxes can be reached over the network."""

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint: ...


class SandboxError(GymError, RuntimeError):
    """A sandbox failed."""


class SandboxCreateError(SandboxError):
    """A sandbox could not be created."""


class SandboxUnavailableError(SandboxCreateError):
    """No sandbox can be used on this machine, or with this configuration."""


class SandboxCreateVerificationError(SandboxCreateError):
    """A sandbox was created, but its probe command failed."""


class SandboxPtyError(SandboxError):
    """The provider has no pseudo-terminals, or could not open one."""


MIB = 2**20


def time_limits(cpu_s: float) -> dict[str, float]:
    """Return CPU and wall time limits for code with this CPU time, with slack for a busy machine."""
    return {"cpu_s": cpu_s, "wall_s": wall_limit_s(cpu_s)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one sandbox. Times are per action, all others hold for the sandbox as a whole."""

    cpu_s: float = 60.0
    """CPU time of one action, over all its processes."""
    wall_s: float = 180.0
    """Wall time of one action, unless the caller sets another."""
    memory_mb: int = 2048
    """Memory of all processes together, and of each process."""
    processes: int = 64
    """Processes and threads alive at once."""
    open_files: int = 256
    """Open files of one process."""
    disk_mb: int = 256
    """Size of the work folder. `/tmp` has the same limit."""
    files: int = 50_000
    """Files and folders in the work folder, and in `/tmp`."""
    output_bytes: int = MIB
    """Bytes kept of the standard output and of the standard error of one action. The rest is dropped."""

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
        """Return the limits for `setrlimit`. CPU time is set for each action separately."""
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
    """Replace the first matching prefix of an image name, for example with a mirror."""
    if image is None:
        return None
    for rewrite in rewrites:
        if image.startswith(rewrite["from"]):
            return rewrite["to"] + image.removeprefix(rewrite["from"])
    return image


CPU_CAP_ENV_VARS = (
    *("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "BLIS_NUM_THREADS", "PYTHON_CPU_COUNT", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT"),
    *("POLARS_MAX_THREADS", "PYTEST_XDIST_AUTO_NUM_WORKERS", "DJANGO_TEST_PROCESSES", "GOMAXPROCS"),
    *("CARGO_BUILD_JOBS", "RAYON_NUM_THREADS", "RUST_TEST_THREADS", "UV_THREADPOOL_SIZE"),
    "CMAKE_BUILD_PARALLEL_LEVEL",
)
"""Variables by which programs learn how many processors they may use."""


def cpu_cap_env(cpu: float | None) -> dict[str, str]:
    """Return an environment that tells programs how many processors a sandbox has."""
    return {} if cpu is None else dict.fromkeys(CPU_CAP_ENV_VARS, str(max(1, int(cpu))))
