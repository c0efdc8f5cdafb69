"""The program of a worker process: it serves a stack, and makes rollouts with it.

It is here and not in `runtime`, because it needs both: what a stack is, and what a rollout is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket

from nemo_gym.common.descriptors import outbound_limit
from nemo_gym.rollouts.concurrency import DESCRIPTORS_PER_LOCAL_ROLLOUT
from nemo_gym.rollouts.row_server import RowServer
from nemo_gym.runtime.stack import Stack
from nemo_gym.runtime.worker import run_supervised
from nemo_gym.server.request_checks import GRACE_S


@asynccontextmanager
async def serve_rows(stack: Stack, listening: socket, *, drain_s: float = GRACE_S) -> AsyncIterator[None]:
    """Make the rollouts that collectors ask for on this socket."""
    capacity = outbound_limit() // DESCRIPTORS_PER_LOCAL_ROLLOUT
    server = RowServer(stack.client, worker=stack.spec.worker, capacity=capacity, token=stack.spec.token)
    async with server.serving(listening, drain_s=drain_s):
        yield


if __name__ == "__main__":
    run_supervised(serve_rows)
