"""Runs a command, and ends every process that it started when the command ends, when this process is asked to
terminate, or when its parent dies. On Linux that includes processes that left the command's session.

Started once per rollout, so it imports little."""

import ctypes
import os
import signal
import sys
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    parent, start_error, *command = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        return
    process = os.fork()
    if process == 0:
        execute(command, start_error)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_descendants(process)
    if code < 0:  # end as it did
        with suppress(OSError):  # SIGKILL needs no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def execute(command: list[str], start_error: str) -> None:
    """Become the command."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        for changed in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(changed, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        with open(start_error, "w") as file:
            file.write(str(error))
    finally:
        os._exit(127)


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_descendants(group: int) -> None:
    """Kill until no child is left: the children of a process that died are ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    with suppress(ChildProcessError, FileNotFoundError):  # none is left; there is no /proc
        while True:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            if sum(kill(child) for child in children()) == 0:
                return
            os.waitpid(-1, 0)


def kill(process: int) -> bool:
    """False for a process of another user."""
    try:
        os.kill(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def children() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and parent_of(name) == os.getpid()]


def parent_of(process: str) -> int | None:
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:  # it has ended
        return None


if __name__ == "__main__":
    main()
