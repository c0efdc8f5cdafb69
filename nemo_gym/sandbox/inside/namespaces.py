"""Namespaces of one sandbox inside those that bubblewrap made for its fork server.

Outside of them are the fork server's: read-only programs, no network, no process of the host's. So what these have to
keep apart are sandboxes, not a sandbox and the host."""

from __future__ import annotations

import os
import struct

from nemo_gym.sandbox.inside.confine import (
    PR_SET_NO_NEW_PRIVS,
    drop_bounding_set,
    drop_capabilities,
    libc,
    load_filter,
    prctl,
    words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
    """Go on as the first process of a PID namespace that belongs to this user namespace: only such can be re-entered.
    The process that was there before waits for it, with nothing else open."""
    call("unshare", CLONE_NEWPID)
    pid = os.fork()
    if pid:
        os.closerange(3, 65536)
        os.waitpid(pid, 0)
        os._exit(0)


def enter(settings: dict[str, Any]) -> None:
    """Leave the fork server's namespaces for new ones, with empty folders in place of its own."""
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
    """For good, once this process is the sandbox's user."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    drop_capabilities()
    load_filter(settings["filter"])


def _mount_terminals() -> None:
    """Pseudo-terminals of its own. Only a user 0 can mount them, in whatever namespace."""
    mount("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")


def _enter_user_namespace(uid_inside: int) -> None:
    """The last of them is the one in which the kernel counts the processes of this sandbox; it owns nothing."""
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
