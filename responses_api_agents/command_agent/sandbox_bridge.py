"""Runs inside the sandbox, with the standard library alone: forwards a port of its loopback to a Unix socket that
leads to the host, runs the command, and ends with the command's return code."""

import contextlib
import socket
import subprocess
import sys
import threading


def main() -> int:
    path, port, *command = sys.argv[1:]
    listening = socket.create_server(("127.0.0.1", int(port)))
    threading.Thread(target=serve, args=(listening, path), daemon=True).start()
    try:
        return subprocess.call(command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127


def serve(listening: socket.socket, path: str) -> None:
    while True:
        near, _ = listening.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(path)
        except OSError:
            near.close()
            continue
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=copy, args=(source, sink), daemon=True).start()


def copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main())
