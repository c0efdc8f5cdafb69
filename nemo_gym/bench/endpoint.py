"""A simulated model endpoint with very low cost: a raw asyncio protocol with prepared replies, in its own processes.

It calls tools on all turns but the last, then replies with a text. Latency, size and fault rate of its replies are
configurable. Imports that only the starting process needs are local, so that the endpoint's process stays small."""

import asyncio
import heapq
import itertools
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import orjson

from nemo_gym.common.event_loop import run
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.builders import calls, message, response_of

TEXT = "The answer is \\boxed{B}."
USAGE = {
    "input_tokens": 120,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 60,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 180,
}
ALWAYS_SENT: dict[str, Any] = {
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "status": "completed",
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": USAGE,
    "user": None,
}
"""Fields that real endpoints always send. Without them a reply would be cheaper to read than a real one."""
_STREAM = re.compile(rb'"stream":\s*true')
CHAT_USAGE = {"prompt_tokens": 120, "completion_tokens": 60, "total_tokens": 180}


class Fault(NamedTuple):
    """A way in which a request fails."""

    reply: bytes = b""
    stalls: bool = False
    """Never reply."""
    cuts: bool = False
    """Send half of the reply."""
    hangs_up: bool = False


def http_response(
    body: bytes, status: bytes = b"200 OK", headers: bytes = b"", *, kind: bytes = b"application/json"
) -> bytes:
    """Return a complete HTTP response."""
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n"
    return head % (status, kind, len(body), headers) + body


_ERROR = b'{"error": {"message": "a simulated fault"}}'
FAULTS = {
    "429": Fault(http_response(_ERROR, b"429 Too Many Requests", b"retry-after: 0\r\n")),
    "500": Fault(http_response(_ERROR, b"500 Internal Server Error")),
    "503": Fault(http_response(_ERROR, b"503 Service Unavailable")),
    "garbage": Fault(http_response(b"<html>Sign in</html>")),
    "cut": Fault(cuts=True, hangs_up=True),
    "hang_up": Fault(hangs_up=True),
    "stall": Fault(stalls=True),
}
"""Faults by name."""
DEFAULT_FAULTS = tuple(name for name in FAULTS if name != "stall")
"""All faults except `stall`, which takes as long as the client's time limit."""


class Replies:
    """Prepared replies of a model that calls tools on all turns but the last."""

    def __init__(
        self, *, turns: int, payload_bytes: int, tool_arguments: Mapping[str, str], body: str | None = None
    ) -> None:
        self._outputs = turns - 1
        text = TEXT + "x" * max(0, payload_bytes - len(TEXT))
        self._text = http_response(body.encode() if body else _response(message(text)))
        self._chat_text = http_response(body.encode() if body else _completion(text, None))
        self._streamed_text = http_response(_chunks(text), kind=b"text/event-stream")
        said = [message(text)] if payload_bytes else []
        self._tool_calls = {
            name.encode(): http_response(_response(*said, calls(name, orjson.loads(given), call_id="call_1")))
            for name, given in tool_arguments.items()
        }
        self._chat_tool_calls = {
            name.encode(): http_response(_completion(text if payload_bytes else None, (name, given)))
            for name, given in tool_arguments.items()
        }
        names = b"|".join(re.escape(name) for name in self._tool_calls)
        self._offered = re.compile(rb'"name":\s*"(' + names + rb')"') if names else None

    def to(self, request: bytes) -> bytes:
        """Return the reply to a request, both as HTTP bytes."""
        is_chat = b"/chat/completions" in request[:200]
        done = request.count(b'"role":"tool"' if is_chat else b'"function_call_output"')
        tools = request.find(b'"tools":') if done < self._outputs else -1
        found = self._offered.search(request, tools) if self._offered is not None and tools >= 0 else None
        if found is None:
            return self._text if not is_chat else self._streamed_text if _STREAM.search(request) else self._chat_text
        return (self._chat_tool_calls if is_chat else self._tool_calls)[found[1]]


def _response(*items: dict[str, Any]) -> bytes:
    return orjson.dumps(response_of(*items, **ALWAYS_SENT))


def _completion(text: str | None, call: tuple[str, str] | None) -> bytes:
    said: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if call is not None:
        name, given = call
        said["tool_calls"] = [
            {"id": "call_1", "type": "function", "function": {"name": name, "arguments": given}},
        ]
    choice = {"index": 0, "finish_reason": "stop" if call is None else "tool_calls", "logprobs": None, "message": said}
    fields = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "stub"}
    return orjson.dumps({**fields, "choices": [choice], "usage": CHAT_USAGE})


