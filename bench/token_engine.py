"""A simulated engine for conversations with tokens, in a process of its own: it calls a tool on every turn but the
last, and gives the ids and log-probs of what it samples. Prompts extend what it was sent back."""

import asyncio
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import ProxyHandler, build_opener

import orjson
from aiohttp import web

TURNS, SAMPLED, FIRST, READ = 100, 300, 406, 336
"""100 turns of 300 sampled tokens. A prompt has 406 tokens at first, and each tool output adds 336: 63,670 in all."""
MAX_BODY_BYTES = 2**28
_TEXT = "word " * 60
_CALL: dict[str, Any] = {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}


class Engine:
    """Answers requests, and counts them and their bytes."""

    def __init__(self) -> None:
        self._chance = random.Random(0)
        self.requests = self.received = 0

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.read()
        self._count(body)
        messages = orjson.loads(body)["messages"]
        said = [message for message in messages if message["role"] == "assistant"]
        prompt = self._ids(FIRST)
        if said:
            prompt = [*said[-1]["prompt_token_ids"], *said[-1]["generation_token_ids"], *self._ids(READ)]
        message: dict[str, Any] = {"role": "assistant", "content": _TEXT}
        if len(said) < TURNS - 1:
            message["tool_calls"] = [{"id": f"call_{len(said)}", **_CALL}]
        ids = self._ids(SAMPLED)
        entries = [{"token": f"token_id:{token}", "logprob": -self._chance.random()} for token in ids]
        choice = {"index": 0, "finish_reason": "stop", "message": message, "token_ids": ids}
        choice["logprobs"] = {"content": entries}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": SAMPLED, "total_tokens": len(prompt) + SAMPLED}
        fields = {"id": "c", "created": 0, "model": "m", "object": "chat.completion", "usage": usage}
        return _json({**fields, "choices": [choice], "prompt_token_ids": prompt})

    async def completions(self, request: web.Request) -> web.Response:
        body = await request.read()
        self._count(body)
        turn = (len(orjson.loads(body)["prompt"]) - FIRST) // (SAMPLED + READ)
        text = _TEXT + (
            f"<tool_call>{orjson.dumps(_CALL['function']).decode()}</tool_call>" if turn < TURNS - 1 else ""
        )
        ids = self._ids(SAMPLED)
        logprobs = {"token_logprobs": [-self._chance.random() for _ in ids]}
        choice = {"text": text, "token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}
        return _json({"choices": [choice]})

    async def tokenize(self, request: web.Request) -> web.Response:
        """The tokens of a prompt. Those after a reply do not depend on it."""
        body = await request.read()
        self._count(body)
        messages = orjson.loads(body)["messages"]
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        start = [zlib.crc32(said[-1].encode()) % 1000] if said else []
        return _json({"tokens": [*start, *range(20_000, 20_000 + (READ if said else FIRST))]})

    async def models(self, _request: web.Request) -> web.Response:
        return _json({"data": [{"id": "m", "max_model_len": 2**17}]})

    async def stats(self, _request: web.Request) -> web.Response:
        return _json({"requests": self.requests, "received": self.received})

    def _ids(self, count: int) -> list[int]:
        return self._chance.choices(range(100, 32_000), k=count)

    def _count(self, body: bytes) -> None:
        self.requests += 1
        self.received += len(body)


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


async def _serve() -> None:
    engine, app = Engine(), web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes(
        [
            web.post("/v1/chat/completions", engine.chat),
            web.post("/v1/completions", engine.completions),
            web.post("/tokenize", engine.tokenize),
            web.get("/v1/models", engine.models),
            web.get("/v1/stats", engine.stats),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def serving_token_engine() -> Iterator[str]:
    """The base URL of an engine that runs while the block does."""
    command = [sys.executable, "-m", __name__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline()) if process.stdout else 0
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(10)


def engine_stats(url: str) -> dict[str, int]:
    """The requests and bytes that an engine has received."""
    with build_opener(ProxyHandler({})).open(f"{url}/stats", timeout=30) as reply:
        found: dict[str, int] = orjson.loads(reply.read())
    return found


if __name__ == "__main__":
    asyncio.run(_serve())
