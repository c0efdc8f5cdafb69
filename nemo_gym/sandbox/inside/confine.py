"""Confinement of processes in a sandbox: privileges, Landlock, seccomp and namespaces.

In a bubblewrap sandbox all restrictions are in place before the agent starts. Elsewhere a child gives up new
privileges, enters a Landlock domain and loads a seccomp filter before it runs model-written code.

A sandbox that is forked enters namespaces of its own, inside those that bubblewrap made for the fork server: read-only
programs, no network, no process of the host. So the inner namespaces separate sandboxes from each other, not from the
host."""

from __future__ import annotations

import _ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
SECCOMP_MODE_FILTER = 2
PR_CAPBSET_DROP, PR_SET_SECUREBITS = 24, 28
NO_ROOT_PRIVILEGES = 3
"""SECBIT_NOROOT, locked: user 0 is a user like any other."""
CAPABILITIES = 64
CAPABILITY_VERSION_3 = 0x20080522
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
SIGKILL = 9
_OPENED: list[Any] = []


class Confinement:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._filter: bytes = settings["seccomp"]
        self._ruleset = -1
        self.is_namespaced: bool = settings["pid_namespace"]
        """True if children need no confinement of their own before they run a command."""
        self._pid = os.getpid()
        prctl(PR_SET_DUMPABLE, 0)  # so that no child can read or write this process through /proc
        if not self.is_namespaced:
            import ctypes  # noqa: F401 - once here, and not in every child

            prctl(PR_SET_CHILD_SUBREAPER, 1)
        if settings["landlock"]:
            self._ruleset = landlock_ruleset(settings["landlock"])

    def apply(self) -> None:
        """Confine this child process. This cannot be undone."""
        prctl(PR_SET_DUMPABLE, 1)
        prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        if not self.is_namespaced and os.geteuid() == 0:
            drop_bounding_set()
            prctl(PR_SET_SECUREBITS, NO_ROOT_PRIVILEGES)
            drop_capabilities()
        if self._ruleset >= 0:
            landlock(LANDLOCK_RESTRICT_SELF, self._ruleset, 0)
        if self._filter:
            load_filter(self._filter)


def prctl(*arguments: int) -> None:
    """Call prctl without `ctypes`, whose import would add a third to the start-up time of a sandbox."""
    address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    padded = (*arguments, *[0] * (5 - len(arguments)))
    if _ctypes.call_function(address, padded) < 0:
        raise OSError(f"prctl({arguments[0]}) failed")


def drop_bounding_set() -> None:
    for number in range(CAPABILITIES):
        if libc().prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:  # the kernel has no more capabilities
            return


def drop_capabilities() -> None:
    header, none = struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24)
    if libc().capset(header, none) < 0:
        raise OSError("capabilities could not be dropped")


def landlock_ruleset(landlock_settings: dict[str, Any]) -> int:
    """Create a ruleset that denies access to files, TCP and outside processes except as its rules allow."""
    handled = (landlock_settings["files"], landlock_settings["network"], landlock_settings["scope"])
    attributes = struct.pack("=QQQ", *handled)[: landlock_settings["size"]]
    ruleset = landlock(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    for path, access in landlock_settings["rules"]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        landlock(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, struct.pack("=Qi", access, fd), 0)
        os.close(fd)
    return ruleset


def landlock(number: int, *arguments: int | bytes) -> int:
    import ctypes

    result: int = libc().syscall(*words((number, *arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock system call {number}: {os.strerror(error)}")
    return result


def libc() -> Any:
    """The C library, opened once."""
    if not _OPENED:
        import ctypes

        _OPENED.append(ctypes.CDLL(None, use_errno=True))
    return _OPENED[0]


def words(arguments: tuple[int | bytes | None, ...]) -> list[Any]:
    """Convert arguments for a C function, with integers as wide as registers."""
    import ctypes

    return [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]


def load_filter(program: bytes) -> None:
    import ctypes

    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    if libc().prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0) < 0:
        raise OSError("the seccomp filter could not be loaded")


CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
SIOCSIFFLAGS, IFF_UP_AND_RUNNING = 0x8914, 0x41


class PidNamespaces:
    """Forks children that are the first process of a PID namespace each."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> int:
        call("unshare", CLONE_NEWPID)
        try:
            pid = os.fork()
        except OSError:
            call("setns", self._own, CLONE_NEWPID)
            raise
        if pid:
            call("setns", self._own, CLONE_NEWPID)
        return pid


def continue_in_pid_namespace() -> None:
    """Continue as the first process of a new PID namespace that belongs to this user namespace: only such a
    namespace can be re-entered. The old process waits for it, with no other open files."""
    call("unshare", CLONE_NEWPID)
    pid = os.fork()
    if pid:
        os.closerange(3, 65536)
        os.waitpid(pid, 0)
        os._exit(0)


def enter_namespaces(settings: dict[str, Any]) -> None:
    """Enter new namespaces, with empty folders instead of those of the fork server."""
    call("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)
    try:  # noqa: SIM105 - contextlib takes milliseconds to import
        call("unshare", CLONE_NEWCGROUP)
    except OSError:
        pass
    call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    mount("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path, size in settings["folders"]:
        mount("tmpfs", path, MS_NOSUID | MS_NODEV, f"size={size},mode=1777")
    _bring_up_loopback()
    if settings["uid_inside"] is None:
        _mount_terminals()
    else:
        _enter_user_namespace(0)
        call("unshare", CLONE_NEWNS)
        _mount_terminals()
        _enter_user_namespace(settings["uid_inside"])
    drop_bounding_set()


def give_up_privileges(settings: dict[str, Any]) -> None:
    """Drop all privileges permanently, after this process has become the sandbox's user."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    drop_capabilities()
    load_filter(settings["filter"])


def _mount_terminals() -> None:
    """Mount the sandbox's own pseudo-terminals. Only user 0 of a namespace can do so."""
    mount("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")


def _enter_user_namespace(uid_inside: int) -> None:
    """Enter a user namespace. In the last one the kernel counts the processes of this sandbox; it owns nothing."""
    uid, gid = os.getuid(), os.getgid()
    call("unshare", CLONE_NEWUSER)
    for file, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid_inside} {uid} 1"),
        ("gid_map", f"{uid_inside} {gid} 1"),
    ):
        fd = os.open(f"/proc/self/{file}", os.O_WRONLY)
        os.write(fd, content.encode())
        os.close(fd)


def _bring_up_loopback() -> None:
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP_AND_RUNNING))


def mount(kind: str, path: str, flags: int, options: str = "") -> None:
    call("mount", kind.encode(), path.encode(), kind.encode(), flags, options.encode())


def call(name: str, *arguments: int | bytes | None) -> None:
    import ctypes

    if getattr(libc(), name)(*words(arguments)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments[:2]}: {os.strerror(error)}")
