"""Call a server by its name. A peer in the same worker is called directly, any other over HTTP; answers are alike."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from http import HTTPStatus
from http.cookies import Morsel
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import orjson

from nemo_gym.client.call_log import current_rollout
from nemo_gym.client.head import (
    CALLER_HEADER,
    STATUS_TIMEOUT_S,
    address_in,
    fetch_addresses,
    run_token,
    token_headers,
)
from nemo_gym.client.head import TOKEN_HEADER as TOKEN_HEADER
from nemo_gym.client.head import base_url as base_url
from nemo_gym.client.head import get_from_head as get_from_head
from nemo_gym.client.pool import HttpClient, shared_client
from nemo_gym.client.reply import (
    REFUSAL_STATUSES,
    bounded,
    raise_refusal,
    raise_timeout,
    too_large,
)
from nemo_gym.client.reply import ServerReply as ServerReply
from nemo_gym.common.cookies import CookieJar as CookieJar
from nemo_gym.common.cookies import server_of
from nemo_gym.common.deadline import fresh_deadline, timeout
from nemo_gym.common.paths import nearest
from nemo_gym.common.plugins import plugin
from nemo_gym.common.retry import RETRY_STATS_HEADER, add_retry_header, is_unsent, retry
from nemo_gym.errors import (
    UNREACHABLE,
    Cause,
    ConfigError,
    ConnectError,
    ProcessLostError,
    RolloutError,
    UpstreamError,
)
from nemo_gym.llm_api.json_codec import encode_body

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.common.metrics import Family
    from nemo_gym.config.types import BaseServerConfig

logger = logging.getLogger(__name__)
T = TypeVar("T")

END_SESSION_HEADER = "nemo-gym-end-session"
CALL_TIMEOUT_S = 3600.0
"""The default time limit of a call. Finite, so that nothing waits for ever."""
MAX_CONNECT_TRIES = 5
RELEASE_TIMEOUT_S = 2.0
NO_COOKIES: Mapping[str, str] = {}
LOOK_UP_EVERY_S = 1.0
"""Minimum pause between two look-ups of addresses at the head server, however many calls reach no server."""


class LocalServer(Protocol):
    """A server of the same worker."""

    concurrency: int | None

    def direct(
        self, method: str, path: str, body: Any, cookies: Mapping[str, str], *, ends_session: bool
    ) -> Awaitable[ServerReply]: ...

    def release(self, token: str) -> Awaitable[object] | None: ...
    def blocked(self) -> dict[str, dict[str, float]]: ...
    def families(self) -> "list[Family]":
        """Return the metrics of its worker."""


class ServerClient:
    """Knows where the servers of a run are, and calls them."""

    caller_key = ""
    """The key that only servers of this run have."""

    def __init__(
        self,
        *,
        head_server_config: "BaseServerConfig | None" = None,
        global_config_dict: "DictConfig | dict[str, Any] | None" = None,
        addresses: Mapping[str, str] | None = None,
        local: Mapping[str, LocalServer] | None = None,
        http: HttpClient | None = None,
        token: str | None = None,
        caller_key: str = "",
        **fields: Any,
    ) -> None:
        """`fields` are those that a subclass declares: for code of the public NeMo Gym this is a pydantic model."""
        unknown = fields.keys() - vars(type(self)).get("__annotations__", {}).keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        vars(self).update(fields)
        self.head_server_config = head_server_config
        self._config = {} if global_config_dict is None else global_config_dict
        self.addresses = dict(addresses or {})
        self.local: Mapping[str, LocalServer] = {} if local is None else local
        self._http = http
        self.token = token
        self.caller_key = caller_key
        """What servers of this run show each other in `CALLER_HEADER`; empty for clients from outside."""
        self._next_look_up_at = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.http.close()

    @classmethod
    def load_head_server_config(cls) -> "BaseServerConfig":
        """Return the address of the head server from this process's configuration."""
        from nemo_gym.config.keys import HEAD_SERVER_KEY_NAME
        from nemo_gym.config.types import BaseServerConfig

        config = plugin("global_config").get_global_config_dict()
        return BaseServerConfig.model_validate(dict(config[HEAD_SERVER_KEY_NAME]))

    @classmethod
    def load_from_global_config(
        cls, head_server_config: "BaseServerConfig | None" = None, *, http: HttpClient | None = None
    ) -> "ServerClient":
        """A client of the run whose head server is there. Blocks for a moment: meant for start-up."""
        from omegaconf import OmegaConf

        head = head_server_config or cls.load_head_server_config()
        url = base_url(head.host, head.port)
        token = run_token(head.port)
        text = orjson.loads(get_from_head(url, "/global_config_dict_yaml", token=token))
        return cls(head_server_config=head, global_config_dict=OmegaConf.create(text), token=token, http=http)

    async def poll_for_status(self, server_name: str) -> str:
        """Return the state of a server in one word."""
        head = self.head_server_config
        is_head = server_name == "head_server" and head is not None
        url = base_url(head.host, head.port) if is_head and head is not None else self.url_of(server_name)
        try:
            await self.http.fetch(
                "GET", f"{url}/health", headers=self._headers(), timeout_s=STATUS_TIMEOUT_S, use_proxy=False
            )
        except ConnectError:
            return "connection_error"
        except UpstreamError as error:
            return "timeout" if error.cause == "timeout" else "unknown_error"
        return "success"

    @cached_property
    def global_config_dict(self) -> "DictConfig":
        """The run's configuration. Made an OmegaConf object only when somebody looks."""
        from omegaconf import DictConfig, OmegaConf

        return self._config if isinstance(self._config, DictConfig) else OmegaConf.create(self._config)

    async def call(
        self,
        server: str,
        path: str,
        body: Any = None,
        *,
        answer: type[T],
        cause: Cause = "internal",
        jar: CookieJar | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        ends_session: bool = False,
        what: str = "",
    ) -> T:
        """POST `body` (a model, a dict, or JSON bytes) and return the reply as `answer`.

        `answer=ServerReply` leaves the reply unread. A failure raises RolloutError with `cause`, unless the server
        knew the cause itself. `ends_session` lets the server drop the rollout's session after its reply, and gives it
        the body for good. `what` is named in the error if the time is over; by default it is the server and the path.
        """
        with timeout(timeout_s, what=what or server + path):
            exchange = self._start("POST", server, path, body, jar or {}, timeout_s, cause, ends_session=ends_session)
            body = None  # who waits for a long rollout need not hold its row
            reply = await exchange
        _accept(reply, jar, ends_session=ends_session)
        if reply.status >= 300:
            raise reply.failure(path, cause)
        return reply if answer is ServerReply else reply.decode(answer, path, cause)  # type: ignore[return-value]

    async def send(
        self,
        server: str,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        cause: Cause = "internal",
        jar: CookieJar | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        ends_session: bool = False,
    ) -> ServerReply:
        """Send a request and return the reply, whatever its status. Only no reply in time, or a lost session, is an
        error: the server may notice before this client that the time is over."""
        options: dict[str, Any] = {"timeout_s": timeout_s, "cause": cause, "ends_session": ends_session}
        reply = await self._exchange(method, server, path, body, jar, **options)
        if reply.status == HTTPStatus.GATEWAY_TIMEOUT:
            raise_timeout(reply)
        return bounded(reply, self.http.max_response_bytes, cause)

    async def request(
        self,
        server_name: str,
        url_path: str,
        method: str,
        *,
        json: Any = None,
        data: Any = None,
        cookies: Mapping[str, Any] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        **ignored: Any,
    ) -> Any:
        """As `send`, for code of the public NeMo Gym: the reply has the shape of an aiohttp response, also if it says
        that the time is over."""
        if ignored:
            logger.debug("ServerClient.request ignores %s", sorted(ignored))
        sent = {name: item.value if isinstance(item, Morsel) else str(item) for name, item in (cookies or {}).items()}
        body = data if json is None else json
        reply = await self._exchange(method.upper(), server_name, url_path, body, CookieJar(sent), timeout_s=timeout_s)
        return plugin("aiohttp_response")(reply, url_path)

    async def get(self, server_name: str, url_path: str, **options: Any) -> Any:
        return await self.request(server_name, url_path, "GET", **options)

    async def post(self, server_name: str, url_path: str, **options: Any) -> Any:
        return await self.request(server_name, url_path, "POST", **options)

    @asynccontextmanager
    async def sessions(self, jar: CookieJar) -> AsyncIterator[None]:
        """Every session opened inside ends when the block is left, however it is left."""
        known = set(jar)
        try:
            yield
        finally:
            await self.end_sessions(jar, known=known)

    async def end_sessions(self, jar: CookieJar, *, known: Container[str]) -> None:
        """End the sessions whose cookies are in the jar, except the known ones."""
        opened = [name for name in jar if name not in known]
        if opened:
            with fresh_deadline(RELEASE_TIMEOUT_S):
                for name in opened:
                    await self.release(name, jar.pop(name))

    async def release(self, cookie: str, token: str) -> None:
        """End one session. A server that cannot be reached is left to end it by its time to live."""
        server = server_of(cookie)
        if server in self.local:
            ending = self.local[server].release(token)
            if ending is not None:
                with suppress(RolloutError, UpstreamError):
                    await ending
        elif server in self.addresses or server in self._config:
            try:
                url = self.url_of(server) + "/session"
                await self.http.fetch(
                    "DELETE",
                    url,
                    headers=self._headers(),
                    cookies={cookie: token},
                    timeout_s=RELEASE_TIMEOUT_S,
                    use_proxy=False,
                )
            except UpstreamError as error:
                logger.debug("session on %s left to its time to live: %s", server, error)

    @property
    def http(self) -> HttpClient:
        return self._http or shared_client()

    def setting(self, key: str) -> Any:
        """A top-level value of the run's configuration; None if it is not set."""
        return self._config.get(key)

    def names(self, server_type: str) -> list[str]:
        """The servers of a type, by the run's configuration."""
        return [str(name) for name, block in self._config.items() if server_type in _keys(block)]

    def url_of(self, server: str) -> str:
        """The base address of a server, or an error that names the servers there are."""
        if server not in self.addresses:
            self.addresses[server] = self._address_from_config(server)
        return self.addresses[server]

    async def _look_up_addresses(self) -> None:
        """Ask the head server where the servers are now: a run that was started again has other ports."""
        head, now = self.head_server_config, time.monotonic()
        if head is not None and now >= self._next_look_up_at:
            self._next_look_up_at = now + LOOK_UP_EVERY_S
            with suppress(UpstreamError):
                self.addresses |= await fetch_addresses(self.http, base_url(head.host, head.port), token=self.token)

    @classmethod
    def model_construct(cls, **fields: Any) -> "ServerClient":
        """A client of these fields, for code of the public NeMo Gym, where this is a pydantic model."""
        return cls(**fields)

    @property
    def _server_base_urls(self) -> dict[str, str]:
        """The addresses that are known, for code of the public NeMo Gym."""
        return self.addresses

    def _resolve_base_url(self, server_name: str) -> str:
        """The address of a server, for code of the public NeMo Gym."""
        return self.url_of(server_name)

    def _build_server_base_url(self, server_config_dict: Mapping[str, Any]) -> str:
        """The address in the innermost part of a server's block."""
        return base_url(server_config_dict["host"], server_config_dict["port"])

    def _address_from_config(self, server: str) -> str:
        address = address_in(self._config.get(server))
        if address is None and server in self.local:
            raise ConfigError(f"'{server}' runs in this process and has no URL. Start the servers with `ng_run`.")
        if address is None:
            placed = (str(name) for name, block in self._config.items() if address_in(block))
            names = sorted({*self.local, *self.addresses, *placed})
            known = f"Servers of this run: {', '.join(names) or 'none'}."
            raise ConfigError(f"No server is called '{server}'. {known}{nearest(server, names)}")
        return address

    def _headers(self, *, ends_session: bool = False) -> dict[str, str]:
        headers = token_headers(self.token)
        if self.caller_key:
            headers[CALLER_HEADER] = self.caller_key
        return {**headers, END_SESSION_HEADER: "1"} if ends_session else headers

    async def _exchange(
        self,
        method: str,
        server: str,
        path: str,
        body: Any,
        jar: CookieJar | None,
        *,
        timeout_s: float,
        cause: Cause = "internal",
        ends_session: bool = False,
    ) -> ServerReply:
        """One request and its reply, whatever its status."""
        with timeout(timeout_s, what=server + path):
            reply = await self._start(
                method, server, path, body, jar or {}, timeout_s, cause, ends_session=ends_session
            )
        _accept(reply, jar, ends_session=ends_session)
        return reply

    def _start(
        self,
        method: str,
        server: str,
        path: str,
        body: Any,
        cookies: Mapping[str, str],
        timeout_s: float,
        cause: Cause,
        *,
        ends_session: bool,
    ) -> Awaitable[ServerReply]:
        """Send a request to a server in this worker or elsewhere, through the log of the running rollout if it has
        one."""
        peer, rollout = self.local.get(server), current_rollout()
        log = None if rollout is None else rollout.log
        if peer is not None and log is None:
            return peer.direct(method, path, body, cookies, ends_session=ends_session)

        def send(path: str = path, body: Any = body, more: Mapping[str, str] = NO_COOKIES) -> Awaitable[ServerReply]:
            sent = {**cookies, **more} if more else cookies
            if peer is not None:
                return peer.direct(method, path, body, sent, ends_session=ends_session)
            return self._fetch(method, server, path, body, sent, timeout_s, cause, ends_session=ends_session)

        return send() if log is None else log.call(server, path, body, send)

    async def _fetch(
        self,
        method: str,
        server: str,
        path: str,
        body: Any,
        cookies: Mapping[str, str],
        timeout_s: float,
        cause: Cause,
        *,
        ends_session: bool,
    ) -> ServerReply:
        headers = self._headers(ends_session=ends_session)
        raw = None if body is None else encode_body(body)

        async def attempt() -> ServerReply:
            url = self.url_of(server) + path
            options: dict[str, Any] = {"headers": headers, "cookies": cookies, "server": server, "use_proxy": False}
            try:
                reply = await self.http.fetch(method, url, body=raw, timeout_s=timeout_s, **options)
            except ConnectError:
                await self._look_up_addresses()
                raise
            reply.server = server
            if reply.status in REFUSAL_STATUSES:
                raise_refusal(reply)
            return reply

        try:
            reply = await retry(attempt, max_tries=MAX_CONNECT_TRIES, retryable=is_unsent)
        except UpstreamError as error:
            if not error.status and error.cause is None and not isinstance(error, ConnectError):
                raise ProcessLostError(f"'{server}' died during a call: {error.body}", server=server) from error
            if 200 <= error.status < 300:  # it had to be cut off
                raise too_large(server, cause, error.body) from error
            status = error.status or (None if error.cause == "timeout" else UNREACHABLE)
            kind = error.cause or cause
            raise RolloutError(kind, str(error), server=server, retryable=True, status=status) from error
        add_retry_header(reply.headers.get(RETRY_STATS_HEADER))
        return reply


def _accept(reply: ServerReply, jar: CookieJar | None, *, ends_session: bool) -> None:
    """Raise if the server refused the request, else take over the cookies of its reply."""
    if reply.status in REFUSAL_STATUSES:
        raise_refusal(reply)
    if jar is not None:
        if reply.cookies:
            jar.merge(reply.cookies)
        if ends_session and jar and reply.status < 400:
            jar.forget(reply.server)


def _keys(block: Any) -> Any:
    return block if isinstance(block, Mapping) else ()
