"""The program of a worker process: it serves a stack, and makes the rollouts that collectors ask for with it.

`python -m nemo_gym.rollouts.worker` reads a `StackSpec` from standard input and inherits its listening sockets. It
stops when standard input is closed, so it ends with its supervisor. It is here and not in `runtime`, because it needs
both: what a stack is, and what a rollout is."""

import asyncio
import contextlib
import hmac
import itertools
import logging
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nemo_gym.client.head import rollout_name
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common import event_loop
from nemo_gym.common.descriptors import DESCRIPTORS_PER_LOCAL_ROLLOUT, outbound_limit
from nemo_gym.common.exceptions import is_meant_for_task
from nemo_gym.common.forks import close_in_forks
from nemo_gym.common.logging import configure_logging
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.common.redaction import printable, redact
from nemo_gym.config.secrets import Secrets, set_process_secrets
from nemo_gym.errors import BLOCKED_CODE, GymError, RolloutError
from nemo_gym.rollouts.attempts import InFlight, observed_attempt
from nemo_gym.rollouts.call_log import LogRequest, ModelGate
from nemo_gym.rollouts.types import Outcome, Row
from nemo_gym.rollouts.worker_protocol import (
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    VERSION,
    FrameConnection,
    Kind,
    ProtocolError,
    outcome_frame,
    read_row,
)
from nemo_gym.runtime.stack import EXIT_CONFIG, PROFILING_RESULTS_KEY, READY, Stack, StackSpec
from nemo_gym.server.asgi import App
from nemo_gym.server.forwarding import by_server_header
from nemo_gym.server.request_checks import GRACE_S
from nemo_gym.server.uvicorn_runner import serving, set_by_signals

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 10.0
DRAIN_POLL_S = 0.01
MAX_STAGES = 200


