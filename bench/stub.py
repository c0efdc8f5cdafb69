"""The model endpoint that everything is measured against: a scripted model, served in a process of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bench.processes import tree
from nemo_gym.config.loading import load_config
from nemo_gym.runtime.launcher import Launcher

MODEL_NAME = "stub"


@dataclass(frozen=True, slots=True)
class Served:
    """A server in another process."""

    url: str
    pids: list[int]
    """All processes that take part in its answers."""


def says(chars: int) -> list[dict[str, Any]]:
    """A script in which the model answers at once with a message of that length."""
    return [{"say": "cold " * (chars // 5) + "." * (chars % 5)}]


def calls_a_tool_and_says(chars: int) -> list[dict[str, Any]]:
    """A script in which the model asks for the weather first."""
    return [{"call": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}, *says(chars)]


@asynccontextmanager
async def serving_stub(replies: list[dict[str, Any]], *, latency_s: float = 0.0) -> AsyncIterator[Served]:
    """Serve a script as long as the block lasts. The address is an OpenAI base URL, so with /v1."""
    model = {"entrypoint": "app.py", "replies": replies, "latency_s": latency_s}
    async with launched(MODEL_NAME, {MODEL_NAME: {"responses_api_models": {"scripted_model": model}}}) as stub:
        yield Served(f"{stub.url}/v1", stub.pids)


@asynccontextmanager
async def launched(name: str, settings: dict[str, Any]) -> AsyncIterator[Served]:
    """One of the servers that a configuration means, with all others, as `ng_run` starts them."""
    initial = {**settings, "head_server": {"port": 0}}
    async with Launcher(load_config(initial=initial, use_dotenv=False, fill_ports=False), echo=_ignore) as launcher:
        running = launcher.running()
        workers = {server.pid for server in running if server.pid is not None}
        [url] = [f"{server.url}" for server in running if server.process_name == name]
        yield Served(url, [pid for worker in workers for pid in tree(worker)])


def _ignore(_line: str) -> None:
    """What a worker prints is not for the table."""
