"""A model endpoint that answers everything alike after a while, at almost no cost, so that it is its callers that are
measured. Its process is given the listening socket, the latency, and on standard input what it answers."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.stub import Served
from nemo_gym.common.event_loop import run
from nemo_gym.server.uvicorn_runner import bind

STOP_WITHIN_S = 10.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class Answering(asyncio.Protocol):
    """One connection. Requests on it come one after the other, as those of every pooled client do."""

    def __init__(self, answer: bytes, latency_s: float) -> None:
        self._answer, self._latency_s, self._received = answer, latency_s, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self._received = b""
            asyncio.get_running_loop().call_later(self._latency_s, self._transport.write, self._answer)


@asynccontextmanager
async def serving_endpoint(body: bytes, *, latency_s: float) -> AsyncIterator[Served]:
    """Serve in a process of its own, as long as the block lasts."""
    with bind("127.0.0.1", 0) as listening:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.endpoint", str(listening.fileno()), str(latency_s)),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[listening.fileno()],
        )
        if process.stdin is None:
            raise AssertionError("it was asked to be a pipe")
        process.stdin.write(body)
        process.stdin.close()
        try:
            yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", [process.pid])
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), STOP_WITHIN_S)


async def serve(fd: int, latency_s: float, body: bytes) -> None:
    answer, listening = HEAD % len(body) + body, socket.socket(fileno=os.dup(fd))
    server = await asyncio.get_running_loop().create_server(lambda: Answering(answer, latency_s), sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    run(serve(int(sys.argv[1]), float(sys.argv[2]), sys.stdin.buffer.read()))
