"""Starts Chromium: a script that runs by itself, inside of the namespaces of a browser.

`confined.py SOCKET COUNT BYTES COMMAND...` opens COUNT listening ports on the loopback interface that it sees, hands
them to whoever listens on the Unix socket, limits the private memory of each process to BYTES, and becomes COMMAND.
A port belongs to the network namespace in which it was opened, whoever holds it: the browser has no other network."""

import ctypes
import os
import resource
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1


def main(path: str, count: int, max_bytes: int, command: "list[str]") -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ports = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(count)]
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(path)
        socket.send_fds(control, [b"\0"], [port.fileno() for port in ports])
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