async def _await(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await run()


class RowServer:
    """Serves any number of collectors. When a collector disconnects, its rollouts are cancelled."""

    def __init__(self, client: ServerClient, *, worker: int, capacity: int, token: str | None) -> None:
        self._client, self._token = client, token
        self._hello = [Kind.HELLO, VERSION, worker, os.getpid(), capacity, list(client.local)]
        self._collectors: dict[FrameConnection, dict[int, InFlight]] = {}
        self._gates: dict[FrameConnection, ModelGate] = {}
        """Set if the model calls of a collector's rollouts may be made."""
        self._may_send_rows: set[FrameConnection] = set()
        """While draining: the collectors that may not know it yet."""

    @asynccontextmanager
    async def serving(self, listening: socket.socket, *, drain_s: float) -> AsyncIterator[None]:
        """Accept collectors while the block runs. At its end, rollouts in flight get `drain_s` to finish; those that
        do not are cancelled, and their collectors dispatch them to another worker."""
        server = await asyncio.get_running_loop().create_server(self._connection, sock=listening)
        try:
            yield
        finally:
            server.close()
            await self._drain(drain_s)

    @property
    def in_flight(self) -> int:
        return sum(map(len, self._collectors.values()))

    def _connection(self) -> FrameConnection:
        connection = FrameConnection(self._on_frame, self._on_lost, max_bytes=MAX_HELLO_BYTES)
        asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._close_silent, connection)
        return connection

    def _close_silent(self, connection: FrameConnection) -> None:
        if connection not in self._collectors:
            connection.abort()

    def _on_frame(self, connection: FrameConnection, head: list[Any], body: bytes) -> None:
        running = self._collectors.get(connection)
        if running is None:
            self._on_hello(connection, head)
        elif head[0] == Kind.ROW:
            gate = self._gates[connection]
            number, row, log = read_row(head, body, lambda *call: connection.send([Kind.CALL, call[0]], call[1]), gate)
            rollout = running[number] = InFlight(number, row)
            name = rollout_name(number, row.row_hash)
            rollout.context.run(event_loop.stack_name.set, name)
            rollout.start(event_loop.with_name(_await, name)(partial(self._run, connection, number, row, log)))
        elif head[0] == Kind.CANCEL and isinstance(head[-1], int):
            if (cancelled := running.get(head[-1])) is not None:
                cancelled.cancel()
        elif head[0] == Kind.PAUSE:
            gate = self._gates[connection]
            gate.clear() if head[-1] else gate.set()
            connection.send(head)
        elif head[0] == Kind.VERSION:
            self._gates[connection].version = head[-1]
        elif head[0] == Kind.PING:
            connection.send([Kind.PONG])
        elif head[0] == Kind.DRAINING:
            self._may_send_rows.discard(connection)
        elif head[0] == Kind.STAGES:
            now, oldest = time.monotonic(), itertools.islice(running.items(), MAX_STAGES)
            connection.send([Kind.STAGES, {str(number): rollout.stage(now) for number, rollout in oldest}])
        else:
            raise ProtocolError(f"the frame {head!r:.200}")

    def _on_hello(self, connection: FrameConnection, head: list[Any]) -> None:
        match head:
            case [Kind.HELLO, int(version), str(token)]:
                refusal = self._refusal(version, token)
            case _:
                raise ProtocolError("no hello")
        if refusal is None:
            self._collectors[connection] = {}
            self._gates[connection] = gate = ModelGate()
            gate.set()
            connection.max_bytes = MAX_FRAME_BYTES
            connection.send(self._hello)
        else:
            connection.send([Kind.REFUSED, refusal])
            connection.close()

    def _refusal(self, version: int, token: str) -> str | None:
        if version != VERSION:
            return f"it uses version {VERSION} of the row protocol, and this command version {version}"
        if self._token is not None and not hmac.compare_digest(token.encode(), self._token.encode()):
            return "it requires the run's token (NEMO_GYM_RUN_TOKEN)"
        return None

    def _on_lost(self, connection: FrameConnection, _error: Exception | None) -> None:
        self._may_send_rows.discard(connection)
        self._gates.pop(connection, None)
        for rollout in self._collectors.pop(connection, {}).values():
            rollout.cancel()

    async def _run(self, connection: FrameConnection, number: int, row: Row, log: LogRequest | None) -> None:
        try:
            outcome = await observed_attempt(self._client, row, log)
            if outcome.error is not None:  # the collector may not know the secrets of these servers
                outcome.error.args = (redact(str(outcome.error)),)
            connection.send(*outcome_frame(number, outcome))
            if outcome.error is not None and outcome.error.code == BLOCKED_CODE:
                connection.send_queued()  # the next one may block this turn of the loop until the worker is killed
        except BaseException as error:  # such as a TypeError for what JSON cannot hold
            if is_meant_for_task(error):
                raise
            message = ascii(f"The outcome cannot be sent: {error or repr(error)}")
            connection.send(*outcome_frame(number, Outcome.failed(row, RolloutError("internal", message))))
        finally:
            self._collectors.get(connection, {}).pop(number, None)

    async def _drain(self, seconds: float) -> None:
        self._may_send_rows |= self._collectors.keys()
        for connection in self._collectors:
            connection.send([Kind.DRAINING])
        try:
            async with asyncio.timeout(seconds):
                while self.in_flight or self._may_send_rows:  # noqa: ASYNC110 - an event would cost every rollout something
                    await asyncio.sleep(DRAIN_POLL_S)
        except TimeoutError:
            if self.in_flight:
                logger.warning(
                    "%d rollouts took longer than %g s to finish and are cancelled", self.in_flight, seconds
                )
        rollouts = [rollout for running in self._collectors.values() for rollout in running.values()]
        tasks = [rollout.task for rollout in rollouts if rollout.task is not None]
        for connection in list(self._collectors):
            connection.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def serve_rows(stack: Stack, listening: socket.socket, *, drain_s: float = GRACE_S) -> AsyncIterator[None]:
    """Make the rollouts that collectors ask for on this socket."""
    capacity = outbound_limit() // DESCRIPTORS_PER_LOCAL_ROLLOUT
    server = RowServer(stack.client, worker=stack.spec.worker, capacity=capacity, token=stack.spec.token)
    async with server.serving(listening, drain_s=drain_s):
        yield


async def serve(
    spec: StackSpec, stop: asyncio.Event, on_ready: Callable[[], None], *, drain_s: float = GRACE_S
) -> None:
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
            await opened.enter_async_context(serve_rows(stack, socket.socket(fileno=spec.rows_fd), drain_s=drain_s))
        on_ready()
        await stop.wait()


async def _serve_supervised(spec: StackSpec, control_fd: int, on_ready: Callable[[], None]) -> None:
    stop, loop = set_by_signals(), asyncio.get_running_loop()

    def stop_at_end_of_input() -> None:
        if not os.read(control_fd, 4096):
            loop.remove_reader(control_fd)
            stop.set()

    loop.add_reader(control_fd, stop_at_end_of_input)
    await serve(spec, stop, on_ready)


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


def main() -> None:
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
        event_loop.run(_serve_supervised(spec, control_fd, on_ready))
    except GymError as error:
        sys.stderr.write(printable(redact(f"{error}\n")))
        sys.exit(1 if was_ready else EXIT_CONFIG)


if __name__ == "__main__":
    main()
