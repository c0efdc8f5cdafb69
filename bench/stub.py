"""The model endpoint that everything is measured against: a scripted model, served in a process of its own."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nemo_gym.client import base_url
from nemo_gym.http import HttpClient
from nemo_gym.log import LEVEL_ENV_VAR
from nemo_gym.paths import find
from nemo_gym.serving import bind
from nemo_gym.worker import HeldServer, StackSpec

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 10.0
MODEL_NAME = "stub"
MODEL = "responses_api_models", "scripted_model"


@dataclass(frozen=True, slots=True)
class Stub:
    """A running endpoint."""

    url: str
    """Its OpenAI base URL, so with /v1."""
    pid: int


def says(chars: int) -> list[dict[str, Any]]:
    """A script in which the model answers at once with a message of that length."""
    return [{"say": "cold " * (chars // 5) + "." * (chars % 5)}]


def calls_a_tool_and_says(chars: int) -> list[dict[str, Any]]:
    """A script in which the model asks for the weather first."""
    return [{"call": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}, *says(chars)]


@asynccontextmanager
async def serving_stub(replies: list[dict[str, Any]], *, latency_s: float = 0.0) -> AsyncIterator[Stub]:
    """Serve a script in a worker process, as long as the block lasts."""
    kind, implementation = MODEL
    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        held = HeldServer(
            name=MODEL_NAME,
            server_type=kind,
            implementation=implementation,
            folder=str(find(f"{kind}/{implementation}", what="server folder")),
            entrypoint="app.py",
            config={
                "entrypoint": "app.py",
                "host": "127.0.0.1",
                "port": port,
                "replies": replies,
                "latency_s": latency_s,
            },
            fd=listening.fileno(),
        )
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "nemo_gym.worker",
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[listening.fileno()],
            env={**os.environ, LEVEL_ENV_VAR: "WARNING"},
        )
        try:
            await _tell(worker, StackSpec(servers=[held]))
            await _until_ready(base_url("127.0.0.1", port))
            yield Stub(f"{base_url('127.0.0.1', port)}/v1", worker.pid)
        finally:
            await _end(worker)


async def _tell(worker: asyncio.subprocess.Process, spec: StackSpec) -> None:
    """What to hold is the first line of its input, which stays open."""
    if worker.stdin is None:
        raise AssertionError("it was asked to be a pipe")
    worker.stdin.write(spec.to_json() + b"\n")
    await worker.stdin.drain()


async def _until_ready(url: str) -> None:
    """The socket listens already, so one question waits until the worker answers."""
    async with HttpClient() as http:
        await http.fetch("GET", f"{url}/health", timeout_s=READY_WITHIN_S, server=MODEL_NAME)


async def _end(worker: asyncio.subprocess.Process) -> None:
    """A worker ends when its standard input does; one that does not is killed."""
    if worker.stdin is not None:
        worker.stdin.close()
    try:
        await asyncio.wait_for(worker.wait(), STOP_WITHIN_S)
    except TimeoutError:
        worker.kill()
        await worker.wait()
