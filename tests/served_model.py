"""The scripted model as an endpoint in a thread of its own, for commands that run as processes."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nemo_gym.client.server_client import base_url
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.server.uvicorn_runner import bind, serving
from nemo_gym.testing import server_spec

EXAMPLES = "responses_api_models/scripted_model/data/examples.jsonl"


WRONG_KEY = b"Bearer sk-wrong"
REFUSED = b'{"error": {"message": "Incorrect API key provided: sk-wrong.", "code": "invalid_api_key"}}'


def _checking_keys(stack: Stack) -> Any:
    """The endpoint, which refuses the wrong key as OpenAI's does."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope.get("headers", ())).get(b"authorization") != WRONG_KEY:
            await stack.apps["endpoint"](scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(REFUSED)).encode())]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": REFUSED})

    return app


@contextmanager
def served_model(replies: Sequence[object] | None = None) -> Iterator[str]:
    """Serve these replies, or those to the example rows, as an OpenAI endpoint; yield its base URL."""
    script: dict[str, Any] = {"replies": [*replies]} if replies else {"script_fpath": EXAMPLES}
    model = server_spec("endpoint", "responses_api_models", "scripted_model", **script)
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    loop = asyncio.new_event_loop()
    stop, ready = asyncio.Event(), threading.Event()

    async def serve() -> None:
        async with Stack(StackSpec([model])) as stack, serving({port: _checking_keys(stack)}, [listening]):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        if not ready.wait(60):
            raise TimeoutError("the scripted model did not start")
        yield f"{base_url('127.0.0.1', port)}/v1"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
        listening.close()
