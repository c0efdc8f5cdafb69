"""The head server: where a run tells what it consists of. Its answers hold no secret."""

import hmac
import os
import time
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

from nemo_gym.asgi import Receive, Scope, Send
from nemo_gym.client import TOKEN_HEADER
from nemo_gym.codec import encode

ServerStatus = Literal["success", "connection_error", "timeout", "unknown_error"]


class ServerInstanceDisplayConfig(BaseModel):
    """One running server, as the head server and `ng_status` show it."""

    process_name: str | None = None
    server_type: str | None = None
    name: str | None = None
    config_path: str | None = None
    dir_path: str | None = None
    entrypoint: str | None = None
    host: str | None = None
    port: int | None = None
    url: str | None = None
    pid: int | None = None
    start_time: float | None = None
    status: ServerStatus | None = None
    uptime_seconds: float | None = None


class HeadServer:
    """A small ASGI app. The launcher owns what it tells, and hands it in as functions."""

    def __init__(
        self,
        *,
        config_yaml: Callable[[], str],
        instances: Callable[[], list[ServerInstanceDisplayConfig]],
        health: Callable[[], dict[str, str]],
        token: str | None = None,
    ) -> None:
        self._answers: dict[str, Callable[[], Any]] = {
            "/global_config_dict_yaml": config_yaml,
            "/server_instances": instances,
            "/health": lambda: {"status": "ok", "servers": health()},
            "/run": lambda: {"pid": os.getpid(), "start_time": self._started},
        }
        self._token, self._started = token, time.time()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = self._answers.get(scope["path"])
        if scope["path"] != "/health" and not self._may_ask(scope):
            await _send(send, 401, {"detail": f"This run asks for its token in the header '{TOKEN_HEADER}'."})
        elif answer is None or scope["method"] != "GET":
            await _send(send, 404, {"detail": "Not Found"})
        else:
            await _send(send, 200, answer())

    def _may_ask(self, scope: Scope) -> bool:
        if self._token is None:
            return True
        headers = dict(scope["headers"])
        shown = headers.get(TOKEN_HEADER.encode()) or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        return hmac.compare_digest(shown, self._token.encode())


async def _send(send: Send, status: int, value: Any) -> None:
    body = encode(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