def _chunks(text: str) -> bytes:
    """Return a streamed chat completion with a text."""
    fields = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "stub"}
    deltas: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": text}, "finish_reason": None}]
    deltas.append({"delta": {}, "finish_reason": "stop"})
    chunks = [{**fields, "choices": [{"index": 0, **delta}]} for delta in deltas]
    chunks.append({**fields, "choices": [], "usage": CHAT_USAGE})
    return b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


_SAMPLERS: dict[str, tuple[int, Callable[..., float]]] = {
    "constant": (1, lambda _chance, value: value),
    "uniform": (2, lambda chance, low, high: chance.uniform(low, high)),
    "exponential": (1, lambda chance, mean: chance.expovariate(1 / mean) if mean else 0.0),
    "lognormal": (2, lambda chance, median, sigma: chance.lognormvariate(math.log(median), sigma) if median else 0.0),
}


class Latency(NamedTuple):
    """A distribution of seconds."""

    kind: str
    parameters: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> "Latency":
        kind, _, rest = text.partition(":")
        known = (
            f"'{text}' is not a latency. Expected one of: constant:1, uniform:0.5:2, exponential:1, lognormal:2:0.8"
        )
        try:
            parameters = tuple(float(part) for part in rest.split(":"))
        except ValueError as error:
            raise ConfigError(known) from error
        if kind not in _SAMPLERS or len(parameters) != _SAMPLERS[kind][0]:
            raise ConfigError(known)
        if any(not 0 <= value < math.inf for value in parameters):
            raise ConfigError(f"'{text}' is not a latency: its numbers must be finite and not negative.")
        return cls(kind, parameters)

    def sample(self, chance: random.Random) -> float:
        return _SAMPLERS[self.kind][1](chance, *self.parameters)

    def __str__(self) -> str:
        return f"{self.kind}:{':'.join(f'{value:g}' for value in self.parameters)}"


STOP_TIMEOUT_S = 10.0
STALL_S = 3600.0
CONNECTIONS_PER_PROCESS = 15_000
"""Below the usual limits on open files and on local ports to one address."""
_CONTENT_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """Behavior of the simulated model."""

    latency: str = "constant:0"
    turns: int = 2
    """Model calls per rollout. All but the last call a tool, if the row offers any."""
    payload_bytes: int = 0
    """Minimum size of the text in each reply."""
    fault_rate: float = 0.0
    """Share of requests that get a fault."""
    faults: Sequence[str] = DEFAULT_FAULTS
    tool_arguments: Mapping[str, str] = field(default_factory=lambda: {"get_weather": '{"city": "Oslo"}'})
    """The tools to call, each with its arguments as JSON."""
    body: str | None = None
    """A fixed reply that replaces all others."""
    seed: int = 0


@dataclass(slots=True)
class EndpointStats:
    """Request statistics of the endpoint."""

    requests: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    faults: int = 0
    latency_s: float = 0.0
    """Sum over all requests."""
    first_at: float = 0.0
    last_at: float = 0.0
    """Times of the first request and of the last reply, on the monotonic clock that all processes share."""

    def __add__(self, other: Self) -> "EndpointStats":
        return EndpointStats(
            self.requests + other.requests,
            self.in_flight + other.in_flight,
            self.most_in_flight + other.most_in_flight,
            self.faults + other.faults,
            self.latency_s + other.latency_s,
            min(filter(None, (self.first_at, other.first_at)), default=0.0),
            max(self.last_at, other.last_at),
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running endpoint of one or more processes."""

    urls: list[str]
    """OpenAI base URLs, one for each process."""
    pids: list[int]

    @property
    def url(self) -> str:
        return self.urls[0]

    def stats(self) -> EndpointStats:
        from urllib.request import ProxyHandler, build_opener

        opener, total = build_opener(ProxyHandler({})), EndpointStats()
        for url in self.urls:
            with opener.open(f"{url}/stats", timeout=30) as reply:
                total += EndpointStats(**orjson.loads(reply.read()))
        return total


class _Behavior:
    """State that all connections of a process share."""

    def __init__(self, spec: EndpointSpec) -> None:
        self.replies = Replies(
            turns=spec.turns, payload_bytes=spec.payload_bytes, tool_arguments=spec.tool_arguments, body=spec.body
        )
        self.latency, self.fault_rate = Latency.parse(spec.latency), spec.fault_rate
        self.faults = [FAULTS[name] for name in spec.faults]
        self.chance, self.stats, self.delayed = random.Random(spec.seed), EndpointStats(), _DelayedReplies()

    def begin(self) -> float:
        """Count a request and return its latency."""
        stats, latency_s = self.stats, self.latency.sample(self.chance)
        stats.first_at = stats.first_at or time.monotonic()
        stats.requests += 1
        stats.latency_s += latency_s
        stats.in_flight += 1
        stats.most_in_flight = max(stats.most_in_flight, stats.in_flight)
        return latency_s

    def end(self) -> None:
        self.stats.in_flight -= 1
        self.stats.last_at = time.monotonic()


class _DelayedReplies:
    """Delayed replies with one timer for all: one timer each would take most of the memory."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Connection, bytes, bool]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, seconds: float, connection: "_Connection", reply: bytes, *, hang_up: bool) -> None:
        at = asyncio.get_running_loop().time() + seconds
        heapq.heappush(self._heap, (at, next(self._numbers), connection, reply, hang_up))
        if self._heap[0][0] == at:
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._heap[0][0], self._send_due)

    def _send_due(self) -> None:
        self._timer, now = None, asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            _, _, connection, reply, hang_up = heapq.heappop(self._heap)
            connection.send(reply, hang_up=hang_up)
        if self._heap:
            self._start_timer()


