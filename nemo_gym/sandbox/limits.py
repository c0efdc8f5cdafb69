"""What model-written code may use."""

from dataclasses import dataclass, fields
from typing import Any

from nemo_gym.common.time_limits import wall_limit_s

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
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"The limit {field.name} is {value}; expected a positive number.")

    @classmethod
    def from_mapping(cls, mapping: dict[str, Any]) -> "Limits":
        unknown = mapping.keys() - {field.name for field in fields(cls)}
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
