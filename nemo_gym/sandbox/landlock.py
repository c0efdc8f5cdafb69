"""Sandboxes without namespaces: Landlock, seccomp and rlimits. Isolation is partial: `NOT_COVERED` lists the gaps.

`unconfined` is for code you trust: the same folder and limits, without isolation."""

import ctypes
import functools
import logging
import os
import platform
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from nemo_gym.sandbox.contract import Level, Limits, SandboxSpec, SandboxUnavailableError
from nemo_gym.sandbox.local import LocalProvider, Runtime, unused_uid
from nemo_gym.sandbox.process import ForkServer, Launch, boot_command
from nemo_gym.sandbox.seccomp import seccomp_filter

logger = logging.getLogger(__name__)

MORE_PROCESSES = 512
"""Processes that an ordinary user may start elsewhere, including later sandboxes, before this sandbox can start none:
the kernel counts all of them together. The agent checks the number of this sandbox's own processes."""
NOT_COVERED = (
    "The work folder is a folder of the host under a path of its own: /work, /tmp and other fixed paths do not exist.",
    "Disk usage is checked twice a second while something runs, so a quick writer can exceed the limit for a moment.",
    "Deleted files count towards it while a process has them open, not if it only maps them or has sent them away.",
    "The number of processes is checked 20 times a second; the kernel's own limit counts all processes of the user.",
    "There is no PID namespace: if the agent is killed from outside (out of memory), grandchildren of a command that "
    "left its process group live on until they end by themselves.",
    "Metadata of files outside the sandbox (size, owner, times, existence) can be read, and rights and times of files "
    "of the same user changed (chmod, utime).",
    "Process ids of the host are visible, but not what runs there.",
    "No sockets at all: also those between processes of one sandbox are refused (socketpair works).",
    "Kernels before 6.12 (Landlock ABI 6): signals can be sent to other processes of the same user.",
    "As an ordinary user, code can end its own sandbox by killing its agent.",
    "Names of installed packages are visible, their contents are not.",
)

FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of file rights by Landlock ABI."""
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
MAKE_CHAR, MAKE_BLOCK, TRUNCATE = 1 << 6, 1 << 11, 1 << 14
READ_AND_RUN = EXECUTE | READ_FILE | READ_DIR
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_UNIX, SCOPE_SIGNAL = 1, 2
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_CREATE_RULESET, _VERSION_FLAG = 444, 1


class LandlockProvider(LocalProvider):
    name: ClassVar[str] = "landlock"
    level: ClassVar[Level] = "partial"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if landlock_abi() < 1:
            raise SandboxUnavailableError(
                "This kernel has no Landlock. It is in Linux 5.13 and later, if 'landlock' is among the LSMs (lsm= on "
                "the kernel's command line)."
            )

    def launch(self, spec: SandboxSpec, limits: Limits, runtime: Runtime, server: ForkServer | None = None) -> Launch:
        uid = unused_uid() if os.geteuid() == 0 and is_public(runtime.python) else None
        launch = folder_launch(self, limits, runtime, server, uid=uid)
        launch.settings["landlock"] = rules(runtime, launch.folder or Path())
        launch.settings["seccomp"] = seccomp_filter(in_namespaces=False)
        return launch


def folder_launch(
    provider: LocalProvider,
    limits: Limits,
    runtime: Runtime,
    server: ForkServer | None = None,
    *,
    uid: int | None = None,
) -> Launch:
    """Launch a sandbox in a private folder of the host, as user `uid`; None: as this user."""
    folder = Path(tempfile.mkdtemp(prefix="nemo-gym-sandbox-"))
    work, temp, packages = folder / "work", folder / "tmp", folder / "packages"
    for path in (work, temp, packages):
        path.mkdir()
    for source, path_inside in runtime.binds:
        if path_inside.startswith(tuple(f"{path}/" for path in runtime.python_path)):
            (packages / Path(path_inside).name).symlink_to(source)
    settings = provider.settings(limits, runtime, str(work))
    python_path = [str(packages)] if runtime.python_path else []
    environment = provider.environment(runtime, str(work), str(temp)) | {"PYTHONPATH": ":".join(python_path)}
    if uid is not None:
        folder.chmod(0o711)
        for path in (work, temp):
            os.chown(path, uid, uid)
    counted = None if os.geteuid() == 0 else limits.processes + user_processes() + MORE_PROCESSES
    processes = {} if counted is None and uid is None else {"RLIMIT_NPROC": counted or limits.processes}
    settings |= {
        "pid_namespace": False,
        "disk_folders": [str(work), str(temp)],
        "writable": [],
        "uid": uid,
        "env": environment,
        "python_path": python_path,
        "rlimits": limits.rlimits(counts_processes=False) | processes,
    }
    return Launch(boot_command(runtime.python), settings, folder=folder, server=server)


def rules(runtime: Runtime, folder: Path) -> dict[str, Any]:
    """Return the settings for the agent's Landlock ruleset."""
    abi = landlock_abi()
    rights = (1 << max(count for version, count in FILE_RIGHTS.items() if version <= abi)) - 1
    writable = rights & ~(MAKE_CHAR | MAKE_BLOCK)
    allowed = [(path, access & rights) for path, access in readable(runtime)]
    allowed += [(device, (READ_FILE | WRITE_FILE | TRUNCATE) & rights) for device in DEVICES]
    allowed += [(str(folder / name), writable) for name in ("work", "tmp")]
    allowed += [(str(folder / "packages"), READ_AND_RUN)]
    return {
        "files": rights,
        "network": BIND_TCP | CONNECT_TCP if abi >= 4 else 0,
        "scope": SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL if abi >= 6 else 0,
        "size": 24 if abi >= 6 else 16 if abi >= 4 else 8,
        "rules": allowed,
    }


@functools.lru_cache
def readable(runtime: Runtime) -> list[tuple[str, int]]:
    """Return rules for the runtime's files. Landlock cannot deny a subfolder of an allowed folder, so allowed folders
    exclude masked ones."""
    own_etc = Path(__file__).parent / "etc"
    sources = [source for source, _ in runtime.binds if source != str(own_etc)]
    return [rule for source in sources for rule in _beneath(source, runtime.masked)]


def _beneath(path: str, masked: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    if path in masked:
        return
    if not any(one.startswith(f"{path}/") for one in masked):
        yield path, READ_AND_RUN if os.path.isdir(path) else EXECUTE | READ_FILE
        return
    yield path, READ_DIR
    for entry in os.scandir(path):
        yield from _beneath(entry.path, masked)


@functools.cache
def landlock_abi() -> int:
    """Return the Landlock ABI of this kernel; 0 if it has none."""
    if platform.system() != "Linux":
        return 0
    libc = ctypes.CDLL(None)
    return max(
        0, int(libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_long(0), ctypes.c_long(_VERSION_FLAG)))
    )


def is_public(path: str) -> bool:
    """True if every user of the machine can execute the file."""
    folders = all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).parents)
    return folders and bool(os.stat(path).st_mode & stat.S_IXOTH)


def user_processes() -> int:
    """Count the processes and threads of this user, as the kernel does."""
    count = 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{entry.name}/task"))
        except OSError:
            continue
    return count


class UnconfinedProvider(LocalProvider):
    name: ClassVar[str] = "unconfined"
    level: ClassVar[Level] = "none"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        logger.warning("sandbox provider 'unconfined': model-written code can read your files and use the network")

    def launch(self, spec: SandboxSpec, limits: Limits, runtime: Runtime, server: ForkServer | None = None) -> Launch:
        return folder_launch(self, limits, runtime, server)