class _Connection(asyncio.Protocol):
    """A connection, with one request at a time. It uses little memory, since thousands wait for their latency."""

    __slots__ = ("_behavior", "_received", "_transport", "_wanted")

    def __init__(self, behavior: _Behavior) -> None:
        self._behavior, self._received, self._wanted = behavior, bytearray(), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._wanted:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _CONTENT_LENGTH.search(self._received, 0, end)
            self._wanted = end + 4 + (int(length[1]) if length else 0)
        if len(self._received) >= self._wanted:
            request, self._received, self._wanted = bytes(self._received), bytearray(), 0
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        behavior = self._behavior
        if request.startswith(b"GET"):
            self._transport.write(http_response(orjson.dumps(asdict(behavior.stats))))
            return
        latency_s, reply = behavior.begin(), behavior.replies.to(request)
        fault = None
        if behavior.fault_rate and behavior.chance.random() < behavior.fault_rate:
            behavior.stats.faults += 1
            fault = behavior.chance.choice(behavior.faults)
            latency_s = STALL_S if fault.stalls else latency_s
            reply = reply[: len(reply) // 2] if fault.cuts else fault.reply
        hang_up = fault is not None and fault.hangs_up
        if latency_s:
            behavior.delayed.add(latency_s, self, reply, hang_up=hang_up)
        else:
            self.send(reply, hang_up=hang_up)

    def send(self, reply: bytes, *, hang_up: bool) -> None:
        self._behavior.end()
        if not self._transport.is_closing():
            self._transport.write(reply)
            if hang_up:
                self._transport.close()


@contextmanager
def serving_endpoint(
    spec: EndpointSpec | None = None, *, connections: int = 1, body: bytes | None = None
) -> Iterator[Endpoint]:
    """Serve while the block runs, with enough processes for this number of connections. Requests queue until a process
    is ready. `body` replaces all replies."""
    spec = spec or EndpointSpec(body=None if body is None else body.decode())
    count = max(1, -(-connections // CONNECTIONS_PER_PROCESS))
    with ExitStack() as running:
        served = [running.enter_context(_process(spec, number)) for number in range(count)]
        yield Endpoint([url for url, _ in served], [pid for _, pid in served])


@contextmanager
def _process(spec: EndpointSpec, number: int) -> Iterator[tuple[str, int]]:
    from nemo_gym.server.uvicorn_runner import bind

    with bind("127.0.0.1", 0) as listening:
        fd, port = listening.fileno(), listening.getsockname()[1]
        command = [sys.executable, "-m", __name__, str(fd)]
        process = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.PIPE)
        try:
            if process.stdin is not None:
                with process.stdin as pipe:
                    pipe.write(orjson.dumps({**asdict(spec), "seed": spec.seed + number}))
            yield f"http://127.0.0.1:{port}/v1", process.pid
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


async def _serve(fd: int, spec: EndpointSpec) -> None:
    loop, behavior = asyncio.get_running_loop(), _Behavior(spec)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await loop.create_server(lambda: _Connection(behavior), sock=socket.socket(fileno=os.dup(fd)))
    await stop.wait()


def main() -> None:
    """Entry point of the process, which its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fields: dict[str, Any] = orjson.loads(sys.stdin.buffer.read())
    run(_serve(int(sys.argv[1]), EndpointSpec(**fields)))


if __name__ == "__main__":
    main()
