"""llama.cpp as a child process that serves one model on loopback, and a client for it.

The child ends when its standard input is closed, so it never outlives the worker."""

import asyncio
import contextlib
import logging
import re
import secrets
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import orjson

from nemo_gym import JsonObject
from nemo_gym.client.load_balancer import EndpointPool, EndpointSettings
from nemo_gym.client.pool import HttpClient
from nemo_gym.errors import MissingExtraError, StartupError, UpstreamError
from nemo_gym.llm_api.json_codec import encode

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 600.0
"""A model of many gigabytes on a slow disk."""
NOT_STARTED = "http://127.0.0.1:0"
"""The URL before the engine has a port."""
STOP_TIMEOUT_S = 3.0
MAX_ERROR_BYTES = 2000

_NO_REUSE = {"Connection": "close"}
"""The engine closes idle connections after seconds, which may race with the next request."""
_EVENT = b"data: {"
_SPECIAL = re.compile(r"<[^<>\s]+>")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Parameters of the engine."""

    gguf: Path
    context_tokens: int
    """For each request, including its reply."""
    slots: int
    """Concurrent requests, which are computed as one batch."""
    threads: int
    chat_template: str | None
    max_queued: int
    request_timeout_s: float


class Engine:
    """An async context manager that runs the engine. If it dies, the next request restarts it."""

    def __init__(self, settings: EngineSettings, *, http: Callable[[], HttpClient]) -> None:
        self._settings = settings
        self._key = secrets.token_urlsafe(24)
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        limits = EndpointSettings(
            default_headers=_NO_REUSE,
            num_concurrent_requests=settings.slots,
            max_tries=1,
            request_timeout_s=settings.request_timeout_s,
        )
        self._pool = EndpointPool.of(NOT_STARTED, api_key=self._key, settings=limits, http=http)
        self._client = self._pool.clients[0]
        self.in_flight = 0
        """Number of generations that run or wait."""
        self.template_knows_tools = False
        self.turn_end = ""
        """The token that ends a reply in the chat template; empty if there is none."""

    @property
    def url(self) -> str:
        """Its address. With `/v1` it is an OpenAI-compatible endpoint."""
        return self._client.base_url

    @property
    def api_key(self) -> str:
        """Its API key, random, so that other users of this machine cannot use it."""
        return self._key

    @property
    def pid(self) -> int | None:
        """The id of its process, if it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def __aenter__(self) -> Self:
        if find_spec("xllamacpp") is None:
            raise MissingExtraError("local_model", "local")
        await self._ensure_running()
        await self._learn_template()
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._process is not None:
            await _end(self._process)

    async def ask(self, path: str, body: JsonObject) -> Any:
        """A cheap request, such as `/tokenize`."""
        await self._ensure_running()
        return orjson.loads(await self._client.post(path, encode(body)))

    async def generate(self, path: str, body: JsonObject) -> list[JsonObject]:
        """The generation: one object, or several if `body` asks for a stream.

        The engine cancels a request whose client disconnects only if it is a stream.
        """
        if self.in_flight >= self._settings.slots + self._settings.max_queued:
            text = f"{self._settings.max_queued} requests are waiting already (max_queued_requests)"
            raise UpstreamError(self.url, 429, text, cause="model")
        self.in_flight += 1
        try:
            await self._ensure_running()
            raw = await self._pool.call(lambda client: client.post(path, encode(body)))
        finally:
            self.in_flight -= 1
        events = _events(raw) if body.get("stream") else [orjson.loads(raw)]
        failed = next((event for event in events if "error" in event), None)
        if failed is not None or not events:
            raise UpstreamError(self.url, 200, f"incomplete reply: {failed}", cause="model")
        return events

    async def _learn_template(self) -> None:
        props = orjson.loads(await self._client.fetch("GET", f"{self.url}/props"))
        self.template_knows_tools = bool(props.get("chat_template_caps", {}).get("supports_tools"))
        turns = [("user", "A"), ("assistant", "B"), ("user", "C")]
        messages = [{"role": role, "content": text} for role, text in turns]
        shown = (await self.ask("/apply-template", {"messages": messages}))["prompt"]
        end = props.get("eos_token") or ""
        self.turn_end = end if _SPECIAL.fullmatch(end) and f"B{end}" in shown else ""

    async def _ensure_running(self) -> None:
        async with self._starting:
            if self.pid is not None:
                return
            if self._process is not None:
                logger.error("the engine of local_model ended with %s; starting it again", self._process.returncode)
            self._client.base_url = await self._start()

    async def _start(self) -> str:
        settings = self._settings
        parameters = {**asdict(settings), "gguf": str(settings.gguf), "key": self._key}
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", str(Path(__file__).with_name("host.py"))),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            try:
                answer = await _handshake(process, encode(parameters))
            except BaseException:
                await _end(process)
                raise
            if "url" not in answer:
                await _end(process)
                raise StartupError(_load_error(settings.gguf, answer, process.returncode, _tail(errors)))
        self._process = process
        return str(answer["url"])


async def _handshake(process: asyncio.subprocess.Process, parameters: bytes) -> JsonObject:
    if process.stdin is None or process.stdout is None:
        raise AssertionError("standard input and output are pipes")
    with contextlib.suppress(ConnectionError):
        process.stdin.write(parameters + b"\n")
        await process.stdin.drain()
    try:
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            line = await process.stdout.readline()
    except TimeoutError:
        return {"error": f"it was not ready within {LOAD_TIMEOUT_S:g} s"}
    answer: JsonObject = orjson.loads(line) if line else {}
    return answer


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _load_error(gguf: Path, answer: JsonObject, code: int | None, output: str) -> str:
    reason = answer.get("error") or f"it ended with exit code {code}"
    return f"The engine could not load {gguf}: {reason}\n{output}".strip()


def _tail(errors: Any) -> str:
    size = errors.seek(0, 2)
    errors.seek(max(0, size - MAX_ERROR_BYTES))
    return str(errors.read().decode(errors="replace"))


def _events(raw: bytes) -> list[JsonObject]:
    return [orjson.loads(line[len(_EVENT) - 1 :]) for line in raw.splitlines() if line.startswith(_EVENT)]
