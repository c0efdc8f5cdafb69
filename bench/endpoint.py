"""A model endpoint that costs next to nothing: a raw asyncio protocol with prepared replies, in a process of its own.

A request that offers tools gets a tool call until it has as many tool outputs as wanted, by default one; every other
request gets a text."""

import argparse
import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from nemo_gym.common.event_loop import run
from nemo_gym.llm_api.builders import calls, message, response_of
from nemo_gym.server.uvicorn_runner import bind

STOP_TIMEOUT_S = 10.0
USAGE = {
    "input_tokens": 120,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 60,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 180,
}
_CONTENT_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_TOOLS = re.compile(rb'"tools":\s*\[\s*\{')


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running endpoint."""

    url: str
    """Its OpenAI base URL."""
    pid: int


def response_body(*items: dict[str, Any]) -> bytes:
    """A response with these output items."""
    return orjson.dumps(response_of(*items, status="completed", parallel_tool_calls=True, tools=[], usage=USAGE))


def http_response(body: bytes) -> bytes:
    """The whole HTTP response."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


class StubProtocol(asyncio.Protocol):
    """One connection; requests on it come one after the other."""

    def __init__(self, text: bytes, tool_call: bytes, *, tool_calls: int, latency_s: float) -> None:
        self._text, self._tool_call, self._latency_s = text, tool_call, latency_s
        self._tool_calls, self._received = tool_calls, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _CONTENT_LENGTH.search(head)
        if not end or len(body) < (int(length[1]) if length else 0):
            return
        self._received = b""
        calls_tool = _TOOLS.search(body) and body.count(b'"function_call_output"') < self._tool_calls
        answer = self._tool_call if calls_tool else self._text
        if self._latency_s:
            asyncio.get_running_loop().call_later(self._latency_s, self._send, answer)
        else:
            self._transport.write(answer)

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


@contextmanager
def serving_endpoint(
    *, latency_s: float = 0.0, body: bytes | None = None, tool_calls: int = 1, city: str = "Oslo"
) -> Iterator[Endpoint]:
    """Serve in a process of its own as long as the block lasts. Requests queue up until the process is ready.

    `body` replaces the text response. `city` is the argument of each of the `tool_calls`.
    """
    with bind("127.0.0.1", 0) as listening:
        command = [sys.executable, "-m", "bench.endpoint", "--fd", str(listening.fileno())]
        process = subprocess.Popen(
            [*command, "--latency-s", str(latency_s), "--tool-calls", str(tool_calls), "--city", city],
            pass_fds=[listening.fileno()],
            stdin=subprocess.PIPE,
        )
        try:
            if process.stdin is not None:
                with process.stdin as pipe:
                    pipe.write(body or response_body(message("The answer is \\boxed{B}.")))
            yield Endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", process.pid)
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


async def serve(fd: int, *, latency_s: float, body: bytes, tool_calls: int, city: str) -> None:
    """Serve on an inherited listening socket until terminated."""
    tool_call = response_body(calls("get_weather", {"city": city}, call_id="call_1"))
    answers = http_response(body), http_response(tool_call)
    listening = socket.socket(fileno=os.dup(fd))
    server = await asyncio.get_running_loop().create_server(
        lambda: StubProtocol(*answers, tool_calls=tool_calls, latency_s=latency_s), sock=listening
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--tool-calls", type=int, default=1)
    parser.add_argument("--city", default="Oslo")
    options = parser.parse_args()
    run(
        serve(
            options.fd,
            latency_s=options.latency_s,
            body=sys.stdin.buffer.read(),
            tool_calls=options.tool_calls,
            city=options.city,
        )
    )
