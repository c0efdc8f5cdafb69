"""Sessions behind one address: a request that reaches the wrong worker is forwarded to the one that its session token
names. It is forwarded once at most, and never sent a second time."""

import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from nemo_gym.client.head import SERVER_HEADER, token_headers
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import CALL_TIMEOUT_S, ServerReply
from nemo_gym.common.deadline import TIME_LEFT_HEADER
from nemo_gym.errors import GymError, ProcessLostError, UpstreamError
from nemo_gym.server.asgi import FORWARDED, App, Receive, Scope, Send, cancel_on_disconnect, read_body, send_reply

LookUp = Callable[[], Awaitable[Mapping[int, str]]]
"""Reads the addresses of all workers of the run."""

LOOK_UP_EVERY_S = 1.0
_OF_THIS_HOP = frozenset(
    {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "accept-encoding", "te", "upgrade"}
    | {"expect", "content-encoding", "cookie", TIME_LEFT_HEADER, SERVER_HEADER}
)
"""Headers of a request or a reply that are not passed on, or that the client sets itself."""


class OtherWorkers:
    """The other workers that have the same servers as this one."""

    def __init__(
        self, urls: Mapping[int, str], http: HttpClient, *, token: str | None, look_up: LookUp | None = None
    ) -> None:
        self._urls = dict(urls)
        """The address of each worker, by its index."""
        self._http, self._token, self._look_up = http, token, look_up
        self._looked_up_at = -math.inf

    async def _find(self, worker: int) -> str | None:
        """A worker that joined since. Tokens of workers that are gone must not cost a request to the head each."""
        if self._look_up is not None and time.monotonic() - self._looked_up_at > LOOK_UP_EVERY_S:
            self._looked_up_at = time.monotonic()
            with contextlib.suppress(GymError):
                self._urls |= await self._look_up()
        return self._urls.get(worker)

    async def forward(
        self, worker: int, server: str, scope: Scope, receive: Receive, send: Send, cookies: Mapping[str, str]
    ) -> None:
        """Send a request on and its reply back, unchanged. If the other worker is gone or dies, so is the session."""
        url = self._urls.get(worker) or await self._find(worker)
        if url is None:
            raise ProcessLostError(f"'{server}' lost a session: its worker {worker} is gone.", server=server)
        query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
        target = scope.get("raw_path", scope["path"].encode()).decode("latin-1") + query
        headers = _passed_on((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        own_headers = {SERVER_HEADER: server, FORWARDED.decode(): "1", **token_headers(self._token)}
        body = await read_body(receive)
        async with cancel_on_disconnect(receive):
            try:
                reply = await self._http.fetch(
                    scope["method"],
                    url + target,
                    body=body or None,
                    headers={**dict(headers), **own_headers},
                    cookies=cookies,
                    timeout_s=CALL_TIMEOUT_S,
                    server=server,
                    use_proxy=False,
                )
            except UpstreamError as error:
                if error.cause == "timeout":
                    raise
                message = f"'{server}' lost a session: its worker {worker} died ({error.body})."
                raise ProcessLostError(message, server=server) from error
            replied = [(name.lower().encode(), value.encode()) for name, value in _passed_on(reply.headers.items())]
            replied.append((b"content-length", str(len(reply.content())).encode()))
            await send({"type": "http.response.start", "status": reply.status, "headers": replied})
            await send({"type": "http.response.body", "body": reply.content()})


def _passed_on(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in _OF_THIS_HOP]


def by_server_header(apps: Mapping[str, App]) -> App:
    """The app of a worker's own address: a request names the server that it is for. Those to `/health` and `/metrics`
    need not, since they are about the process."""
    key, default = SERVER_HEADER.encode(), next(iter(apps), "")

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        fallback = default if scope["path"] in ("/health", "/metrics", "/metrics.json") else ""
        name = next((value.decode("latin-1") for header, value in scope["headers"] if header == key), fallback)
        app = apps.get(name)
        if app is not None:
            await app(scope, receive, send)
            return
        detail = f"This worker has no server of that name. Name one in the header {SERVER_HEADER}."
        await send_reply(ServerReply(name, 404, {"detail": detail}), send)

    return dispatch
