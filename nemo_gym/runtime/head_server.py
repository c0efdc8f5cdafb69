"""The head server: where a run tells what it consists of. Its answers hold no secret."""

import os
import time
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

from nemo_gym.client.server_client import TOKEN_HEADER, ServerReply
from nemo_gym.common.redaction import process_redactor
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.server.app import Receive, Scope, Send, is_admitted, send_answer

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
        if scope["type"] == "http":
            status, value = self._answer(scope)
            await send_answer(ServerReply("head_server", status, process_redactor().json(encode(value))), send)

    def _answer(self, scope: Scope) -> tuple[int, Any]:
        tell = self._answers.get(scope["path"])
        if scope["path"] != "/health" and not is_admitted(dict(scope["headers"]), self._token):
            return 401, {"detail": f"This run asks for its token in the header '{TOKEN_HEADER}'."}
        if tell is None or scope["method"] != "GET":
            return 404, {"detail": "Not Found"}
        return 200, tell()
