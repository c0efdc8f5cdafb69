"""The life of a worker: one event loop that serves one stack.

`python -m nemo_gym.rollouts.worker` reads a `StackSpec` from standard input and inherits its listening sockets. It
stops when standard input is closed, so it ends with its supervisor."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from nemo_gym.common import event_loop
from nemo_gym.common.forks import close_in_forks
from nemo_gym.common.logging import configure_logging
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.common.redaction import printable, redact
from nemo_gym.config.secrets import Secrets, set_process_secrets
from nemo_gym.errors import GymError
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.server.asgi import App
from nemo_gym.server.forwarding import by_server_header
from nemo_gym.server.uvicorn_runner import serving, set_by_signals

EXIT_CONFIG = 78
"""Exit code of a worker that would fail the same way if it were started again (EX_CONFIG of sysexits.h)."""
PROFILING_RESULTS_KEY = "profiling_results_dirpath"
READY = "\x1enemo-gym worker ready"
"""The line that a worker prints when it serves."""

ServeRows = Callable[[Stack, socket.socket], AbstractAsyncContextManager[None]]
"""Accepts rows of collectors on a socket while the block runs."""


async def serve(spec: StackSpec, stop: asyncio.Event, serve_rows: ServeRows, on_ready: Callable[[], None]) -> None:
    """Serve a stack on its sockets until `stop` is set, then finish what is in flight: rows first, which need the
    servers."""
    for fd in (*(server.fd for server in spec.servers), spec.http_fd, spec.rows_fd):
        if fd is not None:
            close_in_forks(fd)
    if spec.secrets is not None:
        set_process_secrets(Secrets.from_json(spec.secrets))
    async with contextlib.AsyncExitStack() as opened:
        stack = await opened.enter_async_context(Stack(spec, ends_process=True))
        sockets = {server.name: socket.socket(fileno=server.fd) for server in spec.servers if server.fd is not None}
        apps: dict[int, App] = {bound.getsockname()[1]: stack.apps[name] for name, bound in sockets.items()}
        listening = list(sockets.values())
        if spec.http_fd is not None:
            listening.append(socket.socket(fileno=spec.http_fd))
            apps[listening[-1].getsockname()[1]] = by_server_header(stack.apps)
        await opened.enter_async_context(serving(apps, listening, stack.limits))
        if spec.rows_fd is not None:
            await opened.enter_async_context(serve_rows(stack, socket.socket(fileno=spec.rows_fd)))
        on_ready()
        await stop.wait()


async def _serve_supervised(
    spec: StackSpec, control_fd: int, serve_rows: ServeRows, on_ready: Callable[[], None]
) -> None:
    stop, loop = set_by_signals(), asyncio.get_running_loop()

    def stop_at_end_of_input() -> None:
        if not os.read(control_fd, 4096):
            loop.remove_reader(control_fd)
            stop.set()

    loop.add_reader(control_fd, stop_at_end_of_input)
    await serve(spec, stop, serve_rows, on_ready)


def _detach_stdin() -> int:
    """Move the supervisor's pipe to a descriptor that programs started by servers do not inherit, and return it.

    They get /dev/null as standard input, so none of them reads the pipe or keeps it open.
    """
    control_fd = os.dup(sys.stdin.fileno())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, sys.stdin.fileno())
    os.close(null)
    return control_fd


def _enter_folder(spec: StackSpec) -> None:
    """Work in the folder of an isolated server, as its code may expect. Paths of the user are still found, and
    the profile still goes where the user wants it."""
    server = spec.servers[0]
    if server.isolation == "process":
        roots = [os.environ.get(EXTRA_ROOTS_ENV_VAR), str(Path.cwd())]
        os.environ[EXTRA_ROOTS_ENV_VAR] = os.pathsep.join(filter(None, roots))
        if results := spec.config.get(PROFILING_RESULTS_KEY):
            spec.config[PROFILING_RESULTS_KEY] = str(Path(results).absolute())
        os.chdir(server.folder)


def run_supervised(serve_rows: ServeRows) -> None:
    """Entry point of a worker process."""
    configure_logging()
    spec = StackSpec.from_json(sys.stdin.buffer.readline())
    control_fd = _detach_stdin()
    _enter_folder(spec)
    was_ready = False

    def on_ready() -> None:
        nonlocal was_ready
        was_ready = True
        print(READY, flush=True)  # noqa: T201 - read by the supervisor

    try:
        event_loop.run(_serve_supervised(spec, control_fd, serve_rows, on_ready))
    except GymError as error:
        sys.stderr.write(printable(redact(f"{error}\n")))
        sys.exit(1 if was_ready else EXIT_CONFIG)
