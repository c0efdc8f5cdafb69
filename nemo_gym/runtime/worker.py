"""The worker process: one event loop that serves one stack.

Started with `python -m nemo_gym.runtime.worker`, it reads its `StackSpec` from standard input and inherits its
listening sockets. It stops when standard input is closed, so it ends with its supervisor."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from nemo_gym.common import event_loop
from nemo_gym.common.logging import configure_logging
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.common.redaction import printable, redact
from nemo_gym.config.secrets import Secrets, set_process_secrets
from nemo_gym.errors import GymError
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.server.uvicorn_runner import serving

EXIT_CONFIG = 78
"""Exit code of a worker that would fail the same way if it were started again (EX_CONFIG of sysexits.h)."""


async def serve(spec: StackSpec) -> None:
    """Serve a stack on its inherited sockets until a signal or the end of standard input."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(sys.stdin.fileno(), lambda: _stop_at_end_of_input(stop))
    async with Stack(spec) as stack:
        sockets = {server.name: socket.socket(fileno=server.fd) for server in spec.servers if server.fd is not None}
        ports = {bound.getsockname()[1]: stack.apps[name] for name, bound in sockets.items()}
        async with serving(ports, list(sockets.values()), stack.limits):
            await stop.wait()


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


def _enter_folder(spec: StackSpec) -> None:
    """Work in the folder of an isolated server, as its code may expect. Paths of the user are still found."""
    server = spec.servers[0]
    if server.isolation == "process":
        roots = [os.environ.get(EXTRA_ROOTS_ENV_VAR), str(Path.cwd())]
        os.environ[EXTRA_ROOTS_ENV_VAR] = os.pathsep.join(filter(None, roots))
        os.chdir(server.folder)


def main() -> None:
    """Entry point of the process."""
    configure_logging()
    spec = StackSpec.from_json(sys.stdin.buffer.readline())
    _enter_folder(spec)
    if spec.secrets is not None:
        set_process_secrets(Secrets.from_json(spec.secrets))
    try:
        event_loop.run(serve(spec))
    except GymError as error:
        sys.stderr.write(printable(redact(f"{error}\n")))
        sys.exit(EXIT_CONFIG)


if __name__ == "__main__":
    main()
