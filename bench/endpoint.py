"""`python -m bench.endpoint`: a model endpoint that answers everything alike after a while, at almost no cost, so that
with very many rollouts in flight it is the collector that is measured."""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from bench.stub import Stub
from nemo_gym.loops import run
from nemo_gym.serving import bind
from nemo_gym.testing import message, response_of

STOP_WITHIN_S = 10.0


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


def answer_of(text: str) -> bytes:
    body = orjson.dumps(response_of(message(text)))
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


@asynccontextmanager
async def serving_endpoint(text: str, *, latency_s: float) -> AsyncIterator[Stub]:
    """Serve in a process of its own, as long as the block lasts."""
    with bind("127.0.0.1", 0) as listening:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.endpoint",
            *(f"--fd={listening.fileno()}", f"--text={text}", f"--latency-s={latency_s}"),
            pass_fds=[listening.fileno()],
        )
        try:
            yield Stub(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", process.pid)
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), STOP_WITHIN_S)


async def serve(fd: int, text: str, latency_s: float) -> None:
    answer, listening = answer_of(text), socket.socket(fileno=os.dup(fd))
    server = await asyncio.get_running_loop().create_server(lambda: Answering(answer, latency_s), sock=listening)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.endpoint", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the listening socket")
    parser.add_argument("--text", default="Cold.")
    parser.add_argument("--latency-s", type=float, default=0.0)
    told = parser.parse_args()
    run(serve(told.fd, told.text, told.latency_s))


if __name__ == "__main__":
    main()
