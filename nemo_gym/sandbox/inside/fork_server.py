"""The fork server: one started interpreter that becomes the agent of every sandbox by forking.

Starting an interpreter costs more than everything else about a sandbox. This process knows nothing of a sandbox but
its open files: the child reads its settings by itself, so that no sandbox inherits what another was told."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import marshal
import os

from nemo_gym.sandbox.inside import agent, namespaces
from nemo_gym.sandbox.inside.confine import PR_SET_DUMPABLE, prctl
from nemo_gym.sandbox.inside.frames import read_exactly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

CONTROL_FD = 3
FORKED = ("ctypes", "ast", "json", "traceback", "fcntl", "_socket")
"""Modules that agents or sessions import sooner or later."""


def main(settings: dict[str, Any]) -> None:
    """What the interpreter of a sandbox is started for."""
    if settings["is_fork_server"]:
        serve(settings)
    else:
        agent.main(settings)


def serve(settings: dict[str, Any]) -> None:
    """Fork an agent for every pair of open files that comes: its control socket, and where it reports errors."""
    import socket

    agent.prepare_interpreter(settings)
    for name in FORKED:
        __import__(name)
    if settings["owns_no_pid_namespace"]:
        namespaces.continue_in_pid_namespace()
    outer = namespaces.PidNamespaces() if settings["pid_namespace"] else None
    prctl(PR_SET_DUMPABLE, 0)
    _signal.signal(_signal.SIGCHLD, _reap)
    control = socket.socket(fileno=CONTROL_FD)
    while True:
        request, fds, _flags, _address = socket.recv_fds(control, 1, 2)
        if not request:
            os._exit(0)
        if len(fds) == 2:
            _fork(outer, *fds)
        for fd in fds:
            os.close(fd)


def _fork(outer: namespaces.PidNamespaces | None, control_fd: int, error_fd: int) -> None:
    """Fork an agent and send the host a descriptor of its process; a byte alone says that it failed."""
    try:
        pid = outer.fork() if outer else os.fork()
        if not pid:
            _become_agent(control_fd, error_fd)
        fds = [os.pidfd_open(pid)]
    except OSError:
        fds = []
    _answer(control_fd, fds)


def _answer(control_fd: int, fds: list[int]) -> None:
    import socket

    with socket.socket(fileno=os.dup(control_fd)) as connection:
        try:  # noqa: SIM105 - contextlib is not imported in a sandbox
            socket.send_fds(connection, [b"\0"], fds)
        except OSError:  # the host has given it up, and so will the agent
            pass
    for fd in fds:
        os.close(fd)


def _become_agent(control_fd: int, error_fd: int) -> None:
    try:
        os.dup2(error_fd, 2)
        os.dup2(control_fd, CONTROL_FD)
        os.closerange(CONTROL_FD + 1, 65536)
        os.setsid()
        prctl(PR_SET_DUMPABLE, 1)  # else its own entries in /proc, through which it enters namespaces, are not its own
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        length = int.from_bytes(read_exactly(CONTROL_FD, 4), "big")
        agent.main(marshal.loads(read_exactly(CONTROL_FD, length)))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(1)


def _reap(_number: int, _frame: FrameType | None) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
