"""The program of a worker process: it serves a stack, and makes the rollouts that collectors ask for with it.

It is here and not in `runtime`, because it needs both: what a stack is, and what a rollout is."""

import asyncio
import hmac
import itertools
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import FunctionType
from typing import Any

from msgspec.structs import replace

from nemo_gym.client.head import rollout_name
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.descriptors import outbound_limit
from nemo_gym.common.exceptions import is_meant_for_task
from nemo_gym.common.redaction import redact
from nemo_gym.errors import BLOCKED_CODE
from nemo_gym.rollouts.attempts import observed_attempt
from nemo_gym.rollouts.concurrency import DESCRIPTORS_PER_LOCAL_ROLLOUT
from nemo_gym.rollouts.live import current_stage
from nemo_gym.rollouts.types import NoResult
from nemo_gym.rollouts.worker_protocol import (
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    VERSION,
    FrameConnection,
    Kind,
    ProtocolError,
    RowRequest,
    failed_attempt,
    outcome_frame,
    read_row,
)
from nemo_gym.runtime.stack import Stack, run_supervised
from nemo_gym.server.request_checks import GRACE_S

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 10.0
DRAIN_POLL_S = 0.01
MAX_STAGES = 200


async def _await(running: Coroutine[Any, Any, None]) -> None:
    await running


def _on_named_frame(running: Coroutine[Any, Any, None], name: str) -> Coroutine[Any, Any, None]:
    """Run a coroutine with a frame of this name below it on the stack, so that a stack says whose rollout it is. Takes
    half a microsecond."""
    named: Coroutine[Any, Any, None] = FunctionType(_await.__code__.replace(co_name=name), globals())(running)
    return named


class RowServer:
    """Serves any number of collectors. When a collector disconnects, its rollouts are cancelled."""

    def __init__(self, client: ServerClient, *, worker: int, capacity: int, token: str | None) -> None:
        self._client, self._token = client, token
        self._hello = [Kind.HELLO, VERSION, worker, os.getpid(), capacity, list(client.local)]
        self._collectors: dict[FrameConnection, dict[int, asyncio.Task[None]]] = {}
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
            request = read_row(head, body, lambda number, line: connection.send([Kind.CALL, number], line))
            name = rollout_name(request.number, request.row.id.row_hash)
            running[request.number] = asyncio.create_task(_on_named_frame(self._run(connection, request), name))
        elif head[0] == Kind.CANCEL and isinstance(head[-1], int):
            if (task := running.get(head[-1])) is not None:
                task.cancel()
        elif head[0] == Kind.PING:
            connection.send([Kind.PONG])
        elif head[0] == Kind.DRAINING:
            self._may_send_rows.discard(connection)
        elif head[0] == Kind.STAGES:
            now, oldest = time.monotonic(), itertools.islice(running.items(), MAX_STAGES)
            connection.send([Kind.STAGES, {str(number): current_stage(task, now) for number, task in oldest}])
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
        for task in self._collectors.pop(connection, {}).values():
            task.cancel()

    async def _run(self, connection: FrameConnection, request: RowRequest) -> None:
        try:
            outcome = await observed_attempt(
                self._client, request.row, timeout_s=request.timeout_s, number=request.attempt, log=request.log
            )
            if isinstance(outcome, NoResult):  # the collector may not know the secrets of these servers
                outcome = replace(outcome, message=redact(outcome.message))
            connection.send(*outcome_frame(request.number, outcome))
            if isinstance(outcome, NoResult) and outcome.code == BLOCKED_CODE:
                connection.send_queued()  # the next one may block this turn of the loop until the worker is killed
        except BaseException as error:  # such as a TypeError for what JSON cannot hold
            if is_meant_for_task(error):
                raise
            message = ascii(f"The outcome cannot be sent: {error or repr(error)}")
            unsent = failed_attempt(request, cause="internal", message=message)
            connection.send(*outcome_frame(request.number, unsent))
        finally:
            self._collectors.get(connection, {}).pop(request.number, None)

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
        tasks = [task for running in self._collectors.values() for task in running.values()]
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


if __name__ == "__main__":
    run_supervised(serve_rows)
