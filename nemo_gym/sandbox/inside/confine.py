"""What a child of the agent does to itself before it runs anything of the model's.

In a bubblewrap sandbox all restrictions are in place before the agent starts. Elsewhere a child gives up new
privileges, enters a Landlock domain and loads a seccomp filter."""

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
        """Then children have nothing to do to themselves before they run a command."""
        self._pid = os.getpid()
        prctl(PR_SET_DUMPABLE, 0)  # so that no child can read or write this process through /proc
        if not self.is_namespaced:
            import ctypes  # noqa: F401 - once here, and not in every child

            prctl(PR_SET_CHILD_SUBREAPER, 1)
        if settings["landlock"]:
            self._ruleset = landlock_ruleset(settings["landlock"])

    def apply(self) -> None:
        """Called in the child. Nothing can be undone afterwards."""
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
    """Without `ctypes`: importing that would add a third to the start-up time of every sandbox."""
    address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    padded = (*arguments, *[0] * (5 - len(arguments)))
    if _ctypes.call_function(address, padded) < 0:
        raise OSError(f"prctl({arguments[0]}) failed")


def drop_bounding_set() -> None:
    for number in range(CAPABILITIES):
        if libc().prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:  # the kernel knows no more
            return


def drop_capabilities() -> None:
    header, none = struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24)
    if libc().capset(header, none) < 0:
        raise OSError("capabilities could not be dropped")


def landlock_ruleset(landlock_settings: dict[str, Any]) -> int:
    """A ruleset that refuses all access to files, TCP and outside processes except what its rules allow."""
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
    """Arguments of a C function, integers as wide as the registers they are passed in."""
    import ctypes

    return [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]


def load_filter(program: bytes) -> None:
    import ctypes

    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    if libc().prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0) < 0:
        raise OSError("the seccomp filter could not be loaded")
